"""The commands that read a run: evaluate, front, pick and runs."""

import csv
import io
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import tandem as package
from disks import read_only_disk
from tandem.cli.formatting import format_interval, print_table
from tandem.pareto import knee_point
from tandem.runs import Run
from tandem.runs.front import measured_fields

TINY = {"num_envs": 2, "validation_episodes": 1, "update_epochs": 1, "num_minibatches": 1}


@pytest.fixture(autouse=True)
def runs(conditioned_run: Run, population_run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fresh folder to work in, with copies of two runs of three devices: 'fleet' (pc-ppo) and 'paper' (r-ppo)."""
    monkeypatch.chdir(tmp_path)
    for name, run in (("fleet", conditioned_run), ("paper", population_run)):
        shutil.copytree(run.folder, tmp_path / "runs" / name)
    return tmp_path / "runs"


def document(result: tuple[int, str, str]):
    code, out, err = result
    assert code == 0, err
    return json.loads(out)


def recorded(run: str) -> dict:
    return json.loads(Path(run, "front.json").read_text())


# evaluate


def test_evaluate_prints_one_json_document_and_writes_the_same(tandem) -> None:
    found = document(tandem("evaluate", "runs/paper", "--seeds", "4", "--json-file", "found.json", "--json"))
    assert json.loads(Path("found.json").read_text()) == found
    assert len(found["seeds"]) == 4
    assert set(found["seeds"]).isdisjoint(recorded("runs/paper")["seeds"])
    low, high = found["hypervolume_interval_95"]
    assert low <= found["hypervolume"] <= high
    assert found["hypervolume_when_trained"] == recorded("runs/paper")["hypervolume"]
    assert found["best_known_hypervolume"] is None  # for a fleet of three there is none
    assert [policy["index"] for policy in found["policies"]] == list(range(found["policies_played"]))
    assert found["rules"] == []


def test_evaluate_prints_tables(tandem) -> None:
    code, out, err = tandem("evaluate", "runs/paper", "--seeds", "2", "--first-seed", "7", "--heuristics")
    assert code == 0
    for words in (
        "seeds 7 to 8",
        "hypervolume",
        "95 %:",
        "when trained",
        "sparsity",
        "expected utility",
        "not dominated",
    ):
        assert words in out
    for words in ("not dominated", "within tolerance", "at most 100 % of rounds", "worst violation rate", "knee", "±"):
        assert words in out
    for rule in package.HEURISTICS:
        assert rule in out
    assert "Evaluating" in err


def test_evaluate_on_the_seeds_of_training_gives_the_recorded_hypervolume(tandem) -> None:
    before = recorded("runs/paper")
    seeds = ("--seeds", str(len(before["seeds"])), "--first-seed", str(before["seeds"][0]))
    found = document(tandem("evaluate", "runs/paper", *seeds, "--json"))
    assert found["hypervolume"] == pytest.approx(before["hypervolume"], rel=1e-4)


def test_evaluate_on_a_larger_fleet(tandem) -> None:
    arguments = ("evaluate", "runs/fleet", "--set", "fleet.size=30", "--seeds", "2")
    found = document(tandem(*arguments, "--json"))
    assert (found["devices"], found["changes"]) == (30, ["fleet.size=30"])
    assert found["within_tolerance"] == found["policies_played"]
    assert "30 devices" in tandem(*arguments)[1]


@pytest.mark.parametrize("share", [0.0, 0.125])
def test_evaluate_reports_discarded_samples(tandem, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(means):
        return {**measured_fields(means), "discarded_share": share}

    monkeypatch.setattr("tandem.runs.evaluation.measured_fields", measured)
    arguments = ("evaluate", "runs/fleet", "--seeds", "1", "--set", "limits.overflow=discard")
    found = document(tandem(*arguments, "--json"))
    assert {policy["discarded_share"] for policy in found["policies"]} == {share}
    assert found["keeps_samples"] is False
    _, out, _ = tandem(*arguments)
    assert f"{share:.1%}" in next(line for line in out.splitlines() if line.startswith("discarded samples"))
    assert any("policy" in line and "discarded" in line for line in out.splitlines()) is (share > 0)


def test_evaluate_says_how_many_policies_count(tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter((0.5, *(0.0,) * 100))

    def measured(means):
        return {**measured_fields(means), "violation_rate": next(rates)}

    monkeypatch.setattr("tandem.runs.evaluation.measured_fields", measured)
    _, out, _ = tandem("evaluate", "runs/fleet", "--seeds", "1")
    number = len(recorded("runs/fleet")["policies"])
    lines = {line.split("  ")[0]: " ".join(line.split()) for line in out.splitlines()}
    assert lines["not dominated"].endswith(f"of {number - 1}")
    assert lines["within tolerance"] == (
        f"within tolerance {number - 1} of {number}, in violation in at most 1 % of rounds; only these count in the "
        "rows above"
    )


# front


def test_front_writes_a_table_and_a_figure_into_the_run(tandem) -> None:
    shown = document(tandem("front", "runs/paper", "--json"))
    before = recorded("runs/paper")
    for name in ("policies", "hypervolume", "sparsity", "reference"):
        assert shown[name] == before[name]
    assert Path(shown["figure"]).read_bytes().startswith(b"\x89PNG")
    with Path(shown["csv"]).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["latency_s"]) for row in rows] == [p["objectives"]["latency_s"] for p in before["policies"]]
    # The run is as good as before.
    assert document(tandem("front", "runs/paper", "--json"))["policies"] == before["policies"]


def test_front_prints_a_table(tandem) -> None:
    code, out, _ = tandem("front", "runs/paper", "--csv", "mine.csv", "--figure", "mine.svg")
    assert code == 0
    for words in (
        "accuracy",
        "latency (s)",
        "energy (J)",
        "violations",
        "weights (%)",
        "stage",
        "Hypervolume",
        "sparsity",
    ):
        assert words in out
    assert len([line for line in out.splitlines() if "±" in line]) == len(recorded("runs/paper")["policies"])
    assert "mine.csv and mine.svg" in out
    assert "<svg" in Path("mine.svg").read_text()
    assert not Path("runs/paper/front.csv").exists()


def test_front_shows_a_few_policies_and_all_on_request(tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.cli.commands.front.SHOWN", 1)  # the landmarks are shown all the same
    policies = recorded("runs/paper")["policies"]
    _, few, _ = tandem("front", "runs/paper")
    lines = [line for line in few.splitlines() if "±" in line]
    assert 1 <= len(lines) <= min(4, len(policies))
    for mark in ("knee", "highest accuracy", "lowest latency", "lowest energy"):
        assert sum(mark in line for line in lines) == 1
    _, everything, _ = tandem("front", "runs/paper", "--all")
    assert sum("±" in line for line in everything.splitlines()) == len(policies)
    shown = document(tandem("front", "runs/paper", "--json"))
    assert len(shown["policies"]) == len(policies)
    assert len(Path(shown["csv"]).read_text().splitlines()) == 1 + len(policies)


@pytest.mark.parametrize(("sort", "field", "sign"), [("accuracy", 0, -1), ("latency", 1, 1), ("energy", 2, 1)])
def test_front_sorts_by_an_objective(tandem, sort: str, field: int, sign: int) -> None:
    shown = document(tandem("front", "runs/paper", "--sort", sort, "--json"))
    values = [sign * list(policy["objectives"].values())[field] for policy in shown["policies"]]
    assert values == sorted(values)
    assert len({policy["index"] for policy in shown["policies"]}) == len(values)


def test_front_shows_a_run_that_cannot_be_written_to(tandem) -> None:
    Path("runs/paper/front.csv").mkdir()
    Path("runs/paper/front.png").mkdir()
    code, out, err = tandem("front", "runs/paper")
    assert code == 0
    assert "Hypervolume" in out
    assert "Written" not in out
    assert "--csv" in err
    assert "--figure" in err
    assert sorted(path.name for path in Path("runs/paper").iterdir() if path.name.startswith(".front")) == []


def change_violations(run: str, *rates: float) -> int:
    """Change the violation rates in front.json, the last of them for all further policies; return their number."""
    front = recorded(run)
    for number, policy in enumerate(front["policies"]):
        policy["violation_rate"]["all"] = rates[min(number, len(rates) - 1)]
    Path(run, "front.json").write_text(json.dumps(front))
    return len(front["policies"])


def test_front_counts_policies_within_the_tolerance(tandem) -> None:
    before = document(tandem("front", "runs/fleet", "--json"))
    number = len(before["policies"])
    assert (before["tolerance"], before["within_tolerance"]) == (0.01, number)
    assert "tolerance" not in tandem("front", "runs/fleet")[1]
    change_violations("runs/fleet", 0.5, 0.0)
    shown = document(tandem("front", "runs/fleet", "--json"))
    assert shown["within_tolerance"] == number - 1
    assert shown["hypervolume"] < before["hypervolume"]
    assert f"{number - 1} of {number} policies are within the tolerance of 1 % of rounds" in tandem(
        "front", "runs/fleet"
    )[1].replace("\n", " ")
    change_violations("runs/fleet", 0.5)
    assert document(tandem("front", "runs/fleet", "--json"))["hypervolume"] == 0


def test_train_says_that_no_policy_is_within_the_tolerance(tandem) -> None:
    before = recorded("runs/fleet")
    before["policies"] = before["policies"][:1]
    Path("runs/fleet/front.json").write_text(json.dumps(before))
    record = json.loads(Path("runs/fleet/run.json").read_text())
    Path("runs/fleet/run.json").write_text(json.dumps({**record, "within_tolerance": False, "policies": 1}))
    _, out, _ = tandem("train", "--resume", "runs/fleet")
    assert "In validation no policy was within the tolerance of 1 % of rounds in violation" in out
    assert "only the one with the lowest violation rate. Train longer.\n" in out  # it has the shield already
    assert "The policy is not" not in out  # in the measurement it was
    change_violations("runs/fleet", 0.5)
    assert "The policy is not within the tolerance" in tandem("train", "--resume", "runs/fleet")[1]


def change_discarded(run: str, *shares: float | None) -> None:
    """Change the discarded shares in front.json, the last of them for all further policies; None removes the field."""
    front = recorded(run)
    for number, policy in enumerate(front["policies"]):
        policy["discarded_share"] = shares[min(number, len(shares) - 1)]
        if policy["discarded_share"] is None:
            del policy["discarded_share"]
    Path(run, "front.json").write_text(json.dumps(front))


def test_front_shows_discarded_samples(tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    change_discarded("runs/fleet", 0.125, 0.0)
    _, out, _ = tandem("front", "runs/fleet")
    assert out.splitlines()[0].split().count("discarded") == 1
    assert "Discarded samples, as a share of those made: 0.0% to 12.5%." in out
    shares = [policy["discarded_share"] for policy in document(tandem("front", "runs/fleet", "--json"))["policies"]]
    assert (shares[0], set(shares[1:])) == (0.125, {0.0})
    change_discarded("runs/fleet", 0.0)
    _, out, _ = tandem("front", "runs/fleet")
    assert "iscarded" not in out  # the preset keeps all samples
    monkeypatch.setattr("tandem.cli.commands.front.keeps_samples", lambda system: False)
    _, out, _ = tandem("front", "runs/fleet")
    assert "discarded" not in out.splitlines()[0]
    assert "share of those made: 0.0%." in out


def test_front_shows_a_run_whose_discarded_samples_were_not_measured(tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.cli.commands.front.keeps_samples", lambda system: False)
    change_discarded("runs/fleet", None)
    _, out, _ = tandem("front", "runs/fleet")
    assert "discarded" not in out.splitlines()[0]
    assert "share of those made: unknown." in out
    shown = document(tandem("front", "runs/fleet", "--json"))
    assert {policy["discarded_share"] for policy in shown["policies"]} == {None}
    with Path(shown["csv"]).open(newline="") as file:
        assert {row["discarded_share"] for row in csv.DictReader(file)} == {""}


@pytest.mark.parametrize("keeps", [True, False])
def test_front_mentions_discarded_samples_only_where_there_may_be_any(
    tandem, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.cli.commands.front.keeps_samples", lambda system: keeps)
    change_discarded("runs/fleet", 0.0)
    assert ("iscarded" in tandem("front", "runs/fleet")[1]) is not keeps


# pick


def test_pick_the_knee(tandem) -> None:
    chosen = document(tandem("pick", "runs/paper", "--json"))
    before = recorded("runs/paper")["policies"]
    index = chosen["policy"]["index"]
    assert chosen["policy"] == before[index]
    assert "the knee" in chosen["reason"]
    points = [(o["accuracy"], -o["latency_s"], -o["energy_j"]) for o in (p["objectives"] for p in before)]
    assert index == knee_point(np.array(points))


@pytest.mark.parametrize(("name", "objective", "best"), [("accuracy", "accuracy", max), ("energy", "energy_j", min)])
def test_pick_by_a_single_weight_is_the_best_of_that_objective(tandem, name: str, objective: str, best) -> None:
    chosen = document(tandem("pick", "runs/paper", "--prefer", f"{name}=3", "--json"))
    values = [policy["objectives"][objective] for policy in recorded("runs/paper")["policies"]]
    assert chosen["policy"]["objectives"][objective] == best(values)
    assert chosen["preference"] == {"accuracy": 0.0, "latency": 0.0, "energy": 0.0, name: 1.0}
    assert chosen["python_for_preference"] is None  # its networks follow one preference each


def test_pick_within_limits(tandem) -> None:
    latencies = sorted(policy["objectives"]["latency_s"] for policy in recorded("runs/paper")["policies"])
    limit = str((latencies[0] + latencies[1]) / 2)
    chosen = document(tandem("pick", "runs/paper", "--prefer", "accuracy=1", "--max-latency", limit, "--json"))
    assert chosen["policy"]["objectives"]["latency_s"] == latencies[0]
    assert "the 1 of" in chosen["reason"]


def test_pick_prints_how_to_use_the_policy_in_python(tandem) -> None:
    code, out, _ = tandem("pick", "runs/fleet", "--prefer", "accuracy=0.5, latency=0.3,energy=0.2")
    assert code == 0
    for words in ("accuracy", "latency (s)", "energy (J)", "±", "in violation", "best for weights 0.5, 0.3, 0.2"):
        assert words in out
    opening, choosing, exactly = (
        line.strip() for line in out.splitlines() if line.startswith("    ") and "run" in line
    )
    names: dict[str, object] = {"tandem": package}
    exec(f"{opening}\n{choosing}\nexact = {exactly}", names)  # what it says can be typed
    assert names["exact"].preference.tolist() == pytest.approx([0.5, 0.3, 0.2])
    _, out, _ = tandem("pick", "runs/paper", "--prefer", "accuracy=1")
    assert "policy_for" not in out
    _, out, _ = tandem("pick", "runs/fleet")
    assert "policy_for" not in out  # there is no preference to follow


def test_pick_leaves_out_policies_that_break_constraints(tandem) -> None:
    before = recorded("runs/fleet")
    best = max(before["policies"], key=lambda policy: policy["objectives"]["accuracy"])
    best["violation_rate"]["all"] = 0.5
    Path("runs/fleet/front.json").write_text(json.dumps(before))
    _, out, _ = tandem("pick", "runs/fleet", "--prefer", "accuracy=1")
    assert f"Policy {best['index']} " not in out
    assert "1 policy with violations in more than 0.01 of the rounds excluded" in out
    for policy in before["policies"]:
        policy["violation_rate"]["all"] = 0.5
    Path("runs/fleet/front.json").write_text(json.dumps(before))
    assert "Warning" in tandem("pick", "runs/fleet")[1]


# runs


def test_runs_lists_every_run(tandem, runs: Path) -> None:
    listed = document(tandem("runs", "--json"))
    by_name = {run["name"]: run for run in listed["runs"]}
    assert set(by_name) == {"fleet", "paper"}
    record = json.loads((runs / "paper" / "run.json").read_text())
    paper = by_name["paper"]
    assert (paper["status"], paper["devices"], paper["seed"], paper["problem"]) == ("finished", 3, 0, None)
    for name in ("scenario", "algorithm", "preset", "rounds", "hypervolume", "policies", "wall_s", "created"):
        assert paper[name] == record[name]
    code, out, _ = tandem("runs")
    assert code == 0
    assert len(out.splitlines()) == 3
    for words in ("r-ppo", "default", "finished", f"{record['hypervolume']:.4g}", record["created"][:4]):
        assert words in out


def test_broken_runs_do_not_stop_the_listing(tandem, runs: Path) -> None:
    for name in ("cut", "unfinished", "robbed", "lost"):
        shutil.copytree(runs / "paper", runs / "more" / name)
    record = json.loads((runs / "paper" / "run.json").read_text())
    (runs / "more" / "cut" / "run.json").write_text('{"format": 1, "tan')
    (runs / "more" / "unfinished" / "run.json").write_text(json.dumps({**record, "status": "running"}))
    (runs / "more" / "robbed" / "policies.safetensors").unlink()
    (runs / "more" / "lost" / "run.json").unlink()
    (runs / "notes").mkdir()
    (runs / "notes" / "run.txt").write_text("not a run")
    listed = {run["name"]: run for run in document(tandem("runs", "runs", "--json"))["runs"]}
    assert {name: run["status"] for name, run in listed.items()} == {
        "fleet": "finished",
        "paper": "finished",
        "more/unfinished": "unfinished",
        "more/cut": "broken",
        "more/robbed": "broken",
        "more/lost": "broken",
    }
    assert "run.json" in listed["more/cut"]["problem"]
    assert "policies.safetensors" in listed["more/robbed"]["problem"]
    code, out, _ = tandem("runs", "runs")
    assert code == 0
    for name in ("cut", "robbed", "lost"):
        assert listed[f"more/{name}"]["problem"] in out


def test_runs_of_a_single_run_and_of_an_empty_folder(tandem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [run["name"] for run in document(tandem("runs", "runs/paper", "--json"))["runs"]] == ["paper"]
    Path("empty").mkdir()
    code, out, _ = tandem("runs", "empty")
    assert (code, out.count("\n")) == (0, 1)
    assert "tandem train" in out
    monkeypatch.chdir(tmp_path / "empty")  # where there is not even a folder for runs
    assert tandem("runs")[0] == 0
    assert document(tandem("runs", "--json"))["runs"] == []


# mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "runs/nowhere"], "there is no such run"),
        (["front", "runs"], "is not a run"),
        (["pick", "runs/nowhere"], "tandem runs"),
        (["evaluate", "runs/paper", "--set", "fleet.size=30"], "trained for 3 devices and cannot decide for 30"),
        (["evaluate", "runs/fleet", "--set", "fleet.sise=30"], "write 'size'"),
        (["evaluate", "runs/fleet", "--set", "fleet.size=none"], "whole number"),
        (["evaluate", "runs/fleet", "--set", "workload.request_rate_per_s=500"], "cannot be served"),
        (["evaluate", "runs/fleet", "--seeds", "0"], "--seeds"),
        (["evaluate", "runs/fleet", "--first-seed", "-1"], "--first-seed"),
        (["evaluate", "runs/fleet", "--json-file", "missing/found.json"], "--json-file missing/found.json"),
        (["evaluate", "runs/fleet", "--json-file", "runs"], "is a folder"),
        (["evaluate", "runs/fleet", "--json-file", "runs/fleet/run.json"], "is a file of a run"),
        (["front", "runs/fleet", "--csv", "runs/paper/front.json"], "is a file of a run"),
        (["front", "runs/fleet", "--sort", "acuracy"], "write 'accuracy'"),
        (["front", "runs/fleet", "--csv", "missing/front.csv"], "no folder missing"),
        (["front", "runs/fleet", "--figure", "front.doc"], ".png, .pdf or .svg"),
        (["pick", "runs/fleet", "--prefer", "acuracy=1"], "write 'accuracy'"),
        (["pick", "runs/fleet", "--prefer", "0.5,0.3,0.2"], "NAME=WEIGHT"),
        (["pick", "runs/fleet", "--prefer", ""], "NAME=WEIGHT"),
        (["pick", "runs/fleet", "--prefer", "accuracy=-1"], "negative"),
        (["pick", "runs/fleet", "--prefer", "accuracy=much"], "not a number"),
        (["pick", "runs/fleet", "--prefer", "accuracy=inf"], "not a number"),
        (["pick", "runs/fleet", "--prefer", "accuracy=1,accuracy=2"], "twice"),
        (["pick", "runs/fleet", "--prefer", "accuracy=0"], "every weight is 0"),
        (["pick", "runs/fleet", "--prefer", "accuracy=1e308,energy=1e308"], "too large"),
        (["pick", "runs/fleet", "--min-accuracy", "1.5"], "set --min-accuracy to that or less"),
        (["pick", "runs/fleet", "--max-latency", "0.001"], "set --max-latency to that or more"),
        (["pick", "runs/fleet", "--max-energy", "0"], "set --max-energy to that or more"),
        (["pick", "runs/fleet", "--max-energy", "nan"], "--max-energy is not a number"),
        (["pick", "runs/fleet", "--max-latency", "soon"], "--max-latency"),
        (["runs", "nowhere"], "is not a folder"),
        (["runs", "runs/paper/run.json"], "is not a folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(tandem, arguments: list[str], said: str) -> None:
    code, out, err = tandem(*arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["evaluate", "front", "pick"])
@pytest.mark.parametrize(("text", "said"), [("{", "is cut short"), ('{"hypervolume": NaN}', "contains NaN")])
def test_a_damaged_run_is_one_sentence(tandem, command: str, text: str, said: str) -> None:
    Path("runs/paper/front.json").write_text(text)
    code, out, err = tandem(command, "runs/paper")
    assert (code, out) == (2, "")
    assert err.startswith(f"tandem: runs/paper/front.json: {said}")
    assert err.count("\n") == 1


FILE_OPTIONS = [("front", "--csv"), ("front", "--figure"), ("evaluate", "--json-file")]


@pytest.mark.parametrize(("command", "option"), FILE_OPTIONS)
def test_only_regular_files_are_replaced(tandem, command: str, option: str) -> None:
    os.mkfifo("pipe.png")
    Path("null.png").symlink_to("/dev/null")
    for name, kind in (("pipe.png", "a pipe"), ("null.png", "a device"), ("/dev/null", "a device")):
        code, out, err = tandem(command, "runs/paper", option, name)
        assert (code, out) == (2, "")
        assert err == f"tandem: {option} {name}: is {kind}; name a regular file or a new one.\n"
    assert stat.S_ISFIFO(Path("pipe.png").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert Path("null.png").is_symlink()


def test_the_table_and_the_figure_of_a_front_are_two_files(tandem) -> None:
    code, out, err = tandem("front", "runs/fleet", "--csv", "both.png", "--figure", "./both.png")
    assert (code, out) == (2, "")
    assert err == "tandem: --csv and --figure both name both.png; name two files.\n"
    assert not Path("both.png").exists()


@pytest.mark.parametrize(("command", "option"), FILE_OPTIONS)
def test_places_that_cannot_be_written_to(tandem, command: str, option: str) -> None:
    with read_only_disk(Path()):
        _, out, err = tandem(command, "runs/paper", option, "new.png")
    assert (out, err) == (
        "",
        f"tandem: {option} new.png: cannot be written (Read-only file system); name another file.\n",
    )
    Path("elsewhere").mkdir()
    Path("link.png").symlink_to("elsewhere/new.png")
    assert tandem(command, "runs/paper", option, "link.png")[0] == 0
    assert Path("link.png").is_symlink()
    assert [path.name for path in Path("elsewhere").iterdir()] == ["new.png"]


@pytest.mark.parametrize(
    ("mean", "width", "said"),
    [
        (0.47301, 0.00421, "0.4730 ± 0.0042"),
        (12.3456, 0.31, "12.35 ± 0.31"),
        (1234.5, 56.7, "1234 ± 57"),
        (2.71194, 1e-9, "2.712 ± 0.000"),
        (0.5, 0.0, "0.5000 ± 0.0000"),
        (0.0, 0.0, "0.000 ± 0.000"),
        (0.5123456, None, "0.5123"),
    ],
)
def test_format_interval_shows_meaningful_digits(mean: float, width: float | None, said: str) -> None:
    assert format_interval(mean, width) == said


def test_a_narrow_terminal_gets_fewer_columns_and_complete_cells() -> None:
    rows = [{"name": "a-run", "stage": "initialisation", "value": "123456 ± 789"}]
    for width, shown in ((80, ["a-run", "initialisation", "123456 ± 789"]), (24, ["a-run", "123456 ± 789"])):
        out = Console(width=width, file=io.StringIO())
        print_table(out, rows, ["value"], ["stage"])
        text = out.file.getvalue()
        assert [cell for cell in rows[0].values() if cell in text] == shown
        assert ("stage" in text.splitlines()[0]) is (width == 80)
        assert "wider terminal" in text or width == 80


# as real processes


def test_json_alone_on_stdout() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandem", "evaluate", "runs/paper", "--seeds", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == "runs/paper"
    assert done.stderr.startswith("Evaluating ")


def test_a_mistake_is_no_stack_trace() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandem", "pick", "runs/paper", "--max-latency", "0.001"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tandem: runs/paper: no policy has latency at most 0.001 s")
    assert done.stderr.count("\n") == 1
