"""Policies that learn from estimated accuracy and are evaluated by measured accuracy: from trials to claims."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes import FakeExecutor
from tandem.api import open_run
from tandem.errors import InputError
from tandem.experiments import calibrate_scale, make_plan, reproduce
from tandem.experiments.figures.accuracy_mapping import best_in_each, reward_sources, trials
from tandem.experiments.plotting import COMPARED
from tandem.experiments.report import Report
from tandem.experiments.reward_source import RewardSource
from tandem.experiments.scale import Scale, load_scale
from tandem.experiments.task_calibration import MAPPINGS
from tandem.experiments.trial import RUN, Trial, read_result, trial_dir
from tandem.federated.build import build_system
from tandem.objectives import to_user_units
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs.evaluation import evaluate

SMOKE, FULL = load_scale("smoke"), load_scale("full")
FITTED = [RewardSource("digits", kind, (0.04, 100.0, 0.002), 0.005, 0.97, 2) for kind in MAPPINGS]
ON_DIGITS = SMOKE.for_task("digits", FITTED)
SMALL = SMOKE.model_copy(
    update={"size": 2, "tasks": {"digits": SMOKE.tasks["digits"].model_copy(update={"budget": 2000})}}
)


def fake_report(hypervolume: Callable[[Trial], float], out: Path, names: tuple[str, ...]) -> Report:
    return reproduce(make_plan(names, ON_DIGITS), out, FakeExecutor(hypervolume=hypervolume))


def verdicts(report: Report) -> dict[str, str]:
    return {row["id"]: row["verdict"] for row in report.claims()}


def test_trial_is_trained_on_the_mapping_and_evaluated_on_the_task() -> None:
    sources = (FITTED[1], FITTED[0].as_oracle())
    mapped, oracle = (ON_DIGITS.trial("c-moppo", 0, reward_source=source) for source in sources)
    assert mapped.scenario().accuracy.task is None
    measured = mapped.evaluation_scenario()
    assert measured is not None
    assert measured.accuracy.task is not None
    assert measured.accuracy.mapping == mapped.scenario().accuracy.mapping
    assert (measured.accuracy.mapping.kind, measured.accuracy.pretrained) == ("log-rational", 0.97)  # type: ignore[attr-defined]
    assert oracle.scenario() == oracle.evaluation_scenario()
    assert SMOKE.trial("c-moppo", 0).evaluation_scenario() is None


def test_top3_shares_its_trials_and_has_curves_only_where_they_are_drawn() -> None:
    own = trials(ON_DIGITS, ("c-moppo", "pc-ppo"))
    assert len(set(own)) == 2 * 4 * ON_DIGITS.seeds
    assert set(make_plan(["top3"], ON_DIGITS, ["c-moppo", "pc-ppo"]).trials()) < set(own)
    points = {trial.algorithm: trial.curve_points for trial in make_plan(["top3"], ON_DIGITS).trials()}
    assert points == {name: ON_DIGITS.curve_points if name in ("c-moppo", "pc-ppo") else 1 for name in COMPARED}
    assert ON_DIGITS.curve_points > 1


def test_top3_trains_longer_where_an_oracle_is_expensive(tmp_path: Path) -> None:
    sources = [replace(one, task="cifar10") for one in FITTED]
    scale = FULL.for_task("cifar10", sources)
    table, mapped = make_plan(["top3"], scale).trials(), make_plan(["accuracy-mapping"], scale).trials()
    assert {trial.changes["budget"] for trial in table} == {FULL.budget}
    assert {trial.changes["budget"] for trial in mapped} == {scale.budget}
    assert scale.budget < FULL.budget
    assert {trial.reward_source for trial in table} == {sources[0]}
    report = reproduce(make_plan(["top3"], scale), tmp_path, FakeExecutor())
    assert f"{FULL.budget:,} rounds" in report.sections[0].about


def papers_hypervolume(trial: Trial) -> float:
    """The oracle slightly ahead, all mappings alike."""
    assert trial.reward_source is not None
    return 60.0 if trial.reward_source.oracle else 58.5 + 0.1 * (trial.reward_source.mapping == MAPPINGS[2])


@pytest.fixture(scope="module")
def papers_report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    out = tmp_path_factory.mktemp("reproduced")
    return fake_report(papers_hypervolume, out, ("all",)), out


def test_results_as_in_the_paper_agree(papers_report: tuple[Report, Path]) -> None:
    report, out = papers_report
    found = verdicts(report)
    assert found["mapping-c-moppo-gap"] == found["mapping-c-moppo-spread"] == "agrees"
    assert found["mapping-c-moppo-faster"] == "open"  # all curves have the same shape
    assert found["mapping-pc-ppo-gap"] == "agrees"
    assert "top3-c-moppo-accuracy" in found
    rows = list(csv.DictReader((out / "accuracy-mapping.csv").open()))
    assert {row["reward_source"] for row in rows} == {*MAPPINGS, "oracle"}
    assert len(rows) == 2 * 4 * ON_DIGITS.seeds * ON_DIGITS.curve_points
    for name in ("accuracy-mapping.png", "accuracy-mapping.svg", "accuracy-mapping-estimates.csv", "top3.csv"):
        assert (out / name).stat().st_size > 100


def test_extremes_of_fronts_are_written(papers_report: tuple[Report, Path]) -> None:
    assert list(best_in_each(np.array([[0.5, 2.0, 9.0], [0.7, 3.0, 4.0], [0.6, 2.5, 1.0]]))) == [0.7, 2.0, 1.0]
    _, out = papers_report
    rows = list(csv.DictReader((out / "accuracy-mapping-ends.csv").open()))
    assert len(rows) == 2 * 4 * ON_DIGITS.seeds
    result = read_result(ON_DIGITS.trial("c-moppo", 0, reward_source=FITTED[0].as_oracle()), out)
    assert result is not None
    [row] = [r for r in rows if (r["algorithm"], r["reward_source"], r["seed"]) == ("c-moppo", "oracle", "0")]
    assert float(row["best_accuracy"]) == pytest.approx(result.front[:, 0].max())
    assert float(row["best_latency_s"]) == pytest.approx(result.front[:, 1].min())
    assert float(row["best_energy_j"]) == pytest.approx(result.front[:, 2].min())


def test_results_unlike_the_paper_disagree(tmp_path: Path) -> None:
    def far_apart(trial: Trial) -> float:
        assert trial.reward_source is not None
        return 60.0 if trial.reward_source.oracle else 50.0 + 2 * MAPPINGS.index(trial.reward_source.mapping)

    report = fake_report(far_apart, tmp_path, ("accuracy-mapping",))
    found = verdicts(report)
    assert found["mapping-c-moppo-gap"] == found["mapping-c-moppo-spread"] == "disagrees"
    numbers = {row["id"]: row["ours"] for row in report.claims()}["mapping-c-moppo-spread"]
    assert numbers == "gap of log-exponential to power-law-exponential: 8.00 [8.00, 8.00] %"


def test_experiments_are_refused_without_or_with_a_task() -> None:
    with pytest.raises(InputError, match=r"devices: cannot be measured on a task; leave --task out"):
        make_plan(["devices"], ON_DIGITS)
    with pytest.raises(InputError, match=r"accuracy-mapping: needs a task; add one"):
        make_plan(["accuracy-mapping"], SMOKE)
    with pytest.raises(InputError, match=r"--task cifar10: not available at the scale cpu; use --scale smoke or full"):
        calibrate_scale(load_scale("cpu"), "cifar10")
    assert make_plan([], ON_DIGITS).algorithms[:2] == ("c-moppo", "pc-ppo")


@pytest.fixture(scope="module")
def on_digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scale, Path]:
    """A fleet of two, calibrated for real."""
    out = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(out / "cache"))
        (out / "trials").mkdir()
        return calibrate_scale(SMALL, "digits", out=out), out


@pytest.mark.slow
def test_calibration_is_reused(on_digits: tuple[Scale, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scale, out = on_digits
    written = json.loads((out / "calibration-digits" / "calibration.json").read_text())
    fits = {fit["kind"]: (tuple(fit["kappa"]), fit["model_decay_per_s"]) for fit in written["fits"]}
    assert {one.mapping: (one.kappa, one.decay_per_s) for one in scale.reward_sources} == fits
    monkeypatch.setattr("tandem.experiments.task_calibration.calibrate", None)
    assert calibrate_scale(SMALL, "digits", out=out) == scale
    with pytest.raises(InputError, match=r"calibrated for another fleet than that of this scale"):
        calibrate_scale(SMOKE, "digits", out=out)


@pytest.mark.soak
def test_results_are_the_measured_values_of_the_delivered_policies(on_digits: tuple[Scale, Path]) -> None:
    """One mapping and the oracle, two seeds in one program each."""
    scale, out = on_digits
    scale = scale.model_copy(update={"reward_sources": scale.reward_sources[:1]})
    plan = make_plan(["accuracy-mapping"], scale, ["pc-ppo"])
    report = reproduce(plan, out, seeds_per_job=2)
    assert report.claims()[0]["ours"].startswith("gap of log-exponential:")
    for source in reward_sources(scale):
        trial = scale.trial("pc-ppo", 1, reward_source=source)
        result, run = read_result(trial, out), open_run(trial_dir(trial, out) / RUN)
        scenario = trial.evaluation_scenario()
        assert result is not None
        assert scenario is not None
        seeds = FINAL_EVALUATION_SEEDS[: source.episodes]
        again = evaluate(build_system(scenario), run.policies(), run.front, seeds, run.config.tolerance).front
        np.testing.assert_allclose(result.front, again.objectives, rtol=2e-3)
        assert result.curve[-1, 1] == pytest.approx(again.hypervolume, rel=2e-3)
        assert len(result.curve) == scale.curve_points
        assert result.fidelity is not None
        assert result.fidelity["rounds"] > 100
        assert 0 < result.fidelity["rmse"] < 1
        assert np.all(to_user_units(again.points) > -1)
    again_report = reproduce(plan, out, FakeExecutor(fails=lambda trial: True))  # everything is finished already
    assert verdicts(again_report) == verdicts(report)
