"""A server that was stopped resumes from its files, and the run ends as if it had not been stopped."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_fleet import FLEET, SEED, SIZE, Transport
from typer.testing import CliRunner

from tandem.cli.main import app
from tandem.device.hardware import SimulatedHardware
from tandem.errors import InputError
from tandem.federated.fleet import server_store
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.config import FleetConfig, write_config
from tandem.federated.fleet.messages import Instruction, to_bytes
from tandem.federated.fleet.run_dir import CLIENT_STORE, ROUNDS, SERVER, server_lock
from tandem.federated.fleet.runner import run_to_folder
from tandem.federated.fleet.spec import ClientContext, FleetSpec
from tandem.io.array_file import write_arrays
from tandem.scenario import load_scenario
from tandem.serving.fleet_decider import load_decider

NUM_ROUNDS = 6
SCENARIO = load_scenario("paper", {**FLEET, "rounds": NUM_ROUNDS})
LOST_REPORT = (2, 1)  # round and device: a failure that the resumed run must remember


def start(folder: Path) -> FleetConfig:
    folder.mkdir()
    config = FleetConfig(run="resuming", policy="random", seed=SEED)
    write_config(folder, config, SCENARIO)
    return config


def make_transport(contexts: list[ClientContext], folder: Path, stop_in: int | None = None) -> Transport:
    """Call the devices directly; stop the server in a round, when devices have answered and it has not read it."""
    handlers = [ClientHandler(context, folder / CLIENT_STORE, SimulatedHardware()) for context in contexts]

    def send(instructions: Sequence[Instruction]) -> Mapping[int, bytes | str]:
        answers = {i.device: handlers[i.device].handle(to_bytes(i)) for i in instructions}
        number = instructions[0].round
        if number == stop_in:
            raise KeyboardInterrupt
        return {n: answer for n, answer in answers.items() if (number, n) != LOST_REPORT}

    return send


def read_trace(folder: Path) -> list[dict[str, str]]:
    with (folder / "trace.csv").open(encoding="utf-8") as file:
        return [{name: value for name, value in row.items() if name != "work_s"} for row in csv.DictReader(file)]


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "wall_s_by_round"}


@pytest.fixture(scope="module")
def uninterrupted(
    spec: FleetSpec, contexts: list[ClientContext], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The result and the folder of a run that was not stopped."""
    folder = tmp_path_factory.mktemp("fleet") / "uninterrupted"
    return run_to_folder(folder, start(folder), spec, make_transport(contexts, folder), load_decider), folder


def test_resumed_run_equals_an_uninterrupted_one(
    spec: FleetSpec, contexts: list[ClientContext], tmp_path: Path, uninterrupted: tuple[dict[str, Any], Path]
) -> None:
    folder = tmp_path / "run"
    config = start(folder)
    for number in (0, 3, 4):  # before anything was written, later, and again in the next round
        with pytest.raises(KeyboardInterrupt):
            run_to_folder(folder, config, spec, make_transport(contexts, folder, stop_in=number), load_decider)
        assert (len(read_trace(folder)) if number else 0) == number * SIZE
    result = run_to_folder(folder, config, spec, make_transport(contexts, folder), load_decider)
    assert without_times(result) == without_times(uninterrupted[0])
    assert [failure["round"] for failure in result["failures"]] == [LOST_REPORT[0]]
    assert read_trace(folder) == read_trace(uninterrupted[1])
    assert len((folder / "progress.jsonl").read_text().splitlines()) == NUM_ROUNDS


def test_round_without_a_server_file_is_repeated(
    spec: FleetSpec,
    contexts: list[ClientContext],
    tmp_path: Path,
    uninterrupted: tuple[dict[str, Any], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    config = start(folder)

    def stop_before_server_file(path: Path, *arrays: Any, **options: Any) -> None:
        if path.name == SERVER and (folder / ROUNDS / "000003.safetensors").exists():
            raise KeyboardInterrupt
        write_arrays(path, *arrays, **options)

    monkeypatch.setattr(server_store, "write_arrays", stop_before_server_file)
    with pytest.raises(KeyboardInterrupt):
        run_to_folder(folder, config, spec, make_transport(contexts, folder), load_decider)
    monkeypatch.undo()
    assert len(read_trace(folder)) == 3 * SIZE
    result = run_to_folder(folder, config, spec, make_transport(contexts, folder), load_decider)
    assert without_times(result) == without_times(uninterrupted[0])
    assert read_trace(folder) == read_trace(uninterrupted[1])


@pytest.mark.parametrize("damaged", ["server.safetensors", "rounds/000001.safetensors"])
def test_damaged_file_is_refused_with_a_fix(
    spec: FleetSpec, contexts: list[ClientContext], tmp_path: Path, damaged: str
) -> None:
    folder = tmp_path / "run"
    config = start(folder)
    with pytest.raises(KeyboardInterrupt):
        run_to_folder(folder, config, spec, make_transport(contexts, folder, stop_in=2), load_decider)
    (folder / damaged).write_bytes(b"half a fi")
    with pytest.raises(InputError, match=rf"{damaged}: .* without --resume"):
        run_to_folder(folder, config, spec, make_transport(contexts, folder), load_decider)


def test_one_server_at_a_time_uses_a_folder(spec: FleetSpec, contexts: list[ClientContext], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = start(folder)
    with server_lock(folder):
        with pytest.raises(InputError, match="a server is running"):
            run_to_folder(folder, config, spec, make_transport(contexts, folder), load_decider)
        with pytest.raises(InputError, match="a server is running"):
            write_config(folder, config, SCENARIO)


def test_resume_refuses_other_options(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start(folder)
    for options, name in ((["--seed", "3"], "--seed: "), (["paper"], "SCENARIO: ")):
        done = CliRunner().invoke(app, ["fleet", "run", *options, "--resume", str(folder)])
        assert isinstance(done.exception, InputError)
        assert str(done.exception).startswith(name)
    done = CliRunner().invoke(app, ["fleet", "run", "--resume", str(tmp_path / "nothing")])
    assert isinstance(done.exception, InputError)
    assert "fleet-config.json" in str(done.exception)


def test_resuming_a_finished_run_prints_its_result(uninterrupted: tuple[dict[str, Any], Path]) -> None:
    result, folder = uninterrupted
    done = CliRunner().invoke(app, ["fleet", "run", "--resume", str(folder), "--json"])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert {name: document[name] for name in result} == result
    assert (document["scenario"], document["task"], document["devices"]) == ("paper", "digits", SIZE)
    shown = CliRunner().invoke(app, ["fleet", "run", "--resume", str(folder)])
    assert shown.exit_code == 0
    assert str(result["reports"]) in shown.stdout
