"""Accuracy that is estimated where policies learn and measured where they are judged: from cells to statements."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeExecutor
from tandem.api import open_run
from tandem.errors import InputError
from tandem.experiments import calibrate_scale, make_plan, reproduce
from tandem.experiments.figures.accuracy_mapping import _faster, best_in_each, reward_sources, total_decrease, trials
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


def pretended(volume: Any, out: Path, names: tuple[str, ...] = ("accuracy-mapping",)) -> Report:
    return reproduce(make_plan(names, ON_DIGITS), out, FakeExecutor(hypervolume=volume))


def verdicts(report: Report) -> dict[str, str]:
    return {one.stated: one.verdict for section in report.sections for one in section.claims}


def test_a_mapping_is_trained_on_and_the_task_evaluation_scenario() -> None:
    mapped, oracle = (ON_DIGITS.trial("c-moppo", 0, reward_source=one) for one in (FITTED[1], FITTED[0].as_oracle()))
    assert mapped.scenario().accuracy.task is None
    measured = mapped.evaluation_scenario()
    assert measured is not None
    assert measured.accuracy.task is not None
    assert measured.accuracy.mapping == mapped.scenario().accuracy.mapping
    assert (measured.accuracy.mapping.kind, measured.accuracy.pretrained) == ("log-rational", 0.97)  # type: ignore[attr-defined]
    assert oracle.scenario() == oracle.evaluation_scenario()
    assert SMOKE.trial("c-moppo", 0).evaluation_scenario() is None


def test_the_table_of_the_three_best_shares_its_cells() -> None:
    own = trials(ON_DIGITS, ("c-moppo", "pc-ppo"))
    assert len(set(own)) == 2 * 4 * ON_DIGITS.seeds
    assert set(make_plan(["top3"], ON_DIGITS, ["c-moppo", "pc-ppo"]).trials()) < set(own)
    # Nobody draws the course of the others, and measuring costs.
    marks = {cell.algorithm: cell.curve_points for cell in make_plan(["top3"], ON_DIGITS).trials()}
    assert marks == {name: ON_DIGITS.curve_points if name in ("c-moppo", "pc-ppo") else 1 for name in COMPARED}
    assert ON_DIGITS.curve_points > 1


def test_where_rounds_of_an_oracle_are_dear_the_table_learns_longer(tmp_path: Path) -> None:
    grounds = [replace(one, task="cifar10") for one in FITTED]
    scale = FULL.for_task("cifar10", grounds)
    table, mapped = make_plan(["top3"], scale).trials(), make_plan(["accuracy-mapping"], scale).trials()
    assert {cell.changes["budget"] for cell in table} == {FULL.budget}
    assert {cell.changes["budget"] for cell in mapped} == {scale.budget}
    assert scale.budget < FULL.budget
    assert {cell.reward_source for cell in table} == {grounds[0]}
    report = reproduce(make_plan(["top3"], scale), tmp_path, FakeExecutor())
    assert "unless a section says otherwise" in report.facts[0]
    assert f"{FULL.budget:,} rounds" in report.sections[0].about


def as_the_paper_has_it(cell: Trial) -> float:
    """The oracle a little ahead, all mappings alike."""
    assert cell.reward_source is not None
    return 60.0 if cell.reward_source.oracle else 58.5 + 0.1 * (cell.reward_source.mapping == MAPPINGS[2])


def test_what_is_as_in_the_paper_agrees(tmp_path: Path) -> None:
    said = verdicts(pretended(as_the_paper_has_it, tmp_path, ("all",)))
    assert said["C-MOPPO on mappings ends less than 5% below its oracle."] == "agrees"
    assert said["C-MOPPO on mappings ends within 1.31%, whichever it is."] == "agrees"
    assert said["C-MOPPO converges faster on mappings than its oracle."] == "open"  # curves of one shape
    assert said["Ours: Tandem on mappings ends less than 5% below its oracle."] == "agrees"
    assert "C-MOPPO has the best accuracy of all (89.1 %)." in said
    rows = list(csv.DictReader((tmp_path / "accuracy-mapping.csv").open()))
    assert {row["learned_from"] for row in rows} == {*MAPPINGS, "oracle"}
    assert len(rows) == 2 * 4 * ON_DIGITS.seeds * ON_DIGITS.curve_points
    for name in ("accuracy-mapping.png", "accuracy-mapping.svg", "accuracy-mapping-estimates.csv", "top3.csv"):
        assert (tmp_path / name).stat().st_size > 100


def test_the_ends_of_fronts_are_told(tmp_path: Path) -> None:
    assert list(best_in_each(np.array([[0.5, 2.0, 9.0], [0.7, 3.0, 4.0], [0.6, 2.5, 1.0]]))) == [0.7, 2.0, 1.0]
    report = pretended(as_the_paper_has_it, tmp_path)
    rows = list(csv.DictReader((tmp_path / "accuracy-mapping-ends.csv").open()))
    assert len(rows) == 2 * 4 * ON_DIGITS.seeds
    one = ON_DIGITS.trial("c-moppo", 0, reward_source=FITTED[0].as_oracle())
    result = read_result(one, tmp_path)
    assert result is not None
    [found] = [r for r in rows if (r["algorithm"], r["learned_from"], r["seed"]) == ("c-moppo", "oracle", "0")]
    assert float(found["best_accuracy"]) == pytest.approx(result.front[:, 0].max())
    assert float(found["best_latency_s"]) == pytest.approx(result.front[:, 1].min())
    assert float(found["best_energy_j"]) == pytest.approx(result.front[:, 2].min())
    assert [table.title for table in report.sections[0].tables].count(
        "The ends of the fronts, by measured accuracy"
    ) == 1


def test_what_is_not_disagrees(tmp_path: Path) -> None:
    def far_apart(cell: Trial) -> float:
        assert cell.reward_source is not None
        return 60.0 if cell.reward_source.oracle else 50.0 + 2 * MAPPINGS.index(cell.reward_source.mapping)

    report = pretended(far_apart, tmp_path)
    said = verdicts(report)
    assert said["C-MOPPO on mappings ends less than 5% below its oracle."] == "disagrees"
    assert said["C-MOPPO on mappings ends within 1.31%, whichever it is."] == "disagrees"
    found = {one.stated: one.found for one in report.sections[0].claims}
    assert (
        "power-law-exponential and log-exponential, by 8.00"
        in found["C-MOPPO on mappings ends within 1.31%, whichever it is."]
    )


def test_who_converges_faster_is_open_if_most_did_before_anybody_looked() -> None:
    slow, fast = (np.array([[100, start, 0], [200, 55.0, 0], [300, 60.0, 0]]) for start in (30.0, 54.0))
    early = np.array([[100, 59.0, 0], [200, 60.0, 0], [300, 60.0, 0]])
    assert (
        _faster("", {"a": [fast, fast]}, [slow, slow]).verdict == "open"
    )  # both between the second mark and the third
    late = np.array([[100, 30.0, 0], [200, 40.0, 0], [300, 60.0, 0]])
    assert _faster("", {"a": [slow, slow]}, [late, late]).verdict == "agrees"
    assert _faster("", {"a": [late, late]}, [slow, slow]).verdict == "disagrees"
    unknown = _faster("", {"a": [early, early]}, [early, late])
    assert unknown.verdict == "open"
    assert "3 of 4 trainings" in unknown.found


def test_falls_by_hand() -> None:
    curve = np.array([[100, 50.0, 0], [200, 60.0, 0], [300, 55.0, 0], [400, 40.0, 0], [500, 50.0, 0]])
    assert total_decrease(curve) == pytest.approx(20 / 50)
    assert total_decrease(curve[:2]) == 0


def test_what_goes_with_a_task_and_what_without() -> None:
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


def test_a_calibration_is_kept(on_digits: tuple[Scale, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scale, out = on_digits
    written = json.loads((out / "calibration-digits" / "calibration.json").read_text())
    fits = {fit["kind"]: (tuple(fit["kappa"]), fit["model_decay_per_s"]) for fit in written["fits"]}
    assert {one.mapping: (one.kappa, one.decay_per_s) for one in scale.reward_sources} == fits
    monkeypatch.setattr("tandem.experiments.task_calibration.calibrate", None)
    assert calibrate_scale(SMALL, "digits", out=out) == scale
    with pytest.raises(InputError, match=r"calibrated for another fleet than that of this scale"):
        calibrate_scale(SMOKE, "digits", out=out)


def test_from_calibration_to_report(on_digits: tuple[Scale, Path]) -> None:
    """One mapping and the oracle, two seeds in one program each: what is delivered is what the truth says of it."""
    scale, out = on_digits
    scale = scale.model_copy(update={"reward_sources": scale.reward_sources[:1]})
    what = make_plan(["accuracy-mapping"], scale, ["pc-ppo"])
    report = reproduce(what, out, seeds_per_job=2)
    assert "Behind it are log-exponential" in report.sections[0].claims[0].found
    for ground in reward_sources(scale):
        cell = scale.trial("pc-ppo", 1, reward_source=ground)
        result, run = read_result(cell, out), open_run(trial_dir(cell, out) / RUN)
        truth = cell.evaluation_scenario()
        assert result is not None
        assert truth is not None
        seeds = FINAL_EVALUATION_SEEDS[: ground.episodes]
        again = evaluate(build_system(truth), run.policies(), run.front, seeds, run.config.tolerance).front
        np.testing.assert_allclose(result.front, again.objectives, rtol=2e-3)
        assert result.curve[-1, 1] == pytest.approx(again.hypervolume, rel=2e-3)
        assert len(result.curve) == scale.curve_points
        assert result.fidelity is not None
        assert result.fidelity["rounds"] > 100
        assert 0 < result.fidelity["rmse"] < 1
        assert np.all(to_user_units(again.points) > -1)
    again_out = reproduce(what, out, FakeExecutor(fails=lambda trial: True))  # everything is finished already
    assert verdicts(again_out) == verdicts(report)
