"""Doing a cell: train, measure on the way, and take down what figures and tables need."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from tandem import __version__
from tandem.api import build_system, resume, train
from tandem.experiments.trial import RUN, Trial, TrialResult, Values, trial_dir, write_result
from tandem.federated.fidelity import Fidelity
from tandem.feel.state import FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import Array
from tandem.learn.registry import make_config
from tandem.pareto import cardinality
from tandem.policy.neural_policy import NeuralPolicy
from tandem.policy.rollout import rollout
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs.evaluation import utility
from tandem.runs.final_evaluation import EvaluationTarget
from tandem.runs.front import EXTREMES, landmarks
from tandem.runs.learning_curve import CURVE, LearningCurve, read_curve
from tandem.runs.multi_seed import train_seeds
from tandem.runs.problem import override_shield
from tandem.runs.run import Run
from tandem.runs.run_dir import RECORD
from tandem.runs.simulation import episode_keys
from tandem.scenario import build_device_table
from tandem.tree import tree_index

QUANTILES = 201
History = tuple[FleetState, RoundOutcome]  # [episodes, rounds, ...]


def run_trials(cells: Sequence[Trial], out: Path) -> list[TrialResult]:
    """Do cells that differ in their seed alone, several of them in one program, and write their results below ``out``.

    A cell by itself goes on from its checkpoint if it was interrupted.
    """
    folders = {cell.seed: trial_dir(cell, out) / RUN for cell in cells}
    yardstick = evaluation_target(cells[0])
    alone = len(cells) == 1
    runs = [_alone(cells[0], folders[cells[0].seed], yardstick)] if alone else _together(cells, folders, yardstick)
    results = [make_result(cell, run, yardstick) for cell, run in zip(cells, runs, strict=True)]
    for result in results:
        write_result(result, out)
    return results


def evaluation_target(cell: Trial) -> EvaluationTarget | None:
    """What the fronts of a cell are measured by, if not by what it is trained on."""
    scenario = cell.measured_by()
    if scenario is None or cell.reward_source is None:
        return None
    options = make_config(cell.algorithm, cell.preset, cell.changes)
    return EvaluationTarget(
        build_system(override_shield(options, scenario)), FINAL_EVALUATION_SEEDS[: cell.reward_source.episodes]
    )


def _alone(cell: Trial, folder: Path, yardstick: EvaluationTarget | None) -> Run:
    heard = [LearningCurve(cell.marks, yardstick)]
    if (folder / RECORD).exists():
        return resume(folder, listeners=heard, yardstick=yardstick)
    what = (cell.scenario(), cell.algorithm, cell.preset, cell.seed)
    return train(*what, folder, cell.changes, listeners=heard, yardstick=yardstick)


def _together(cells: Sequence[Trial], folders: dict[int, Path], yardstick: EvaluationTarget | None) -> Sequence[Run]:
    one = cells[0]
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)  # there are no checkpoints to go on from
    listeners = {cell.seed: [LearningCurve(cell.marks, yardstick)] for cell in cells}
    return train_seeds(
        one.scenario(), one.algorithm, one.preset, folders, one.changes, listeners, yardstick, build_system=build_system
    )


def make_result(cell: Trial, run: Run, yardstick: EvaluationTarget | None) -> TrialResult:
    """What is kept of a finished run."""
    record, front = run.record, run.front
    extreme = landmarks(front, run.options.tolerance)
    # One may be several: it is played as often, and one program does for any front.
    named = list(extreme.values()) if yardstick else [extreme[EXTREMES[1]]]
    played = histories(run, named, yardstick or EvaluationTarget(run.system()))
    curve = read_curve(run.folder / CURVE)
    return TrialResult(
        trial=cell,
        rounds=record.rounds,
        training_rounds=record.training_rounds,
        wall_s=record.wall_s,
        hypervolume=front.hypervolume,
        sparsity=front.sparsity,
        expected_utility=utility(front),
        cardinality=cardinality(front.points),
        violation_rate=float(np.mean(front.violation_rate)),
        front=front.objectives,
        curve=np.array([(mark.rounds, mark.hypervolume, mark.sparsity) for mark in curve], np.float64),
        latency_s=latency_quantiles(played[extreme[EXTREMES[1]]]),
        device=record.device.kind,
        tandem=__version__,
        fidelity=fidelity_summary(list(played.values()), build_device_table(run.scenario).names) if yardstick else None,
    )


def histories(run: Run, policies: Sequence[int], yardstick: EvaluationTarget) -> dict[int, History]:
    """Every round of some policies of a front, played together, by what it was measured by."""
    chosen = tree_index(run.policies(), jnp.asarray(policies))
    played = _played(yardstick.system, chosen, episode_keys(yardstick.seeds))
    return {index: tree_index(played, place) for place, index in enumerate(policies)}


@eqx.filter_jit
def _played(system: System, policies: NeuralPolicy, keys: Array) -> History:
    """[policies, episodes, rounds, ...]"""
    history: History = eqx.filter_vmap(lambda policy: rollout(system, policy, keys))(policies)
    return history


def fidelity_summary(played: Sequence[History], names: Sequence[str]) -> dict[str, Any]:
    """How well estimates follow what was measured, over all rounds of all devices."""
    seeds = len(played[0][1].duration_s)
    return Fidelity.from_history(tree_index(outcome, seed) for _, outcome in played for seed in range(seeds)).summary(
        names
    )


def latency_quantiles(played: History) -> Values:
    """Of the latency of every batch of requests served, all devices and rounds."""
    states, outcome = played
    serving = ~np.asarray(outcome.executed.train) & (np.asarray(states.queue) > 0)
    latencies = np.asarray(outcome.latency_s, np.float64)[serving]
    return np.quantile(latencies, np.linspace(0, 1, QUANTILES)) if len(latencies) else np.full(QUANTILES, np.nan)
