"""Fronts evaluated on fresh seeds, on other fleets and beside heuristics."""

import json
import os
from pathlib import Path

import jax
import moocore
import numpy as np
import pytest

import tandem
from tandem.errors import InputError
from tandem.feel.constraints import CONSTRAINTS
from tandem.policy import evaluate as policy_evaluation
from tandem.rng import EVALUATION_SEED_START, FINAL_EVALUATION_SEEDS
from tandem.runs import Run, simulate
from tandem.runs.evaluation import Evaluation, evaluate, evaluate_to, with_overrides

SEEDS = range(EVALUATION_SEED_START, EVALUATION_SEED_START + 5)


def evaluate_run(run: Run, **more) -> Evaluation:
    return evaluate(run.system(), run.policies(), run.front, SEEDS, run.config.tolerance, **more)


@pytest.fixture(scope="module")
def evaluation(population_run: Run) -> Evaluation:
    return evaluate_run(population_run, heuristics=True)


def test_a_policy_gives_the_same_result_alone_and_among_others(population_run: Run, evaluation: Evaluation) -> None:
    assert len(evaluation.front.policies) == len(population_run.front.policies) > 2
    for index, record in enumerate(evaluation.front.policies):
        alone = simulate(population_run.system(), population_run.policy(index), evaluation.seeds)
        np.testing.assert_allclose(evaluation.rewards[index], alone.reward, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(record.objectives, alone.objectives.mean(axis=0), rtol=1e-4)
        widths = list(alone.summary()["objectives_half_width_95"].values())
        np.testing.assert_allclose(record.half_width, widths, rtol=1e-2, atol=1e-6)
        assert record.violation_rate == pytest.approx(alone.violation_rate.mean(), abs=1e-6)
        assert record.discarded_share == pytest.approx(alone.summary()["discarded_share"], abs=1e-6)
        trained = population_run.front.policies[index]
        assert (record.index, record.preference, record.stage) == (index, trained.preference, trained.stage)


def test_seeds_are_not_those_of_the_run(population_run: Run, evaluation: Evaluation) -> None:
    assert set(evaluation.seeds).isdisjoint(FINAL_EVALUATION_SEEDS)
    assert not np.allclose(evaluation.front.points, population_run.front.points, rtol=1e-6)


def test_hypervolume_is_that_of_the_mean_rewards(evaluation: Evaluation) -> None:
    expected = moocore.hypervolume(evaluation.rewards.mean(axis=1), ref=[0, -5, -44], maximise=True)
    summary = evaluation.summary()
    assert summary["hypervolume"] == pytest.approx(float(expected))
    low, high = summary["hypervolume_interval_95"]
    assert low <= summary["hypervolume"] <= high
    assert low < high


def test_summary_is_a_json_document(evaluation: Evaluation) -> None:
    summary = json.loads(json.dumps(evaluation.summary(), allow_nan=False))
    assert summary["policies_played"] == len(summary["policies"])
    assert 1 <= summary["cardinality"] <= summary["policies_played"]
    assert 0 < summary["expected_utility"] < 1
    assert set(summary["worst_violation_rate"]) == {"all", *CONSTRAINTS}
    assert set(summary["landmarks"]) == {"highest accuracy", "lowest latency", "lowest energy", "knee"}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [2 * 3, 2 * 3 * 5])
