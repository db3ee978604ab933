"""Training from Python: the files of a run, resumption after an interruption or a full disk, and its options."""

import csv
import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import tandem
from disks import full_disk
from small_runs import CONDITIONED, POPULATION
from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.learn import ALGORITHMS
from tandem.learn.registry import config_document, config_from_document, make_config
from tandem.learn.train_loop import ChunkProgress, rounds_done, validate
from tandem.policy.evaluate import evaluate_policies
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs import Callback, Run, resume, simulate, train_seeds
from tandem.runs.callbacks import RunStart, TensorBoard, TrainingFront
from tandem.runs.checkpoint import read_checkpoint
from tandem.runs.final_evaluation import measure_front
from tandem.runs.learning_curve import CURVE, CurvePoint, read_curve
from tandem.runs.run_dir import TRAINING_FRONT, new_run_dir
from tandem.runs.simulation import episode_keys
from tandem.runs.trainer import build_algorithm, default_folder
from tandem.scenario import Scenario

RESULTS = ("front.json", "policies.safetensors")


def results(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in RESULTS]


def stop_at(number: int, steps: list[int]):
    """Interrupt training when so many chunks are done, over all calls."""

    def on_progress(progress) -> None:
        steps.append(progress.step)
        if len(steps) == number:
            raise KeyboardInterrupt

    return on_progress


@pytest.mark.parametrize(
    ("name", "options"),
    [("conditioned_run", CONDITIONED), pytest.param("population_run", POPULATION, marks=pytest.mark.slow)],
)
def test_an_interrupted_run_ends_like_one_that_was_not(name, options, tmp_path, request) -> None:
    whole: Run = request.getfixturevalue(name)
    steps: list[int] = []
    folder = tmp_path / "run"
    what = (whole.scenario, whole.algorithm_name, "default", whole.seed, folder, options)
    with pytest.raises(KeyboardInterrupt):
        tandem.train(*what, stop_at(1, steps))
    with pytest.raises(KeyboardInterrupt):
        resume(folder, on_progress=stop_at(3, steps))
    with pytest.raises(InputError, match="tandem train --resume"):
        tandem.open_run(folder)
    again = resume(folder, on_progress=stop_at(-1, steps))
    assert steps == list(range(1, len(steps) + 1))  # no chunk ran twice: an interruption writes a checkpoint
    assert results(folder) == results(whole.folder)
    assert again.record.rounds == whole.record.rounds


def test_a_run_stopped_by_a_full_disk_can_be_resumed(full, conditioned_run: Run, small: Scenario, tmp_path) -> None:
    folder = tmp_path / "run"
    with ExitStack() as stack:

        def fill_disk(progress) -> None:
            if progress.step == 2:
                stack.enter_context(full(1000))

        with pytest.raises(InputError) as caught:
            tandem.train(small, seed=4, out=folder, options=CONDITIONED, on_progress=fill_disk)
    message = str(caught.value)
    assert message.startswith(f"{folder}: cannot be written (")
    assert message.endswith(f", then continue with 'tandem train --resume {folder}'.")
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "progress.csv", "run.json", "scenario.yaml"]
    resume(folder)
    assert results(folder) == results(conditioned_run.folder)


def test_a_run_that_a_full_disk_kept_from_starting_can_be_started(small: Scenario, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    sentence = r"No space left on device\); make room on the disk, then train again\.$"
    with new_run_dir(folder):
        pass
    with full_disk(tmp_path), pytest.raises(InputError, match=sentence):
        tandem.train(small, seed=4, out=folder, options=CONDITIONED)
    assert [path.name for path in folder.iterdir()] == [".lock"]
    with pytest.raises(KeyboardInterrupt):
        tandem.train(small, seed=4, out=folder, options=CONDITIONED, on_progress=stop_at(1, []))


def test_rounds_are_counted_and_within_the_budget(conditioned_run: Run, small: Scenario) -> None:
    record = conditioned_run.record
    assert record.rounds == record.training_rounds + record.validation_rounds <= CONDITIONED["budget"]
    assert record.validation_rounds == 6 * small.rounds  # six preferences, one episode each
    assert record.measuring_rounds == len(conditioned_run.front.policies) * len(FINAL_EVALUATION_SEEDS) * small.rounds
    assert record.versions.keys() == {"python", "jax", "jaxlib", "equinox", "optax", "numpy"}
    assert (record.algorithm, record.preset, record.seed, record.status) == ("pc-ppo", "default", 4, "finished")


def test_progress_has_a_row_for_each_chunk(conditioned_run: Run) -> None:
    with (conditioned_run.folder / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, len(rows) + 1))
    assert int(rows[-1]["rounds"]) == conditioned_run.record.training_rounds
    times = [float(row["wall_s"]) for row in rows]
    assert times == sorted(times)
    assert times[-1] <= conditioned_run.record.wall_s


