"""A server that was ended goes on from its file, and the run comes out as if nothing had happened."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_fleet import FLEET, SEED, SIZE, Transport
from typer.testing import CliRunner

from tandem.cli.main import app
from tandem.errors import InputError
from tandem.federated.fleet import server_store as ledger
from tandem.federated.fleet.client_round import ClientContext
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.config import FleetConfig, write_config
from tandem.federated.fleet.hardware import SimulatedHardware
from tandem.federated.fleet.messages import Instruction, to_bytes
from tandem.federated.fleet.runner import run_to_folder
from tandem.federated.fleet.spec import FleetSpec
from tandem.io.tree_io import write_arrays
from tandem.scenario import load_scenario

ROUNDS = 7
UNHEARD = (2, 1)  # the round and the device of an answer that is lost: a failure to remember


def begun(folder: Path) -> FleetConfig:
    folder.mkdir()
    settings = FleetConfig(run="resuming", policy="random", seed=SEED, rounds=ROUNDS)
    write_config(folder, settings, load_scenario("paper", FLEET))
    return settings


def carrier(places: list[ClientContext], folder: Path) -> Transport:
    devices = [ClientHandler(place, folder / "devices", SimulatedHardware()) for place in places]

    def carry(instructions: Sequence[Instruction]) -> Mapping[int, bytes | str]:
        answers = {order.device: devices[order.device].handle(to_bytes(order)) for order in instructions}
        return {n: answer for n, answer in answers.items() if (instructions[0].round, n) != UNHEARD}

    return carry


def ends_in(number: int, carry: Transport) -> Transport:
    """The server is ended in this round, when the devices have done their work and nobody has heard of it."""

    def ended(instructions: Sequence[Instruction]) -> Mapping[int, bytes | str]:
        answers = carry(instructions)
        if instructions[0].round == number:
            raise KeyboardInterrupt
        return answers

    return ended


def trace(folder: Path) -> list[dict[str, str]]:
    with (folder / "trace.csv").open(encoding="utf-8") as file:
        return [{name: value for name, value in row.items() if name != "work_s"} for row in csv.DictReader(file)]


def timeless(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "wall_s_by_round"}


@pytest.fixture
def undisturbed(problem: FleetSpec, places: list[ClientContext], tmp_path: Path) -> tuple[dict[str, Any], Path]:
    folder = tmp_path / "undisturbed"
    return run_to_folder(folder, begun(folder), problem, carrier(places, folder)), folder


def test_an_ended_server_goes_on_to_the_same_end(
    problem: FleetSpec, places: list[ClientContext], tmp_path: Path, undisturbed: tuple[dict[str, Any], Path]
) -> None:
    folder = tmp_path / "ended"
    settings = begun(folder)
    for number in (0, 3, 4):  # before anything was kept, in mid-run, and at once again
        with pytest.raises(KeyboardInterrupt):
            run_to_folder(folder, settings, problem, ends_in(number, carrier(places, folder)))
        assert (len(trace(folder)) if number else 0) == number * SIZE
    found = run_to_folder(folder, settings, problem, carrier(places, folder))
    assert timeless(found) == timeless(undisturbed[0])
    assert [one["round"] for one in found["failures"]] == [UNHEARD[0]]
    assert trace(folder) == trace(undisturbed[1])
    assert len((folder / "progress.jsonl").read_text().splitlines()) == ROUNDS


def test_a_round_that_was_half_kept_is_played_again(
    problem: FleetSpec,
    places: list[ClientContext],
    tmp_path: Path,
    undisturbed: tuple[dict[str, Any], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "half"
    settings = begun(folder)

    def ended(path: Path, *arrays: Any, **options: Any) -> None:
        """Ended with the round's file in its place, and the server's not."""
        if path.name == ledger.SERVER and (folder / ledger.ROUNDS / "000003.safetensors").exists():
            raise KeyboardInterrupt
        write_arrays(path, *arrays, **options)

    monkeypatch.setattr(ledger, "write_arrays", ended)
    with pytest.raises(KeyboardInterrupt):
        run_to_folder(folder, settings, problem, carrier(places, folder))
    monkeypatch.undo()
    assert len(trace(folder)) == 3 * SIZE
    found = run_to_folder(folder, settings, problem, carrier(places, folder))
    assert timeless(found) == timeless(undisturbed[0])
    assert trace(folder) == trace(undisturbed[1])


@pytest.mark.parametrize("spoiled", ["server.safetensors", "rounds/000001.safetensors"])
def test_a_damaged_memory_is_refused_with_a_fix(
    problem: FleetSpec, places: list[ClientContext], tmp_path: Path, spoiled: str
) -> None:
    folder = tmp_path / "damaged"
    settings = begun(folder)
    with pytest.raises(KeyboardInterrupt):
        run_to_folder(folder, settings, problem, ends_in(2, carrier(places, folder)))
    (folder / spoiled).write_bytes(b"half a fi")
    with pytest.raises(InputError, match=rf"{spoiled}: is cut short or damaged; .* without --resume"):
        run_to_folder(folder, settings, problem, carrier(places, folder))


def test_two_servers_do_not_play_in_one_folder(problem: FleetSpec, places: list[ClientContext], tmp_path: Path) -> None:
    folder = tmp_path / "two"
    settings = begun(folder)
    with ledger.server_lock(folder):
        with pytest.raises(InputError, match="a server is at work there"):
            run_to_folder(folder, settings, problem, carrier(places, folder))
        with pytest.raises(InputError, match="a server is at work there"):
            write_config(folder, settings, load_scenario("paper", FLEET))


def test_a_run_goes_on_only_as_it_was_begun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begun(folder)
    for options, said in ((["--seed", "3"], "--seed: the run in"), (["paper"], "SCENARIO: the run in")):
        done = CliRunner().invoke(app, ["fleet", "run", *options, "--resume", str(folder)])
        assert isinstance(done.exception, InputError)
        assert said in str(done.exception)
    done = CliRunner().invoke(app, ["fleet", "run", "--resume", str(tmp_path / "nothing")])
    assert "begin the run anew" in str(done.exception)


def test_a_finished_run_is_shown_again(problem: FleetSpec, places: list[ClientContext], tmp_path: Path) -> None:
    folder = tmp_path / "finished"
    found = run_to_folder(folder, begun(folder), problem, carrier(places, folder))
    done = CliRunner().invoke(app, ["fleet", "run", "--resume", str(folder), "--json"])
    assert done.exit_code == 0
    shown = json.loads(done.stdout)
    assert {name: shown[name] for name in found} == found
