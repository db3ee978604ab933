"""The command line, in process: what it prints, writes and refuses."""

import errno
import json
from pathlib import Path

import pytest
import yaml

from tandem.cli.main import COMMANDS, load_command
from tandem.experiments.registry import EXPERIMENTS
from tandem.experiments.scale import SCALES
from tandem.learn.registry import ALGORITHMS
from tandem.policy import HEURISTICS


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_simulate_prints_a_table(tandem) -> None:
    code, out, _ = tandem("simulate", "--seeds", "2", "--rounds", "10", "--trace", "none", "--out", "here")
    assert code == 0
    for words in ("accuracy", "latency (s)", "energy (J)", "rounds in violation", "requests dropped", "here/"):
        assert words in out
    assert not Path("here/trace.csv").exists()


def test_settings_and_overrides_reach_the_simulation(tandem) -> None:
    common = ("simulate", "--rounds", "20", "--seeds", "1", "--trace", "none", "--json")
    changes = ("--set", "fleet.size=5", "--set", "limits.overflow=discard")  # with C3 every device has to train
    no_training = json.loads(tandem(*common, "--policy-set", "data_share=2", *changes)[1])
    assert no_training["devices"] == 5
    assert no_training["trainers_per_round"] == 0
    unshielded = json.loads(tandem(*common, "--policy", "random", "--no-shield")[1])
    assert unshielded["shield"] is False
    assert unshielded["violation_rate"]["all"] > 0.2


def test_a_trace_that_is_too_long_is_not_written(tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.runs.simulation.MAX_TRACE_ROWS", 50)
    code, out, _ = tandem("simulate", "--rounds", "10", "--seeds", "1")
    assert code == 0
    assert "100 rows" in out
    assert {path.name for path in Path("simulations/paper-threshold").iterdir()} == {"scenario.yaml", "simulation.json"}


def test_simulate_removes_files_of_an_earlier_result(tandem) -> None:
    common = ("simulate", "--rounds", "5", "--seeds", "1", "--out", "here")
    tandem(*common)
    assert Path("here/trace.csv").exists()
    tandem(*common, "--trace", "none")
    assert not Path("here/trace.csv").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads_and_has_the_summary_of_the_table(name: str) -> None:
    assert load_command(name).help.partition("\n")[0] == COMMANDS[name].summary


@pytest.mark.parametrize(
    ("command", "option", "names"),
    [
        ("simulate", "--policy", HEURISTICS),
        ("train", "--algorithm", ALGORITHMS),
        ("train", "--preset", ["default", "quick", "literal"]),
        ("reproduce", "--scale", SCALES),
        ("reproduce", "names", EXPERIMENTS),
    ],
)
def test_help_names_every_choice(command: str, option: str, names) -> None:
    parameter = next(one for one in load_command(command).params if option in (*one.opts, one.name))
    assert all(name in parameter.help for name in names)


def test_every_option_has_a_help_text() -> None:
    for name in COMMANDS:
        command = load_command(name)
        for one in (command, *getattr(command, "commands", {}).values()):
            assert all(parameter.help for parameter in one.params), one.name


def test_an_unknown_command_is_refused_with_a_suggestion(tandem) -> None:
    code, out, err = tandem("trian")
    assert (code, out) == (2, "")
    assert "'train'" in err


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
        (["simulate", "--policy-set", "power=true"], "power=0.5"),
        (["simulate", "--task", "digits", "--data", "here"], "the task digits needs no data"),
        (["calibrate", "--data", "here"], "the task digits needs no data"),
        (["pretrain", "digit"], "TASK digit: is not a task; write 'digits'"),
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


def test_simulate_refuses_a_folder_with_other_files(tandem) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter1.txt").write_text("years of work")
    code, _, err = tandem("simulate", "--rounds", "5", "--seeds", "1", "--out", "thesis")
    assert code == 2
    assert "--out" in err
    assert [path.name for path in Path("thesis").iterdir()] == ["chapter1.txt"]


def test_simulate_refuses_a_file_as_out(tandem) -> None:
    Path("notes.txt").write_text("x")
    code, _, err = tandem("simulate", "--rounds", "5", "--seeds", "1", "--out", "notes.txt")
    assert code == 2
    assert "notes.txt" in err


def test_simulate_prints_any_name_and_writes_below_its_folder(tandem) -> None:
    scenario = "extends: paper\nname: '[/bold]/../$\\frac$'\n"
    Path("mine.yaml").write_text(scenario)
    code, out, err = tandem("simulate", "mine.yaml", "--seeds", "1", "--rounds", "3")
    assert code == 0, err
    assert "threshold on [/bold]/../$\\frac$: 10 devices" in out
    assert [path.name for path in Path("simulations").iterdir()] == ["-bold-..-frac--threshold"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EROFS, "", "/cache/model"), "/cache/model: cannot be read or written (Read-only file system); "),
        (OSError(errno.ENOSPC, ""), "the output: cannot be read or written (No space left on device); make room "),
        (MemoryError(), "the memory is full; use fewer devices"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), "the memory is full; use fewer devices"),
    ],
)
def test_an_error_of_the_system_is_one_sentence_and_exit_code_1(
    tandem, monkeypatch, error: Exception, said: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("tandem.cli.commands.scenario.load_scenario", fail)
    code, out, err = tandem("scenario", "show", "paper")
    assert (code, out) == (1, "")
    assert err.startswith(f"tandem: {said}")
    assert err.count("\n") == 1


def test_a_user_without_a_home_needs_no_cache(tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    assert tandem("scenario", "list")[0] == 0
