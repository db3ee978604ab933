"""Doing a cell: train, measure on the way, and take down what figures and tables need."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tandem import __version__
from tandem.experiments.cells import RUN, Cell, Result, Values, folder_of, write_result
from tandem.pareto import cardinality
from tandem.policy.rollout import episodes
from tandem.runs import training
from tandem.runs.curve import CURVE, Curve, read_curve
from tandem.runs.directory import RECORD
from tandem.runs.evaluation import utility
from tandem.runs.landmarks import EXTREMES, landmarks
from tandem.runs.measuring import SEEDS
from tandem.runs.run import Run
from tandem.runs.simulation import episode_keys
from tandem.runs.together import train_together

QUANTILES = 201


def perform(cells: Sequence[Cell], out: Path) -> list[Result]:
    """Do cells that differ in their seed alone, several of them in one program, and write their results below ``out``.

    A cell by itself goes on from its checkpoint if it was interrupted.
    """
    folders = {cell.seed: folder_of(cell, out) / RUN for cell in cells}
    runs = [_alone(cells[0], folders[cells[0].seed])] if len(cells) == 1 else _together(cells, folders)
    results = [result_of(cell, run) for cell, run in zip(cells, runs, strict=True)]
    for result in results:
        write_result(result, out)
    return results


def _alone(cell: Cell, folder: Path) -> Run:
    curve = Curve(cell.marks)
    if (folder / RECORD).exists():
        return training.resume(folder, listeners=[curve])
    return training.train(
        cell.scenario(), cell.algorithm, cell.preset, cell.seed, folder, cell.changes, listeners=[curve]
    )


def _together(cells: Sequence[Cell], folders: dict[int, Path]) -> Sequence[Run]:
    one = cells[0]
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)  # there are no checkpoints to go on from
    listeners = {cell.seed: [Curve(cell.marks)] for cell in cells}
    return train_together(one.scenario(), one.algorithm, one.preset, folders, one.changes, listeners)


def result_of(cell: Cell, run: Run) -> Result:
    """What is kept of a finished run."""
    record, front = run.record, run.front
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
        latency_s=latency_quantiles(run),
        device=record.device.kind,
        tandem=__version__,
    )


def latency_quantiles(run: Run) -> Values:
    """Of the latency of every batch of requests served under the lowest-latency policy, all devices and rounds."""
    lowest = landmarks(run.front, run.options.tolerance)[EXTREMES[1]]
    states, outcome = episodes(run.system(), run.policy(lowest), episode_keys(SEEDS))
    serving = ~np.asarray(outcome.executed.train) & (np.asarray(states.queue) > 0)
    latencies = np.asarray(outcome.latency_s, np.float64)[serving]
    return np.quantile(latencies, np.linspace(0, 1, QUANTILES)) if len(latencies) else np.full(QUANTILES, np.nan)
