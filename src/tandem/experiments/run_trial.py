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
from tandem.experiments.trial import RUN, Cell, Result, Values, folder_of, write_result
from tandem.federated.fidelity import Fidelity
from tandem.feel.state import FleetState, RoundOutcome
from tandem.feel.system import System, build_system
from tandem.feel.types import Array
from tandem.learn.registry import choose_options
from tandem.pareto import cardinality
from tandem.policy.neural_policy import NeuralPolicy
from tandem.policy.rollout import episodes
from tandem.runs import trainer as training
from tandem.runs.evaluation import utility
from tandem.runs.final_evaluation import SEEDS, Yardstick
from tandem.runs.front import EXTREMES, landmarks
from tandem.runs.learning_curve import CURVE, Curve, read_curve
from tandem.runs.multi_seed import train_together
from tandem.runs.problem import with_shield_of
from tandem.runs.run import Run
from tandem.runs.run_dir import RECORD
from tandem.runs.simulation import episode_keys
from tandem.scenario import device_table
from tandem.tree import member

QUANTILES = 201
History = tuple[FleetState, RoundOutcome]  # [episodes, rounds, ...]


def perform(cells: Sequence[Cell], out: Path) -> list[Result]:
    """Do cells that differ in their seed alone, several of them in one program, and write their results below ``out``.

    A cell by itself goes on from its checkpoint if it was interrupted.
    """
    folders = {cell.seed: folder_of(cell, out) / RUN for cell in cells}
    yardstick = yardstick_of(cells[0])
    alone = len(cells) == 1
    runs = [_alone(cells[0], folders[cells[0].seed], yardstick)] if alone else _together(cells, folders, yardstick)
    results = [result_of(cell, run, yardstick) for cell, run in zip(cells, runs, strict=True)]
    for result in results:
        write_result(result, out)
    return results


def yardstick_of(cell: Cell) -> Yardstick | None:
    """What the fronts of a cell are measured by, if not by what it is trained on."""
    scenario = cell.measured_by()
    if scenario is None or cell.ground is None:
        return None
    options = choose_options(cell.algorithm, cell.preset, cell.changes)
    return Yardstick(build_system(with_shield_of(options, scenario)), SEEDS[: cell.ground.episodes])


def _alone(cell: Cell, folder: Path, yardstick: Yardstick | None) -> Run:
    heard = [Curve(cell.marks, yardstick)]
    if (folder / RECORD).exists():
        return training.resume(folder, listeners=heard, yardstick=yardstick)
    what = (cell.scenario(), cell.algorithm, cell.preset, cell.seed)
    return training.train(*what, folder, cell.changes, listeners=heard, yardstick=yardstick)


def _together(cells: Sequence[Cell], folders: dict[int, Path], yardstick: Yardstick | None) -> Sequence[Run]:
    one = cells[0]
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)  # there are no checkpoints to go on from
    listeners = {cell.seed: [Curve(cell.marks, yardstick)] for cell in cells}
    return train_together(one.scenario(), one.algorithm, one.preset, folders, one.changes, listeners, yardstick)


def result_of(cell: Cell, run: Run, yardstick: Yardstick | None) -> Result:
    """What is kept of a finished run."""
    record, front = run.record, run.front
    extreme = landmarks(front, run.options.tolerance)
    # One may be several: it is played as often, and one program does for any front.
    named = list(extreme.values()) if yardstick else [extreme[EXTREMES[1]]]
    played = histories(run, named, yardstick or Yardstick(run.system()))
    curve = read_curve(run.folder / CURVE)
    return Result(
        cell=cell,
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
        agreement=agreement_of(list(played.values()), device_table(run.scenario).names) if yardstick else None,
    )


def histories(run: Run, policies: Sequence[int], yardstick: Yardstick) -> dict[int, History]:
    """Every round of some policies of a front, played together, by what it was measured by."""
    chosen = member(run.policies(), jnp.asarray(policies))
    played = _played(yardstick.system, chosen, episode_keys(yardstick.seeds))
    return {index: member(played, place) for place, index in enumerate(policies)}


@eqx.filter_jit
def _played(system: System, policies: NeuralPolicy, keys: Array) -> History:
    """[policies, episodes, rounds, ...]"""
    history: History = eqx.filter_vmap(lambda policy: episodes(system, policy, keys))(policies)
    return history


def agreement_of(played: Sequence[History], names: Sequence[str]) -> dict[str, Any]:
    """How well estimates follow what was measured, over all rounds of all devices."""
    seeds = len(played[0][1].duration_s)
    return Fidelity.of(member(outcome, seed) for _, outcome in played for seed in range(seeds)).summary(names)


def latency_quantiles(played: History) -> Values:
    """Of the latency of every batch of requests served, all devices and rounds."""
    states, outcome = played
    serving = ~np.asarray(outcome.executed.train) & (np.asarray(states.queue) > 0)
    latencies = np.asarray(outcome.latency_s, np.float64)[serving]
    return np.quantile(latencies, np.linspace(0, 1, QUANTILES)) if len(latencies) else np.full(QUANTILES, np.nan)