def test_the_front_is_as_measured(conditioned_run: Run) -> None:
    run = conditioned_run
    keys = episode_keys(FINAL_EVALUATION_SEEDS)
    (means,) = evaluate_policies(Environment(run.system()), run.policies(), keys)
    assert np.allclose(means.reward.mean(axis=1), run.front.points, rtol=1e-6)
    one = simulate(run.system(), run.policy(0), FINAL_EVALUATION_SEEDS)
    assert np.allclose(one.objectives.mean(axis=0), run.front.policies[0].objectives, rtol=1e-5)
    accuracies = [policy.objectives[0] for policy in run.front.policies]
    assert accuracies == sorted(accuracies, reverse=True)
    written = json.loads((run.folder / "front.json").read_text())
    assert written["hypervolume"] == run.front.hypervolume == run.record.hypervolume
    assert written["seeds"] == list(FINAL_EVALUATION_SEEDS)


def test_a_conditioned_run_has_a_policy_for_any_preference(conditioned_run: Run) -> None:
    assert conditioned_run.conditioned
    assert {policy.network for policy in conditioned_run.front.policies} == {0}  # one network for all
    assert np.allclose(conditioned_run.policy_for([2, 1, 1]).preference, [0.5, 0.25, 0.25])
    with pytest.raises(InputError, match="three weights"):
        conditioned_run.policy_for([1, 2])


def test_a_policy_knows_the_largest_fleet_it_was_trained_on(conditioned_run: Run) -> None:
    run = conditioned_run
    known = [run.policies().largest_fleet, run.policy(0).largest_fleet, run.policy_for([1, 1, 1]).largest_fleet]
    assert known == [max(CONDITIONED["fleet_sizes"])] * 3


def test_a_population_has_the_best_policy_of_its_front_for_a_preference(population_run: Run) -> None:
    assert not population_run.conditioned
    chosen = population_run.policy_for([0, 0, 1])
    best = int(np.argmax(population_run.front.points[:, 2]))
    assert np.array_equal(chosen.preference, population_run.policy(best).preference)
    assert chosen.sampling == "sample-modes"
    used = [policy.network for policy in population_run.front.policies]
    assert set(used) == set(range(len(set(used))))  # no network is stored that no policy uses
    with pytest.raises(InputError, match="choose one from 0 to"):
        population_run.policy(len(used))


def test_options_override_the_shield_of_the_scenario(population_run: Run, crowded: Scenario) -> None:
    assert crowded.shield.enabled
    assert not population_run.scenario.shield.enabled
    assert not population_run.system().shielded


def test_stored_policies_are_finite_single_precision(conditioned_run: Run) -> None:
    arrays = [leaf for leaf in jax.tree.leaves(conditioned_run.policies()) if hasattr(leaf, "dtype")]
    assert all(leaf.dtype == np.float32 and np.isfinite(leaf).all() for leaf in arrays)


def test_the_default_folder_is_named_after_the_run() -> None:
    assert default_folder("my/fleet: 2", "s-ppo", "quick", 3) == Path("runs/my-fleet-2-s-ppo-quick-seed3")


