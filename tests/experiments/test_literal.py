"""The experiment ``literal`` and the paper's versions of baselines, from fake results and from one real training."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fakes import FakeExecutor
from tandem.errors import InputError
from tandem.experiments.claims import combine
from tandem.experiments.executors import SerialExecutor
from tandem.experiments.figures import literal, pareto_fronts
from tandem.experiments.plan import make_plan, reproduce, select_experiments
from tandem.experiments.plotting import COMPARED
from tandem.experiments.registry import EXPERIMENTS, PAPER_EXPERIMENTS
from tandem.experiments.report import Report
from tandem.experiments.scale import SCALES, load_scale
from tandem.experiments.sweep import sweep
from tandem.experiments.tables import read_data
from tandem.experiments.trial import RUN, Trial, trial_dir
from tandem.experiments.versions import CREDIT_VERSIONS, PAPER_VERSIONS, Version
from tandem.runs.run import open_run

SMOKE, CPU, FULL = map(load_scale, SCALES)
EASY, HARD = (hardness.name for hardness in SMOKE.literal.hardness)
ORDER = ("c-moppo", "pg-morl", "moea-d", "s-ppo", "r-ppo")  # from best to worst in the paper


def hypervolume(trial: Trial) -> float:
    """The paper's order in the hard setting; in the easy one S-PPO is first. PC-PPO is always above C-MOPPO."""
    rank = ORDER.index(trial.algorithm) if trial.algorithm in ORDER else -1
    easy = dict(trial.overrides).get("training.iterations") == 1
    return 60.0 - 2 * rank + (20 if easy and trial.algorithm == "s-ppo" else 0) + 0.01 * trial.seed


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    out = tmp_path_factory.mktemp("literal")
    return reproduce(make_plan(["literal"], SMOKE), out, FakeExecutor(hypervolume=hypervolume), 2), out


def test_trials_have_no_shield_and_cover_the_grid_with_an_equal_budget() -> None:
    for scale, count in ((SMOKE, 2), (CPU, 3), (FULL, 9)):
        trials = literal.trials(scale, COMPARED)
        rows = len(COMPARED) + len(CREDIT_VERSIONS)
        assert len(set(trials)) == len(trials) == rows * count * scale.seeds
        assert {(trial.changes["shield"], trial.changes["budget"]) for trial in trials} == {(False, scale.budget)}
        assert {trial.curve_points for trial in trials} == {1}
        assert len({(trial.size, trial.overrides) for trial in trials}) == count
        for trial in trials[:: scale.seeds]:
            assert trial.scenario().limits.overflow == "violation"


def test_hardness_of_the_full_scale() -> None:
    found = {
        (trial.size, trial.scenario().training.iterations, trial.scenario().limits.data_max)
        for trial in literal.trials(FULL, ["s-ppo"])
    }
    assert found == {(size, *hardness) for size in (10, 20, 30) for hardness in ((1, 400), (2, 300), (3, 200))}


def test_ranking_is_checked_in_every_setting(written: tuple[Report, Path]) -> None:
    report, _ = written
    verdicts = {row["id"]: row["verdict"] for row in report.claims()}
    assert len(verdicts) == 2 * len(literal.RANKING) + 1
    hard = {name: verdict for name, verdict in verdicts.items() if "u-3" in name}
    assert set(hard.values()) == {"agrees"}
    assert verdicts["literal-2-devices-u-1-d-max-400-c-moppo-above-s-ppo"] == "disagrees"
    assert verdicts["literal-2-devices-u-1-d-max-400-c-moppo-above-pg-morl"] == "agrees"
    assert verdicts["literal-pc-ppo-at-least-c-moppo"] == "agrees"
    assert (
        f"ranking holds for 1 of 2 settings (2 devices, {HARD}), does not hold for 1 of 2 settings (2 devices, {EASY})."
        in report.sections[0].about
    )


def test_verdict_on_several_claims() -> None:
    assert combine(["agrees", "agrees"]) == "agrees"
    assert combine(["agrees", "open"]) == "open"
    assert combine(["open", "disagrees", "agrees"]) == "disagrees"
    assert combine([]) == "open"


