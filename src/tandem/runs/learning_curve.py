"""curve.csv: what a run would have delivered had it ended earlier, measured as the final front is.

The hypervolume in progress.csv is that of the archive as training episodes saw it, lucky ones included, and what it is
for one algorithm cannot be compared with another. Here what was found so far is validated, chosen and measured anew.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.feel.types import Array
from tandem.io.tables import write_csv
from tandem.learn import train_loop as engine
from tandem.learn.algorithm import Algorithm
from tandem.learn.validation import select_front
from tandem.pareto import hypervolume, sparsity
from tandem.policy.evaluate import evaluate_policies, rollout_stack
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs.final_evaluation import EvaluationTarget
from tandem.runs.run_dir import RunRecord
from tandem.runs.simulation import episode_keys
from tandem.runs.trainer import Callback
from tandem.tree import tree_index

CURVE = "curve.csv"


@dataclass(frozen=True)
class CurvePoint:
    """A point of the curve."""

    rounds: int  # spent by then, had it been validated then
    hypervolume: float
    sparsity: float
    policies: int


class LearningCurve(Callback):
    """Measures after every ``1 / marks`` of the training; the last mark is the run's result.

    With a yardstick, candidates are still chosen by what is trained on, and what is chosen is measured by that.
    """

    def __init__(self, marks: int, yardstick: EvaluationTarget | None = None) -> None:
        self._marks = marks
        self._yardstick = yardstick
        self._path = Path()
        self._curve: list[CurvePoint] = []
        self._passed = 0

    def on_start(self, folder: Path, algorithm: Algorithm, rounds: int) -> None:
        self._path = folder / CURVE
        self._passed = self._due(algorithm, rounds)
        self._curve = read_curve(self._path)[: self._passed] if self._path.exists() else []

    def on_checkpoint(self, algorithm: Algorithm, now: engine.Checkpoint, seed: int, index: int | None = None) -> None:
        done = engine.rounds_done(algorithm, now)
        due = self._due(algorithm, done)
        if due == self._passed or engine.is_finished(algorithm, now):
            return
        if self._yardstick is None:
            points, validated = _would_deliver(algorithm, now.state, seed, index)
        else:
            alone = now if index is None else engine.select_run(now, index)
            points, validated = _would_measure(algorithm, alone, seed, self._yardstick)
        volume = hypervolume(points, engine.reference_point(algorithm))
        self._add(CurvePoint(done + validated, volume, sparsity(points), len(points)))
        self._passed = due

    def on_end(self, record: RunRecord) -> None:
        self._add(CurvePoint(record.rounds, record.hypervolume or 0.0, record.sparsity or 0.0, record.policies or 0))

    def _due(self, algorithm: Algorithm, rounds: int) -> int:
        return self._marks * rounds // sum(stage.rounds for stage in algorithm.stages)

    def _add(self, mark: CurvePoint) -> None:
        self._curve = [*(one for one in self._curve if one.rounds < mark.rounds), mark]
        write_curve(self._path, self._curve)


def _would_deliver(algorithm: Algorithm, state: Any, seed: int, index: int | None) -> tuple[NDArray[np.float64], int]:
    """The measured points of the front that validation would choose now, and the rounds this would take."""
    validation = engine.validation_keys(algorithm, seed)
    keys = jnp.concatenate([validation, episode_keys(FINAL_EVALUATION_SEEDS)])
    which = None if index is None else jnp.asarray(index)
    there, rewards, violated = jax.device_get(_played(algorithm, algorithm.environment, state, which, keys))
    count = len(validation)
    judged = np.where(there[:, None], rewards[:, :count].mean(axis=1, dtype=np.float64), np.nan)
    rate = np.where(there, violated[:, :count].mean(axis=1, dtype=np.float64), np.nan)
    chosen, _ = select_front(judged, rate, algorithm.config.tolerance)
    measured = rewards[chosen, count:].mean(axis=1, dtype=np.float64)
    return measured, int(there.sum()) * count * algorithm.environment.rounds


def _would_measure(
    algorithm: Algorithm, now: engine.Checkpoint, seed: int, yardstick: EvaluationTarget
) -> tuple[NDArray[np.float64], int]:
    """The same by a yardstick: in parts, for it may take more time and memory than a simulation does."""
    delivery = engine.validate(algorithm, now, seed)
    if len(delivery.chosen) == 0:
        return np.zeros((0, 3)), delivery.rounds
    environment, keys = Environment(yardstick.system), episode_keys(yardstick.seeds)
    parts = evaluate_policies(environment, delivery.policies, keys, delivery.chosen)
    return np.concatenate([part.reward.mean(axis=1) for part in parts]), delivery.rounds


@eqx.filter_jit
def _played(
    algorithm: Algorithm, environment: Environment, state: Any, index: Array | None, keys: Array
) -> tuple[Array, Array, Array]:
    """Every candidate, wanted or not, on every key: one shape, and so one program, for the whole of a training."""
    candidates = algorithm.candidates(state if index is None else tree_index(state, index))
    means = rollout_stack(environment, algorithm.policies(candidates), keys)
    return candidates.valid, means.reward, means.violated_any


def write_curve(path: Path, curve: Sequence[CurvePoint]) -> None:
    """Write a curve, all or nothing."""
    write_csv(path, (field.name for field in fields(CurvePoint)), (astuple(mark) for mark in curve))


def read_curve(path: Path) -> list[CurvePoint]:
    """Read one back."""
    try:
        with path.open(newline="", encoding="utf-8") as handle:
            return [
                CurvePoint(int(row["rounds"]), float(row["hypervolume"]), float(row["sparsity"]), int(row["policies"]))
                for row in csv.DictReader(handle)
            ]
    except (OSError, KeyError, TypeError, ValueError):
        raise InputError(f"{path}: is not the curve of a run; delete it to go on without its beginning.") from None
