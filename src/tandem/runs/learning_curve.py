"""curve.csv: the fronts during training, each measured like the final front.

The hypervolume in progress.csv is that of the archive in training episodes: it is biased towards lucky episodes and not
comparable between algorithms. Here the candidates so far are validated, and the front is chosen and measured again.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.feel.types import Array
from tandem.io.tables import write_csv
from tandem.learn.algorithm import Algorithm
from tandem.learn.train_loop import (
    Checkpoint,
    is_finished,
    reference_point,
    rounds_done,
    select_run,
    validate,
    validation_keys,
)
from tandem.learn.validation import select_front, within_tolerance
from tandem.pareto import hypervolume, sparsity
from tandem.policy.evaluate import evaluate_policies, rollout_stack
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs.final_evaluation import EvaluationTarget
from tandem.runs.run_dir import RunRecord
from tandem.runs.simulation import episode_keys
from tandem.tree import tree_index

CURVE = "curve.csv"


@dataclass(frozen=True)
class CurvePoint:
    """A point of the curve."""

    rounds: int  # spent until then, validation at that time included
    hypervolume: float  # this and sparsity: of the policies within the tolerance
    sparsity: float
    policies: int  # of the front, within the tolerance or not


class LearningCurve:
    """The evaluation of a run during training, after every ``1 / points`` of it; the last point is the run's result.

    With a target, candidates are still chosen by validation in the environment of the training, and the front is
    measured on the target.
    """

    def __init__(
        self,
        folder: Path,
        algorithm: Algorithm,
        seed: int,
        points: int,
        target: EvaluationTarget | None = None,
        rounds: int = 0,
    ) -> None:
        """Start a curve, or continue that of a run that was interrupted after ``rounds``."""
        self._path = folder / CURVE
        self._algorithm = algorithm
        self._seed = seed
        self._points = points
        self._target = target
        # Points after the checkpoint are evaluated again; one that an interruption prevented is due at the next chunk.
        self._curve = read_curve(self._path)[: self._due(rounds)] if rounds and self._path.exists() else []
        self._done = len(self._curve)

    def update(self, checkpoint: Checkpoint, index: int = 0) -> None:
        """Evaluate a checkpoint if a point is due; ``index`` is that of the seed if several are trained together."""
        algorithm = self._algorithm
        rounds = rounds_done(algorithm, checkpoint)
        due = self._due(rounds)
        if due == self._done or is_finished(algorithm, checkpoint):
            return
        stacked = checkpoint.seeds is not None
        if self._target is None:
            front = _evaluate_state(algorithm, checkpoint.state, self._seed, index if stacked else None)
        else:
            single = select_run(checkpoint, index) if stacked else checkpoint
            front = _evaluate_on(self._target, algorithm, single, self._seed)
        points = front.rewards[within_tolerance(front.violation_rate, algorithm.config.tolerance)]
        volume = hypervolume(points, reference_point(algorithm))
        self._add(CurvePoint(rounds + front.validation_rounds, volume, sparsity(points), len(front.rewards)))
        self._done = due

    def finish(self, record: RunRecord) -> None:
        """Add the result of the finished run."""
        self._add(CurvePoint(record.rounds, record.hypervolume or 0.0, record.sparsity or 0.0, record.policies or 0))

    def _due(self, rounds: int) -> int:
        return self._points * rounds // self._algorithm.training_rounds

    def _add(self, point: CurvePoint) -> None:
        self._curve = [*(earlier for earlier in self._curve if earlier.rounds < point.rounds), point]
        write_curve(self._path, self._curve)


class _MeasuredPoints(NamedTuple):
    """The front that validation would choose now, as measured."""

    rewards: NDArray[np.float64]  # [policies, 3]
    violation_rate: NDArray[np.float64]  # [policies]
    validation_rounds: int


def _evaluate_state(algorithm: Algorithm, state: Any, seed: int, index: int | None) -> _MeasuredPoints:
    """Validate the candidates of a state, and measure the front."""
    validation = validation_keys(algorithm, seed)
    keys = jnp.concatenate([validation, episode_keys(FINAL_EVALUATION_SEEDS)])
    which = None if index is None else jnp.asarray(index)
    valid, rewards, violated = jax.device_get(_evaluate_all(algorithm, algorithm.environment, state, which, keys))
    count = len(validation)
    validated = np.where(valid[:, None], rewards[:, :count].mean(axis=1, dtype=np.float64), np.nan)
    violation_rate = np.where(valid, violated[:, :count].mean(axis=1, dtype=np.float64), np.nan)
    chosen, _ = select_front(validated, violation_rate, algorithm.config.tolerance)
    return _MeasuredPoints(
        rewards[chosen, count:].mean(axis=1, dtype=np.float64),
        violated[chosen, count:].mean(axis=1, dtype=np.float64),
        int(valid.sum()) * count * algorithm.environment.rounds,
    )


def _evaluate_on(target: EvaluationTarget, algorithm: Algorithm, checkpoint: Checkpoint, seed: int) -> _MeasuredPoints:
    """Return the same as ``_evaluate_state``, measured on a target in batches, which limit memory."""
    validation = validate(algorithm, checkpoint, seed)
    if len(validation.chosen) == 0:
        return _MeasuredPoints(np.zeros((0, 3)), np.zeros(0), validation.rounds)
    keys = episode_keys(target.seeds)
    batches = list(evaluate_policies(Environment(target.system), validation.policies, keys, validation.chosen))
    return _MeasuredPoints(
        np.concatenate([means.reward.mean(axis=1) for means in batches]),
        np.concatenate([means.violated_any.mean(axis=1) for means in batches]),
        validation.rounds,
    )


@eqx.filter_jit
def _evaluate_all(
    algorithm: Algorithm, environment: Environment, state: Any, index: Array | None, keys: Array
) -> tuple[Array, Array, Array]:
    """Simulate every candidate, valid or not, on every key: one shape, and so one program, for the whole training."""
    candidates = algorithm.candidates(state if index is None else tree_index(state, index))
    means = rollout_stack(environment, algorithm.policies(candidates), keys)
    return candidates.valid, means.reward, means.violated_any


def write_curve(path: Path, curve: Sequence[CurvePoint]) -> None:
    """Write a curve to a CSV file."""
    write_csv(path, (field.name for field in fields(CurvePoint)), (astuple(point) for point in curve))


def read_curve(path: Path) -> list[CurvePoint]:
    """Read a curve from a CSV file."""
    try:
        with path.open(newline="", encoding="utf-8") as handle:
            return [
                CurvePoint(int(row["rounds"]), float(row["hypervolume"]), float(row["sparsity"]), int(row["policies"]))
                for row in csv.DictReader(handle)
            ]
    except (OSError, KeyError, TypeError, ValueError):
        raise InputError(f"{path}: is not the curve of a run; delete it to continue without its beginning.") from None