def test_table_has_a_row_per_trial_and_renders_the_same_section(written: tuple[Report, Path], tmp_path: Path) -> None:
    report, out = written
    rows = list(csv.DictReader((out / "literal.csv").open()))
    versions = list(csv.DictReader((out / "literal-versions.csv").open()))
    assert len(rows) + len(versions) == len(literal.trials(SMOKE, COMPARED))
    assert {"algorithm", "hardness", "size", "seed", "policies", *literal.METRICS} == set(rows[0]) == set(versions[0])
    again = EXPERIMENTS["literal"].section(SMOKE, read_data(out, ["literal", "literal-versions"]), tmp_path)
    assert again == report.sections[0]
    assert (tmp_path / "literal.png").read_bytes() == (out / "literal.png").read_bytes()
    volumes, training, delivered = again.tables
    assert volumes.headings == ("", f"2 devices, {EASY}", f"2 devices, {HARD}")
    names = ["PC-PPO", "C-MOPPO", "PG-MORL", "MOEA/D", "S-PPO", "R+PPO", "NSGA-II"]
    assert [row[0] for row in volumes.rows] == [*names, *(version.label for version in CREDIT_VERSIONS)]
    assert training.rows[0][1:] == ("0.0%, 0.0%",) * 2
    assert delivered.rows[0][1:] == ("0.0%, 8.0 of 8.0",) * 2


def test_literal_is_run_by_name_only_and_not_on_a_task() -> None:
    assert "literal" not in [one.name for one in PAPER_EXPERIMENTS]
    assert "literal" not in [one.name for one in select_experiments(["all"], False)]
    with pytest.raises(InputError, match=r"literal: cannot be measured on a task"):
        select_experiments(["literal"], True)


def test_claims_about_missing_algorithms_are_open(tmp_path: Path) -> None:
    report = reproduce(make_plan(["literal"], SMOKE, ["s-ppo"]), tmp_path, FakeExecutor())
    assert {row["verdict"] for row in report.claims()} == {"open"}
    assert "holds for 0 of 2 settings, is open for 2 of 2 settings" in report.sections[0].about


@pytest.mark.slow
def test_training_without_a_shield_has_violations(tmp_path: Path) -> None:
    quick = {"budget": 3000, "update_epochs": 1, "num_minibatches": 1}
    [trial, *_] = [one for one in literal.trials(SMOKE, ["s-ppo"]) if dict(one.overrides)["training.iterations"] == 3]
    trial = Trial.from_document({**trial.document(), "config": {**trial.changes, **quick}})
    result = sweep([trial], tmp_path, SerialExecutor())[trial]
    run = open_run(trial_dir(trial, tmp_path) / RUN)
    assert not run.scenario.shield.enabled
    assert (run.scenario.training.iterations, run.scenario.limits.overflow) == (3, "violation")
    assert 0 < result.training_violation_rate <= 1
    assert 0 <= result.policies_within_tolerance <= len(result.front)


# The paper's versions of baselines.
def test_versions_are_rows_beside_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = Version("S-PPO with one snapshot", "s-ppo", (("archive_size", 1),))
    missing = Version("PG-MORL with one task", "pg-morl", (("num_tasks", 1),))
    monkeypatch.setattr(pareto_fronts, "PAPER_VERSIONS", (small, missing))

    def smaller(trial: Trial) -> float:
        return 30.0 if trial.changes["archive_size"] == 1 else 60.0

    plan = make_plan(["pareto-fronts"], SMOKE, ["s-ppo", "r-ppo"])
    assert len(plan.trials()) == 3 * SMOKE.seeds
    report = reproduce(plan, tmp_path, FakeExecutor(hypervolume=smaller))
    ours, paper = report.sections[0].tables
    assert [row[0] for row in ours.rows] == ["S-PPO", "R+PPO"]
    [row] = paper.rows
    assert row[:3] == ("S-PPO with one snapshot", "30.0 [30.0, 30.0]", "-50.0 [-50.0, -50.0] %")
    stored = read_data(tmp_path, ["pareto-fronts", "pareto-fronts-summary", "pareto-fronts-versions"])
    assert EXPERIMENTS["pareto-fronts"].section(SMOKE, stored, tmp_path) == report.sections[0]


def test_versions_name_hyperparameters_that_exist() -> None:
    for version in (*PAPER_VERSIONS, *CREDIT_VERSIONS):
        assert len(version.trials(SMOKE)) == SMOKE.seeds
        assert set(version.trials(SMOKE)).isdisjoint(SMOKE.default_trials([version.algorithm]))
