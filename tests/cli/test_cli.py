"""The command line, in process: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest
import yaml

from tandem.cli.commands.simulate import POLICIES
from tandem.policy import HEURISTICS


@pytest.fixture(autouse=True)
def in_a_fresh_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_simulate_prints_one_json_document_and_nothing_else(tandem, tmp_path: Path) -> None:
    code, out, _ = tandem("simulate", "paper", "--policy", "threshold", "--seeds", "3", "--json")
    assert code == 0
    document = json.loads(out)
    assert set(document["objectives"]) == {"accuracy", "latency_s", "energy_j"}
    assert document["violation_rate"] == dict.fromkeys(["all", *(f"C{n}" for n in range(1, 9))], 0.0)
    assert document["dropped_requests"] == 0
    assert document["seeds"] == [0, 1, 2]
    folder = tmp_path / "simulations" / "paper-threshold"
    assert {path.name for path in folder.iterdir()} == {"figure.png", "scenario.yaml", "simulation.json", "trace.csv"}
    assert json.loads((folder / "simulation.json").read_text()) == document
    # What was run can be run again from what was written.
    _, again, _ = tandem("simulate", str(folder / "scenario.yaml"), "--seeds", "3", "--json", "--out", "again")
    assert json.loads(again)["objectives"] == document["objectives"]


def test_simulate_for_people(tandem) -> None:
    code, out, _ = tandem("simulate", "--seeds", "2", "--rounds", "10", "--trace", "none", "--out", "here")
    assert code == 0
    for words in ("accuracy", "latency (s)", "energy (J)", "rounds in violation", "requests dropped", "here/"):
        assert words in out
    assert not Path("here/trace.csv").exists()


def test_settings_and_overrides_reach_the_simulation(tandem) -> None:
    common = ("simulate", "--rounds", "20", "--seeds", "1", "--trace", "none", "--json")
    never = json.loads(tandem(*common, "--policy-set", "data_share=2", "--set", "fleet.size=5")[1])
    assert never["devices"] == 5
    assert never["trainers_per_round"] == 0
    wild = json.loads(tandem(*common, "--policy", "random", "--no-shield")[1])
    assert wild["shield"] is False
    assert wild["violation_rate"]["all"] > 0.2


def test_a_long_trace_is_left_out_and_said_so(tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.runs.simulation.MAX_TRACE_ROWS", 50)
    code, out, _ = tandem("simulate", "--rounds", "10", "--seeds", "1")
    assert code == 0
    assert "100 rows" in out
    assert {path.name for path in Path("simulations/paper-threshold").iterdir()} == {"scenario.yaml", "simulation.json"}


def test_nothing_of_an_earlier_run_stays_beside_a_new_result(tandem) -> None:
    common = ("simulate", "--rounds", "5", "--seeds", "1", "--out", "here")
    tandem(*common)
    assert Path("here/trace.csv").exists()
    tandem(*common, "--trace", "none")
    assert not Path("here/trace.csv").exists()


def test_the_help_names_every_policy() -> None:
    assert all(name in POLICIES for name in HEURISTICS)


def test_scenario_list(tandem) -> None:
    assert "jetson" in tandem("scenario", "list")[1]
    listed = json.loads(tandem("scenario", "list", "--json")[1])
    assert [preset["name"] for preset in listed["presets"]] == ["jetson", "paper"]


def test_scenario_show_is_a_scenario(tandem, tmp_path: Path) -> None:
    _, out, _ = tandem("scenario", "show", "paper", "--set", "fleet.size=7")
    assert yaml.safe_load(out)["fleet"]["size"] == 7
    Path("mine.yaml").write_text(out)
    assert json.loads(tandem("scenario", "show", "mine.yaml", "--json")[1])["fleet"]["size"] == 7
    devices = json.loads(tandem("scenario", "show", "mine.yaml", "--devices", "--json")[1])
    assert len(devices) == 7
    assert "device-6" in tandem("scenario", "show", "mine.yaml", "--devices")[1]


def test_scenario_check(tandem) -> None:
    code, out, _ = tandem("scenario", "check", "paper")
    assert code == 0
    assert "can be served" in out
    assert json.loads(tandem("scenario", "check", "jetson", "--json")[1])["most_trainers"]["lowest"] >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "papre"], "write 'paper'"),
        (["simulate", "--policy", "treshold"], "write 'threshold'"),
        (["simulate", "--policy-set", "share=3"], "data_share"),
        (["simulate", "--policy-set", "power=much"], "power=0.5"),
        (["simulate", "--trace", "xlsx"], "csv, parquet"),
        (["simulate", "--set", "fleet.sise=3"], "write 'size'"),
        (["simulate", "--set", "limits.round_max_s=5 kg"], "not a unit of duration"),
        (["simulate", "--rounds", "0"], "--rounds"),
        (["simulate", "--seeds", "none"], "--seeds"),
        (["scenario", "check", "nowhere.yaml"], "nowhere.yaml"),
        (["scenario", "check", "paper", "--set", "workload.request_rate_per_s=200"], "cannot be served"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(tandem, arguments: list[str], said: str) -> None:
    code, out, err = tandem(*arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert "Traceback" not in err
    assert not Path("simulations").exists()


def test_results_of_something_else_are_not_overwritten(tandem) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter1.txt").write_text("years of work")
    code, _, err = tandem("simulate", "--rounds", "5", "--seeds", "1", "--out", "thesis")
    assert code == 2
    assert "--out" in err
    assert [path.name for path in Path("thesis").iterdir()] == ["chapter1.txt"]


def test_out_that_is_a_file(tandem) -> None:
    Path("notes.txt").write_text("x")
    code, _, err = tandem("simulate", "--rounds", "5", "--seeds", "1", "--out", "notes.txt")
    assert code == 2
    assert "notes.txt" in err
