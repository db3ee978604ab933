"""A run's folder: what the server is told, what it leaves, and what the command line refuses before anything starts."""

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
from tandem.federated.fleet import client_process as listening
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.config import FleetConfig, load_policy, read_config, read_spec, write_config
from tandem.federated.fleet.messages import Instruction, Report, from_bytes, to_bytes
from tandem.federated.fleet.runner import run_to_folder
from tandem.federated.fleet.server_plan import init_server, plan_round
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel import System
from tandem.policy.heuristics import Threshold
from tandem.scenario import load_scenario


def settings_for(folder: Path, rounds: int) -> FleetConfig:
    settings = FleetConfig(run="folder", policy="threshold", seed=SEED, rounds=rounds)
    write_config(folder, settings, load_scenario("paper", FLEET))
    return settings


def test_a_run_leaves_its_trace_and_its_result(tmp_path: Path, direct: Transport) -> None:
    settings = settings_for(tmp_path, 3)
    (tmp_path / "trace.parquet").write_text("of an earlier run")
    write_config(tmp_path, settings, load_scenario("paper", FLEET))
    assert read_config(tmp_path) == settings

    def deaf_to_one(instructions: Sequence[Instruction]) -> Mapping[int, bytes | str]:
        return {n: answer for n, answer in direct(instructions).items() if n != 2}

    found = run_to_folder(tmp_path, settings, read_spec(tmp_path, SEED), deaf_to_one)
    assert found == json.loads((tmp_path / "fleet.json").read_text())
    assert (found["reports"], found["reports_expected"]) == (3 * (SIZE - 1), 3 * SIZE)
    assert found["failures"][0] == {"round": 0, "device": "device-2", "reason": "no answer in time"}
    lines = (tmp_path / "trace.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * SIZE
    assert lines[0].endswith("violated,reported,work_s")
    assert len((tmp_path / "progress.jsonl").read_text().splitlines()) == 3
    assert not (tmp_path / "trace.parquet").exists()


def test_what_was_played_is_traced_when_a_run_is_stopped(tmp_path: Path, direct: Transport) -> None:
    rounds = 0

    def stopped(instructions: Sequence[Instruction]) -> Mapping[int, bytes | str]:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            raise KeyboardInterrupt
        return direct(instructions)

    with pytest.raises(KeyboardInterrupt):
        run_to_folder(tmp_path, settings_for(tmp_path, 9), read_spec(tmp_path, SEED), stopped)
    assert len((tmp_path / "trace.csv").read_text().splitlines()) == 1 + 2 * SIZE
    assert not (tmp_path / "fleet.json").exists()


def test_settings_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    (tmp_path / "fleet-settings.json").write_text('{"run": "x"')
    with pytest.raises(InputError, match="begin the run anew"):
        read_config(tmp_path)


def test_who_decides_is_checked(system: System, tmp_path: Path) -> None:
    assert isinstance(load_policy("threshold", None, system), Threshold)
    for name, prefer, said in (
        ("treshold", None, "threshold"),
        ("threshold", (1.0, 0.0, 0.0), "has no preferences"),
        (str(tmp_path), None, str(tmp_path)),
    ):
        with pytest.raises(InputError, match=said):
            load_policy(name, prefer, system)


def test_a_device_listens_and_outlives_who_calls(
    devices: list[ClientHandler], problem: FleetSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = tmp_path / "device.socket"
    threading.Thread(target=listening.serve_forever, args=(devices[0], address, 0.5), daemon=True).start()
    until_s = time.monotonic() + 60
    while not address.exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    first = plan_round(problem, Threshold(), init_server(problem, "socket")).instructions[0]
    order = to_bytes(first)
    of_another_seed = to_bytes(first.model_copy(update={"fingerprint": "0" * 16}))
    for said in (b"noise", of_another_seed, order):  # who says nonsense, or hangs up, is forgotten
        with Client(str(address), family="AF_UNIX") as caller:
            caller.send_bytes(said)
    with Client(str(address), family="AF_UNIX"), Client(str(address), family="AF_UNIX") as caller:  # one says nothing
        caller.send_bytes(order)
        assert caller.poll(30)
        assert from_bytes(Report, caller.recv_bytes()).round == 0
    assert "refused: fingerprint: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--task"),
        (["--task", "digits", "--engine", "deploymant"], "deployment"),
        (["--task", "digits", "--hardware", "cpufreq"], "--engine deployment"),
        (["--task", "digits", "--policy", "treshold"], "threshold"),
        (["--task", "digits", "--trace", "xml"], "--trace xml"),
        (["--task", "digits", "--prefer", "speed=1"], "--prefer"),
    ],
)
def test_the_command_refuses_before_anything_starts(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tandem.federated.flower.launcher.check_installed", lambda: None)  # as if Flower were here
    done = CliRunner().invoke(app, ["fleet", "run", "paper", *options])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ('{"0": 1, "1": 2, "2": 3, "3": 4}', [], "name their SuperLink with --superlink"),
        ('{"0": 1, "1": 2, "2": 3}', ["--superlink", "x"], "has no node for device 3"),
        ('{"0": 1, "1": 2, "2": 3, "3": 3}', ["--superlink", "x"], "has a node twice"),
        ("[1, 2]", ["--superlink", "x"], "is not JSON such as"),
        (None, ["--superlink", "x"], "cannot be read"),
    ],
)
def test_named_nodes_are_checked(text: str | None, options: list[str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    if text is not None:
        path.write_text(text)
    fleet = ["fleet", "run", "paper", "--task", "digits", "--set", f"fleet.size={SIZE}", "--nodes", str(path)]
    done = CliRunner().invoke(app, [*fleet, *options])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


def test_without_flower_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["fleet", "run", "paper", "--task", "digits"])
    assert "pip install 'tandem[flower]'" in str(done.exception)


def test_a_fleet_without_a_task_is_refused() -> None:
    from tandem.federated.fleet.spec import build_spec

    with pytest.raises(InputError, match="a fleet needs models"):
        build_spec(load_scenario("paper"), 0)
