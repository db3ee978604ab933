"""Real trainings in a sweep: alone and together, stopped and gone on with, here and on a Ray cluster of two."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import RecordingCallback
from tandem.experiments import make_plan, reproduce
from tandem.experiments.executors import RayExecutor, SerialExecutor
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
CELLS = [
    Trial(
        "s-ppo",
        seed,
        size=2,
        config=tuple(sorted({**SMOKE.trial("s-ppo", 0).changes, **QUICK}.items())),
        curve_points=2,
    )
    for seed in range(4)
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Trial, TrialResult], Path]:
    """All cells, one by one in this process."""
    out = tmp_path_factory.mktemp("here")
    return sweep(CELLS, out, SerialExecutor()), out


def document(result: TrialResult) -> dict[str, Any]:
    return {**result.document(), "wall_s": None}


def test_a_result_is_that_of_its_run(here: tuple[dict[Trial, TrialResult], Path]) -> None:
    results, out = here
    for cell, result in results.items():
        run = open_run(out / "trials" / cell.name / "run")
        assert (run.record.algorithm, run.record.seed, run.scenario.fleet.size) == ("s-ppo", cell.seed, 2)
        assert result.rounds == run.record.rounds <= QUICK["budget"]
        assert result.hypervolume == run.front.hypervolume
        np.testing.assert_array_equal(result.front, run.front.objectives)
        assert len(result.curve) == cell.curve_points
        assert result.curve[-1].tolist() == [result.rounds, result.hypervolume, result.sparsity]
        assert np.all(np.diff(result.latency_s) >= 0)
        assert 0 < result.latency_s[0] < result.latency_s[-1] < 20


def test_several_seeds_in_one_program_learn_what_each_learns_alone(
    here: tuple[dict[Trial, TrialResult], Path], tmp_path: Path
) -> None:
    """The same random numbers; sums may round differently, so after the first steps they part."""
    sweep(CELLS[:2], tmp_path, SerialExecutor(), 2, RecordingCallback())
    for cell in CELLS[:2]:
        alone, together = (
            np.genfromtxt(out / "trials" / cell.name / "run" / "progress.csv", delimiter=",", names=True)
            for out in (here[1], tmp_path)
        )
        np.testing.assert_array_equal(together["rounds"], alone["rounds"])
        for column in ("hypervolume", "entropy", "value_error"):
            np.testing.assert_allclose(together[column][:2], alone[column][:2], rtol=1e-3)
    first, second = (sweep(CELLS[:2], tmp_path, SerialExecutor(), 2, RecordingCallback())[cell] for cell in CELLS[:2])
    assert first.hypervolume != second.hypervolume
    assert first.rounds == second.rounds == here[0][CELLS[0]].rounds


def test_what_was_begun_together_and_killed_is_begun_again(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / CELLS[0].name / "run"
    train(CELLS[0].scenario(), "s-ppo", "default", 0, folder, CELLS[0].changes)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "status": "running"}))
    assert len(sweep(CELLS[:2], tmp_path, SerialExecutor(), 2, RecordingCallback())) == 2


def test_a_curve_goes_on_where_its_run_does(here: tuple[dict[Trial, TrialResult], Path], tmp_path: Path) -> None:
    def stop(progress) -> None:
        if progress.rounds > progress.planned_rounds // 2:
            raise KeyboardInterrupt

    cell, folder = CELLS[0], tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(cell.scenario(), "s-ppo", "default", 0, folder, cell.changes, stop, curve_points=2)
    resume(folder, curve_points=2)
    whole = here[1] / "trials" / cell.name / "run"
    assert (folder / CURVE).read_text() == (whole / CURVE).read_text()


def test_the_reference_front_is_what_is_best_when_measured_again(tmp_path: Path) -> None:
    options = {key: value for key, value in CELLS[0].changes.items() if key != "budget"}
    tiny = SMOKE.model_copy(update={"budget": 300, "size": 2, "algorithm_config": {"s-ppo": options}})
    report = reproduce(make_plan(["reference"], tiny, ["s-ppo", "r-ppo"]), tmp_path)
    written = json.loads((tmp_path / "reference-front.json").read_text())
    assert written["trainings"] == 2  # and none of random modes
    assert written["rounds"] == 3000
    points = to_maximised([[policy[name] for name in OBJECTIVE_KEYS] for policy in written["policies"]])
    assert len(nondominated_indices(points)) == len(points)
    assert written["hypervolume"] == pytest.approx(hypervolume(points, np.array([0.0, -5.0, -44.0])))
    assert f"hypervolume {written['hypervolume']:.2f}" in report.sections[0].about
    maker = written["policies"][0]
    cell = tiny.trial("s-ppo", maker["seed"], budget=3000)
    run = open_run(trial_dir(cell, tmp_path) / RUN)
    again = [
        simulate(run.system(), run.policy(n), REFERENCE_FRONT_SEEDS).reward.mean(axis=0)
        for n in range(len(run.front.policies))
    ]
    assert min(np.abs(np.array(again) - points[0]).max(axis=1)) < 1e-4


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """A Ray cluster on loopback, at an address Ray does not replace: an idle head, and two nodes of one job each."""
    pytest.importorskip("ray", reason="install it with pip install 'tandem[ray]'")
    from ray.cluster_utils import Cluster as RayCluster

    soon = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}
    common = {"node_ip_address": "127.0.0.2", "include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = RayCluster(
        initialize_head=True, head_node_args={**common, "num_cpus": 0, "_system_config": soon}, connect=False
    )
    nodes = [cluster.add_node(**common, num_cpus=1) for _ in range(2)]
    yield cluster, nodes
    cluster.shutdown()


def test_a_cluster_that_loses_a_node_finds_the_same(
    here: tuple[dict[Trial, TrialResult], Path], two_nodes: Any, tmp_path: Path
) -> None:
    cluster, nodes = two_nodes

    class Killing(RecordingCallback):
        def on_job_end(self, outcome: JobOutcome) -> None:
            if not self.outcomes:  # the other node is at work
                cluster.remove_node(nodes[1], allow_graceful=False)
            super().on_job_end(outcome)

    watcher = Killing()
    results = sweep(CELLS, tmp_path, RayExecutor(cluster.address), 1, watcher)
    assert [outcome.failure for outcome in watcher.outcomes] == [None] * len(CELLS)
    assert [document(results[cell]) for cell in CELLS] == [document(here[0][cell]) for cell in CELLS]
