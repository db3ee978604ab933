"""A run's folder: its files, and what is refused before anything is started."""

import importlib.util
import json
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Client
from pathlib import Path

import pytest
from small_fleet import FLEET, SEED, SIZE, Transport
from typer.testing import CliRunner

from tandem.cli.main import app
from tandem.errors import InputError
from tandem.federated.fleet.api import build_client, create_run, open_fleet_run
from tandem.federated.fleet.client_process import serve_forever
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.config import FleetConfig, read_config, write_config
from tandem.federated.fleet.decider import PolicyDecider, find_policy
from tandem.federated.fleet.messages import Instruction, Report, from_bytes, to_bytes
from tandem.federated.fleet.runner import run_to_folder
from tandem.federated.fleet.server import init_server, plan_round
from tandem.federated.fleet.spec import FleetSpec, build_spec
from tandem.feel import System
from tandem.policy.heuristics import Threshold
from tandem.scenario import load_scenario
from tandem.serving.fleet_decider import load_decider


def write_small_config(folder: Path, rounds: int) -> FleetConfig:
    config = FleetConfig(policy="threshold", seed=SEED)
    write_config(folder, config, load_scenario("paper", {**FLEET, "rounds": rounds}))
    return config


def test_run_writes_trace_progress_and_result(tmp_path: Path, spec: FleetSpec, direct: Transport) -> None:
    (tmp_path / "trace.parquet").write_text("of an earlier run")
    config = write_small_config(tmp_path, 3)
    assert read_config(tmp_path) == config

    def lose_reports_of_one(instructions: Sequence[Instruction]) -> Mapping[int, bytes | str]:
        return {n: answer for n, answer in direct(instructions).items() if n != 2}

    result = run_to_folder(tmp_path, config, spec, lose_reports_of_one, load_decider)
    assert result == json.loads((tmp_path / "fleet.json").read_text())
    assert (result["reports"], result["reports_expected"]) == (3 * (SIZE - 1), 3 * SIZE)
    assert result["failures"][0] == {"round": 0, "device": "device-2", "reason": "no answer in time"}
    lines = (tmp_path / "trace.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * SIZE
    assert lines[0].endswith("violated,reported,work_s")
    assert len((tmp_path / "progress.jsonl").read_text().splitlines()) == 3
    assert not (tmp_path / "trace.parquet").exists()


def test_stopped_run_has_a_trace_of_its_completed_rounds(tmp_path: Path, spec: FleetSpec, direct: Transport) -> None:
    def stop_in_third_round(instructions: Sequence[Instruction]) -> Mapping[int, bytes | str]:
        if instructions[0].round == 2:
            raise KeyboardInterrupt
        return direct(instructions)

    with pytest.raises(KeyboardInterrupt):
        run_to_folder(tmp_path, write_small_config(tmp_path, 9), spec, stop_in_third_round, load_decider)
    assert len((tmp_path / "trace.csv").read_text().splitlines()) == 1 + 2 * SIZE
    assert not (tmp_path / "fleet.json").exists()


def test_run_is_created_and_opened_from_python(tmp_path: Path) -> None:
    scenario = load_scenario("paper", FLEET)
    run = create_run(scenario, tmp_path / "run", FleetConfig(policy="round-robin", seed=SEED))
    assert open_fleet_run(tmp_path / "run").config == run.config
    assert (run.size, run.finished) == (SIZE, False)
    assert (run.config.report_deadline_s(9.0), FleetConfig(deadline_s=1.0).report_deadline_s(9.0)) == (59.0, 1.0)
    assert create_run(scenario, tmp_path / "run", FleetConfig()).config.run != run.config.run  # replaces the first run
    with pytest.raises(InputError, match=r"--number 4: .* 0 to 3"):
        build_client(scenario, SIZE, tmp_path)
    with pytest.raises(InputError, match=r"--hardware: .*gpio.* cpufreq"):
        build_client(scenario, 0, tmp_path, hardware="gpio")


def test_damaged_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fleet-config.json").write_text('{"run": "x"')
    with pytest.raises(InputError, match=r"fleet-config\.json: .*'tandem fleet run'"):
        read_config(tmp_path)


def test_policy_is_checked(system: System, tmp_path: Path) -> None:
    assert isinstance(find_policy(FleetConfig(policy="threshold"), system), Threshold)
    for name, preference, text in (
        ("treshold", None, "threshold"),
        ("threshold", (1.0, 0.0, 0.0), "--prefer: .* threshold"),
        (str(tmp_path), None, str(tmp_path)),
    ):
        with pytest.raises(InputError, match=text):
            find_policy(FleetConfig(policy=name, preference=preference), system)


def test_device_process_survives_faulty_connections(
    handlers: list[ClientHandler], spec: FleetSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = tmp_path / "device.socket"
    threading.Thread(target=serve_forever, args=(handlers[0], address, 0.5), daemon=True).start()
    until_s = time.monotonic() + 60
    while not address.exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    first = plan_round(spec, PolicyDecider(spec.system, Threshold()), init_server(spec, "socket")).instructions[0]
    instruction = to_bytes(first)
    of_another_seed = to_bytes(first.model_copy(update={"fingerprint": "0" * 16}))
    for data in (b"noise", of_another_seed, instruction):  # each peer disconnects without reading an answer
        with Client(str(address), family="AF_UNIX") as connection:
            connection.send_bytes(data)
    silent = Client(str(address), family="AF_UNIX")
    with silent, Client(str(address), family="AF_UNIX") as connection:
        connection.send_bytes(instruction)
        assert connection.poll(30)
        assert from_bytes(Report, connection.recv_bytes()).round == 0
    assert "refused: fingerprint: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "--task"),
        (["--task", "digits", "--engine", "deploymant"], "deployment"),
        (["--task", "digits", "--hardware", "cpufreq"], "--engine deployment"),
        (["--task", "digits", "--policy", "treshold"], "threshold"),
        (["--task", "digits", "--trace", "xml"], "parquet"),
        (["--task", "digits", "--prefer", "speed=1"], "--prefer"),
    ],
)
def test_command_refuses_before_anything_is_written(
    options: list[str], text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tandem.cli.commands.fleet.check_installed", lambda: None)  # as if Flower were installed
    done = CliRunner().invoke(app, ["fleet", "run", "paper", "--set", f"fleet.size={SIZE}", *options])
    assert isinstance(done.exception, InputError)
    assert text in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "options", "text"),
    [
        ('{"0": 1, "1": 2, "2": 3, "3": 4}', [], "--superlink"),
        ('{"0": 1, "1": 2, "2": 3}', ["--superlink", "x"], "device 3"),
        ('{"0": 1, "1": 2, "2": 3, "3": 3}', ["--superlink", "x"], "twice"),
        ("[1, 2]", ["--superlink", "x"], "JSON"),
        (None, ["--superlink", "x"], "cannot be read"),
    ],
)
def test_nodes_are_checked(
    content: str | None, options: list[str], text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tandem.cli.commands.fleet.check_installed", lambda: None)
    path = tmp_path / "nodes.json"
    if content is not None:
        path.write_text(content)
    command = ["fleet", "run", "paper", "--task", "digits", "--set", f"fleet.size={SIZE}", "--nodes", str(path)]
    done = CliRunner().invoke(app, [*command, *options])
    assert isinstance(done.exception, InputError)
    assert "--nodes" in str(done.exception)
    assert text in str(done.exception)


def test_command_names_the_package_if_flower_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["fleet", "run", "paper", "--task", "digits"])
    assert "pip install 'tandem[flower]'" in str(done.exception)


def test_fleet_without_a_task_is_refused() -> None:
    with pytest.raises(InputError, match=r"accuracy\.task"):
        build_spec(load_scenario("paper"), 0)