def test_batches_change_no_result(
    batch: int, population_run: Run, evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of two seeds (5 = 2 + 2 + 1) of single policies, and of two policies, the last batch being filled up."""
    monkeypatch.setattr(policy_evaluation, "MAX_BATCH", {jax.default_backend(): batch})
    again = evaluate_run(population_run)
    np.testing.assert_allclose(again.rewards, evaluation.rewards, rtol=1e-4, atol=1e-6)


def test_progress_counts_policies(population_run: Run, evaluation: Evaluation) -> None:
    reported: list[tuple[int, int]] = []
    evaluate_run(population_run, on_progress=lambda progress: reported.append((progress.done, progress.total)))
    count = len(population_run.front.policies)
    assert reported[0] == (0, count)
    assert reported[-1] == (count, count)
    assert reported == sorted(reported)


def test_heuristics_are_dominated_or_add_hypervolume(population_run: Run, evaluation: Evaluation) -> None:
    assert [record.name for record in evaluation.heuristics] == list(tandem.HEURISTICS)
    for record in evaluation.heuristics:
        alone = simulate(population_run.system(), tandem.HEURISTICS[record.name](), evaluation.seeds)
        reward = alone.reward.mean(axis=0)
        dominated = any((point >= reward).all() for point in evaluation.front.points)
        assert record.outside is not dominated
        points = np.vstack([evaluation.front.points, reward])
        volume = float(moocore.hypervolume(points, ref=[0, -5, -44], maximise=True))
        assert record.adds == pytest.approx(volume - evaluation.front.hypervolume, abs=1e-5)
        np.testing.assert_allclose(record.objectives, alone.objectives.mean(axis=0))


def test_policies_and_heuristics_count_only_within_the_tolerance(population_run: Run, evaluation: Evaluation) -> None:
    run, kept = population_run, np.flatnonzero(evaluation.front.violation_rate == 0)
    strict = evaluate(run.system(), run.policies(), run.front, SEEDS, 0.0, heuristics=True)
    assert 0 < strict.safe == len(kept) < len(strict.front.policies)
    points = strict.rewards[kept].mean(axis=1)
    assert strict.front.hypervolume == pytest.approx(
        float(moocore.hypervolume(points, ref=[0, -5, -44], maximise=True))
    )
    rates = [record.violation_rate for record in strict.heuristics]
    assert min(rates) == 0 < max(rates)
    for record in strict.heuristics:
        reward = simulate(run.system(), tandem.HEURISTICS[record.name](), SEEDS).reward.mean(axis=0)
        assert record.outside is (record.violation_rate == 0 and not (points >= reward).all(axis=1).any())
        assert record.outside or record.adds == 0


@pytest.mark.parametrize("size", [5, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_deep_set_network_decides_for_fleets_of_other_sizes(conditioned_run: Run, size: int) -> None:
    scenario, system = with_overrides(conditioned_run, [f"fleet.size={size}", "limits.overflow=discard"])
    assert scenario.fleet.size == system.size == size
    evaluation = evaluate(system, conditioned_run.policies(), conditioned_run.front, SEEDS[:2], 0.01)
    alone = simulate(system, conditioned_run.policy(1), evaluation.seeds)
    np.testing.assert_allclose(evaluation.rewards[1], alone.reward, rtol=1e-4)
    assert evaluation.safe == len(evaluation.front.policies)  # the shield works there too


def test_without_overrides_the_system_is_that_of_the_training(conditioned_run: Run) -> None:
    scenario, system = with_overrides(conditioned_run, [])
    assert scenario == conditioned_run.scenario
    assert system.size == 3


def test_results_on_a_changed_scenario_are_written(population_run: Run, tmp_path: Path) -> None:
    changes = ["workload.request_rate_per_s=4", "rounds=5"]  # of no shape that the network depends on
    asked: list[object] = []

    def best_known(scenario, reference) -> float:
        asked.append((scenario.rounds, reference))
        return 70.0

    path = tmp_path / "evaluation.json"
    evaluation, document = evaluate_to(path, population_run, SEEDS[:1], overrides=changes, best_known=best_known)
    assert json.loads(path.read_text()) == document
    assert asked == [(5, population_run.front.reference)]
    assert (document["rounds"], document["changes"], document["best_known_hypervolume"]) == (5, changes, 70.0)
    assert document["hypervolume"] == evaluation.front.hypervolume
    assert document["hypervolume_when_trained"] == population_run.front.hypervolume
    assert document["hypervolume_interval_95"] is None  # of a single seed


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_evaluated(
    population_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.runs.evaluation.evaluate", None)
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "is a pipe"), ("pipe/below", "Not a directory")):
        with pytest.raises(InputError, match=f"{name}: .*{why}"):
            evaluate_to(tmp_path / name, population_run, SEEDS)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("fleet.size=30", "trained for 3 devices and cannot decide for 30"),
        ("observation=minimal", "'full' observation"),
        ("fleet.sise=30", "'size'"),
        ("fleet.size", "fleet.size"),
    ],
)
def test_overrides_that_do_not_fit_are_refused(population_run: Run, override: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        with_overrides(population_run, [override])