class Recorder(Callback):
    """Records the names of hooks and their arguments."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_start(self, start: RunStart) -> None:
        self.events.append(("start", start))

    def on_compile(self, stage: str) -> None:
        self.events.append(("compile", stage))

    def on_chunk(self, progress, wall_s: float) -> None:
        self.events.append(("chunk", progress.step))

    def on_validate(self) -> None:
        self.events.append(("validate", None))

    def on_measure(self, policies: int) -> None:
        self.events.append(("measure", policies))

    def on_end(self, record) -> None:
        self.events.append(("end", record.status))


def test_callbacks_follow_a_run(conditioned_run: Run, small: Scenario, tmp_path: Path) -> None:
    recorder, tensorboard = Recorder(), TensorBoard()
    run = tandem.train(small, seed=4, out=tmp_path / "run", options=CONDITIONED, callbacks=[recorder, tensorboard])
    record = run.record
    start = RunStart(tmp_path / "run", "pc-ppo", 4, 3, 0, record.training_rounds)
    chunks = len((run.folder / "progress.csv").read_text().splitlines()) - 1
    assert recorder.events == [
        ("start", start),
        ("compile", "training"),
        *(("chunk", step + 1) for step in range(chunks)),
        ("validate", None),
        ("measure", record.policies),
        ("end", "finished"),
    ]
    (events,) = (run.folder / "tensorboard").iterdir()
    assert events.read_bytes().count(b"training/hypervolume") == chunks
    assert b"front/hypervolume" in events.read_bytes()


def test_a_learning_curve_is_that_of_runs_that_ended_earlier(
    conditioned_run: Run, small: Scenario, tmp_path: Path
) -> None:
    """The run is interrupted after the first point, validated and measured there, and then resumed."""
    folder, steps = tmp_path / "run", []
    chunks = len((conditioned_run.folder / "progress.csv").read_text().splitlines()) - 1
    middle = stop_at(chunks // 2, steps)
    with pytest.raises(KeyboardInterrupt):
        tandem.train(small, seed=4, out=folder, options=CONDITIONED, curve_points=2, on_progress=middle)
    (point,) = read_curve(folder / CURVE)
    algorithm = build_algorithm("pc-ppo", small, conditioned_run.config)
    checkpoint = read_checkpoint(folder, algorithm, 4).checkpoint
    validation = validate(algorithm, checkpoint, 4)
    front = measure_front(algorithm, validation).front
    assert point.rounds == rounds_done(algorithm, checkpoint) + validation.rounds
    assert point.policies == len(front.policies)
    assert point.hypervolume == pytest.approx(front.hypervolume, rel=1e-5)
    assert point.sparsity == pytest.approx(front.sparsity, rel=1e-3)
    record = resume(folder, curve_points=2).record
    assert read_curve(folder / CURVE) == [
        point,
        CurvePoint(record.rounds, record.hypervolume, record.sparsity, record.policies),
    ]


STRICT = {**POPULATION, "tolerance": 0.0}


@pytest.mark.slow
def test_a_learning_curve_counts_only_policies_within_the_tolerance(crowded: Scenario, tmp_path: Path) -> None:
    """Its single validation episode has no violation, but the episodes of the measurement do."""
    run = tandem.train(crowded, "r-ppo", out=tmp_path / "run", options=STRICT, curve_points=2)
    assert run.record.within_tolerance
    assert run.front.violation_rate.min() > 0
    points = read_curve(run.folder / CURVE)
    assert [(point.hypervolume, point.sparsity) for point in points] == [(0, 0)] * 2
    assert points[-1].policies == run.record.policies == len(run.front.policies) > 1


def test_a_run_without_a_policy_within_the_tolerance_has_one_policy(crowded: Scenario, tmp_path: Path) -> None:
    options = {**STRICT, "validation_episodes": 4, "budget": 800}
    run = tandem.train(crowded, "r-ppo", out=tmp_path / "run", options=options)
    assert run.record.within_tolerance is False
    assert (run.record.policies, run.record.hypervolume, run.record.sparsity) == (1, 0, 0)
    assert run.record.violation_rate > 0
    assert tandem.open_run(run.folder).front == run.front


@pytest.mark.slow
def test_several_seeds_are_trained_in_one_program_without_checkpoints(small: Scenario, tmp_path: Path) -> None:
    folders = {seed: tmp_path / str(seed) for seed in (0, 1)}
    recorders = {0: [Recorder()]}
    runs = train_seeds(small, "r-ppo", "default", folders, POPULATION, recorders, curve_points=2)
    assert [run.seed for run in runs] == [0, 1]
    assert runs[0].front.hypervolume != runs[1].front.hypervolume
    # Validation takes as many rounds as a seed has candidates.
    assert all(0.8 * POPULATION["budget"] < run.record.rounds <= POPULATION["budget"] for run in runs)
    assert not list(tmp_path.rglob("checkpoint.safetensors"))
    assert all(len(read_curve(folder / CURVE)) == 2 for folder in folders.values())
    names = [name for name, _ in recorders[0][0].events]
    assert (names[0], names[1], names[-1]) == ("start", "compile", "end")


def test_presets_change_defaults_and_options_change_presets() -> None:
    changes = ["clip_eps=0.3", "reference_point=[0, 6, 50]", "learning_rate=1e-4", "num_envs=010"]
    config = make_config("c-moppo", "literal", changes)
    assert (config.clip_eps, config.reference_point, config.learning_rate) == (0.3, (0, 6, 50), 1e-4)
    assert config.num_envs == 10  # not octal
    assert config.ratio_scope == "fleet"  # the preset's
    assert config.gamma == 0.99  # the default
    assert make_config("c-moppo", "literal", {"clip_eps": 0.3}).clip_eps == 0.3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_config_survives_json(name: str) -> None:
    for preset in ALGORITHMS[name].presets:
        config = make_config(name, preset)
        assert config_from_document(name, json.loads(json.dumps(config_document(config))), "there") == config


@pytest.mark.parametrize("seed", [-1, 2**31 + 1, 0.5, True])
def test_a_seed_is_a_whole_number(seed, small: Scenario, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="whole number"):
        tandem.train(small, seed=seed, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_policies_with_weights_that_are_not_finite_are_left_out(conditioned_run: Run, small: Scenario) -> None:
    algorithm = build_algorithm("pc-ppo", small, conditioned_run.config)
    checkpoint = read_checkpoint(conditioned_run.folder, algorithm, 4).checkpoint
    validation = validate(algorithm, checkpoint, 4)
    candidates = validation.candidates
    broken = jax.tree.map(lambda leaf: leaf * np.nan if eqx.is_inexact_array(leaf) else leaf, candidates.networks)
    diverged = dataclasses.replace(validation, candidates=eqx.tree_at(lambda c: c.networks, candidates, broken))
    with pytest.raises(InputError, match=r"no policy with finite weights .* lower learning_rate"):
        measure_front(algorithm, diverged)


def test_a_folder_that_tensorboard_cannot_write_to_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match=r"tensorboard: cannot be written \(.*\); .*, then continue with"):
        TensorBoard().on_start(RunStart(tmp_path / "file", "pc-ppo", 4, 3, 0, 100))


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -float("inf"), 1e300])
def test_a_reference_point_has_a_finite_hypervolume(number: float, small: Scenario, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"reference_point\[1\] is .*; write a (finite )?number"):
        tandem.train(small, out=tmp_path / "run", options={**CONDITIONED, "reference_point": [0, number, 44]})
    assert list(tmp_path.iterdir()) == []


def test_the_front_so_far_can_be_read_while_a_run_is_trained(small: Scenario, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    class Reader(Callback):
        def on_chunk(self, progress: ChunkProgress, wall_s: float) -> None:
            seen.append(json.loads((tmp_path / "run" / TRAINING_FRONT).read_text()) | {"policies": progress.policies})

    callbacks = [TrainingFront(every_s=0.0), Reader()]
    tandem.train(small, out=tmp_path / "run", options=CONDITIONED, callbacks=callbacks)
    assert [one["rounds"] for one in seen] == sorted({one["rounds"] for one in seen})
    for one in seen:
        assert len(one["points"]) == one["policies"]
        assert all(0 <= accuracy <= 1 and latency >= 0 and energy >= 0 for accuracy, latency, energy in one["points"])
    assert not (tmp_path / "run" / TRAINING_FRONT).exists()
