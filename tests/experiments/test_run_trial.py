"""Real trainings in a sweep: one by one and several in a program, resumed, and on a Ray cluster of two nodes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import RecordingCallback
from tandem.experiments import make_plan, reproduce
from tandem.experiments.executors import RayExecutor, SerialExecutor
from tandem.experiments.run_trial import training_violation_rates
from tandem.experiments.scale import load_scale
from tandem.experiments.sweep import JobOutcome, sweep
from tandem.experiments.trial import RUN, Trial, TrialResult, trial_dir
from tandem.objectives import OBJECTIVE_KEYS, to_maximised
from tandem.pareto import hypervolume, nondominated_indices
from tandem.rng import REFERENCE_FRONT_SEEDS
from tandem.runs.learning_curve import CURVE
from tandem.runs.run import open_run
from tandem.runs.simulation import simulate
from tandem.runs.trainer import resume, train

SMOKE = load_scale("smoke")
QUICK = {"budget": 3000, "update_epochs": 1, "num_minibatches": 1}
CONFIG = tuple(sorted({**SMOKE.trial("s-ppo", 0).changes, **QUICK}.items()))
TRIALS = [Trial("s-ppo", seed, size=2, config=CONFIG, curve_points=2) for seed in range(4)]
Serial = tuple[dict[Trial, TrialResult], Path]


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Serial:
    """All trials, one by one in this process."""
    out = tmp_path_factory.mktemp("serial")
    return sweep(TRIALS, out, SerialExecutor()), out


def document(result: TrialResult) -> dict[str, Any]:
    return {**result.document(), "wall_s": None}


@pytest.mark.slow
def test_result_is_that_of_its_run(serial: Serial) -> None:
    results, out = serial
    for trial, result in results.items():
        run = open_run(out / "trials" / trial.name / "run")
        assert (run.record.algorithm, run.record.seed, run.scenario.fleet.size) == ("s-ppo", trial.seed, 2)
        assert result.rounds == run.record.rounds <= QUICK["budget"]
        assert result.hypervolume == run.front.hypervolume
        np.testing.assert_array_equal(result.front, run.front.objectives)
        assert len(result.curve) == trial.curve_points
        assert result.curve[-1].tolist() == [result.rounds, result.hypervolume, result.sparsity]
        assert np.all(np.diff(result.latency_s) >= 0)
        assert 0 < result.latency_s[0] < result.latency_s[-1] < 20
        assert result.policies_within_tolerance == len(result.front)
        assert result.violation_rate == result.training_violation_rate == result.late_violation_rate == 0  # the shield


def test_violation_rates_of_a_training_are_weighted_by_rounds(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    path.write_text("stage,rounds,violation_rate\na,500,0.4\na,800,0.2\nb,950,0.1\nb,1000,0.04\n")
    whole, late = training_violation_rates(path)
    assert whole == pytest.approx((500 * 0.4 + 300 * 0.2 + 150 * 0.1 + 50 * 0.04) / 1000)
    assert late == pytest.approx((50 * 0.1 + 50 * 0.04) / 100)  # rounds 900 to 1000
    path.write_text("rounds,violation_rate\n1000,0.3\n")
    assert training_violation_rates(path) == pytest.approx((0.3, 0.3))


@pytest.mark.slow
def test_several_seeds_in_one_program_learn_the_same_as_one_by_one(serial: Serial, tmp_path: Path) -> None:
    """Random numbers are the same; sums may be rounded differently, so that runs diverge after the first steps."""
    results = sweep(TRIALS[:2], tmp_path, SerialExecutor(), 2)
    for trial in TRIALS[:2]:
        single, batched = (
            np.genfromtxt(out / "trials" / trial.name / "run" / "progress.csv", delimiter=",", names=True)
            for out in (serial[1], tmp_path)
        )
        np.testing.assert_array_equal(batched["rounds"], single["rounds"])
        for column in ("hypervolume", "entropy", "value_error"):
            np.testing.assert_allclose(batched[column][:2], single[column][:2], rtol=1e-3)
    first, second = (results[trial] for trial in TRIALS[:2])
    assert first.hypervolume != second.hypervolume
    assert first.rounds == second.rounds == serial[0][TRIALS[0]].rounds


@pytest.mark.slow
def test_killed_job_of_several_seeds_starts_again(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / TRIALS[0].name / "run"
    train(TRIALS[0].scenario(), "s-ppo", "default", 0, folder, TRIALS[0].changes)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "status": "running"}))
    assert len(sweep(TRIALS[:2], tmp_path, SerialExecutor(), 2)) == 2


@pytest.mark.slow
def test_learning_curve_continues_with_a_resumed_run(serial: Serial, tmp_path: Path) -> None:
    def stop(progress) -> None:
        if progress.rounds > progress.planned_rounds // 2:
            raise KeyboardInterrupt

    trial, folder = TRIALS[0], tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(trial.scenario(), "s-ppo", "default", 0, folder, trial.changes, stop, curve_points=2)
    resume(folder, curve_points=2)
    whole = serial[1] / "trials" / trial.name / "run"
    assert (folder / CURVE).read_text() == (whole / CURVE).read_text()


@pytest.mark.soak
def test_reference_front_is_nondominated_when_evaluated_again(tmp_path: Path) -> None:
    options = {key: value for key, value in TRIALS[0].changes.items() if key != "budget"}
    tiny = SMOKE.model_copy(update={"budget": 300, "size": 2, "algorithm_config": {"s-ppo": options}})
    report = reproduce(make_plan(["reference"], tiny, ["s-ppo", "r-ppo"]), tmp_path)
    fronts = json.loads((tmp_path / "reference-fronts.json").read_text())["fronts"]
    assert [front["scenario"]["shield.enabled"] for front in fronts] == [True, True, False]
    assert len({front["scenario_digest"] for front in fronts}) == 3
    written = fronts[0]
    assert written["trainings"] == 2  # none of R+PPO
    assert written["rounds"] == 3000
    points = to_maximised([[policy[name] for name in OBJECTIVE_KEYS] for policy in written["policies"]])
    assert len(nondominated_indices(points)) == len(points)
    assert written["hypervolume"] == pytest.approx(hypervolume(points, np.array([0.0, -5.0, -44.0])))
    assert f"hypervolume {written['hypervolume']:.2f}" in report.sections[0].about
    first = written["policies"][0]
    trial = tiny.trial("s-ppo", first["seed"], budget=3000)
    run = open_run(trial_dir(trial, tmp_path) / RUN)
    again = [
        simulate(run.system(), run.policy(n), REFERENCE_FRONT_SEEDS).reward.mean(axis=0)
        for n in range(len(run.front.policies))
    ]
    assert min(np.abs(np.array(again) - points[0]).max(axis=1)) < 1e-4


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """A Ray cluster on loopback, at an address that Ray does not replace: an idle head and two nodes of one job."""
    pytest.importorskip("ray", reason="install it with pip install 'tandem[ray]'")
    from ray.cluster_utils import Cluster as RayCluster

    checks = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}
    common = {"node_ip_address": "127.0.0.2", "include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = RayCluster(
        initialize_head=True, head_node_args={**common, "num_cpus": 0, "_system_config": checks}, connect=False
    )
    nodes = [cluster.add_node(**common, num_cpus=1) for _ in range(2)]
    yield cluster, nodes
    cluster.shutdown()


@pytest.mark.soak
def test_cluster_that_loses_a_node_gives_the_same_results(serial: Serial, two_nodes: Any, tmp_path: Path) -> None:
    cluster, nodes = two_nodes

    class KillNode(RecordingCallback):
        def on_job_end(self, outcome: JobOutcome) -> None:
            if not self.outcomes:  # the other node is still working
                cluster.remove_node(nodes[1], allow_graceful=False)
            super().on_job_end(outcome)

    callback = KillNode()
    results = sweep(TRIALS, tmp_path, RayExecutor(cluster.address), 1, callback)
    assert [outcome.failure for outcome in callback.outcomes] == [None] * len(TRIALS)
    assert [document(results[trial]) for trial in TRIALS] == [document(serial[0][trial]) for trial in TRIALS]
