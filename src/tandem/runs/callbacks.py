"""Callbacks that follow a training run, between its chunks of steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import InputError
from tandem.io.atomic import explain_write_errors
from tandem.io.tables import write_json
from tandem.learn.train_loop import ChunkProgress
from tandem.objectives import to_user_units
from tandem.pareto import nondominated_indices
from tandem.runs.run_dir import TENSORBOARD, TRAINING_FRONT, RunRecord, continue_with

SCALARS = ("hypervolume", "policies", "violation_rate", "entropy", "value_error", "clipped")


@dataclass(frozen=True)
class RunStart:
    """A run that is about to be trained."""

    folder: Path
    algorithm: str
    seed: int
    devices: int
    rounds: int  # environment rounds done before, if the run is resumed
    planned_rounds: int  # environment rounds of the whole training


class Callback:
    """Base class of callbacks, which receive the events of a training run. Every hook does nothing by default."""

    def on_start(self, start: RunStart) -> None:
        """Handle the start of training, or its resumption."""

    def on_compile(self, stage: str) -> None:
        """Handle the event before the first chunk of a stage, whose program is compiled first."""

    def on_chunk(self, progress: ChunkProgress, wall_s: float) -> None:
        """Handle the end of a chunk of steps."""

    def on_validate(self) -> None:
        """Handle the end of training, before the candidates for the front are evaluated."""

    def on_measure(self, policies: int) -> None:
        """Handle the choice of a front with this many policies, before it is measured on held-out seeds."""

    def on_end(self, record: RunRecord) -> None:
        """Handle the end of a run, after all files are written."""


class ProgressFunction(Callback):
    """A callback that calls a function with the progress after every chunk."""

    def __init__(self, function: Callable[[ChunkProgress], object]) -> None:
        self._function = function

    def on_chunk(self, progress: ChunkProgress, wall_s: float) -> None:
        self._function(progress)


class TrainingFront(Callback):
    """A callback that writes the non-dominated points of the training so far, for viewers, to training-front.json.

    It writes at most once in ``every_s``, and removes the file at the end of the run, which has a front then.
    """

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._written_s = -every_s
        self._folder = Path()

    def on_start(self, start: RunStart) -> None:
        self._folder = start.folder

    def on_chunk(self, progress: ChunkProgress, wall_s: float) -> None:
        if time.monotonic() - self._written_s < self._every_s:
            return
        points = to_user_units(progress.points[nondominated_indices(progress.points)])
        with explain_write_errors(self._folder, then=continue_with(self._folder)):
            write_json(self._folder / TRAINING_FRONT, {"rounds": progress.rounds, "points": points.tolist()})
        self._written_s = time.monotonic()

    def on_end(self, record: RunRecord) -> None:
        (self._folder / TRAINING_FRONT).unlink(missing_ok=True)


class TensorBoard(Callback):
    """A callback that writes the metrics of each chunk, over environment rounds, to the run's folder ``tensorboard``.

    It needs the extra ``tensorboard``.
    """

    def __init__(self) -> None:
        try:
            import tensorboardX
        except ImportError:
            raise InputError(
                "--tensorboard: the package tensorboardX is not installed; install it with "
                "'pip install \"tandem[tensorboard]\"', or leave the option out."
            ) from None
        self._package = tensorboardX
        self._folder = Path()
        self._writer: Any = None

    def on_start(self, start: RunStart) -> None:
        self._folder = start.folder
        with self._writing():
            # Chunks after the checkpoint run again: their earlier points are removed.
            self._writer = self._package.SummaryWriter(str(start.folder / TENSORBOARD), purge_step=start.rounds + 1)

    def on_chunk(self, progress: ChunkProgress, wall_s: float) -> None:
        with self._writing():
            for name in SCALARS:
                self._writer.add_scalar(f"training/{name}", getattr(progress, name), progress.rounds)
            self._writer.add_scalar("training/wall_s", wall_s, progress.rounds)
            self._writer.flush()

    def on_end(self, record: RunRecord) -> None:
        for name in ("hypervolume", "sparsity", "policies", "violation_rate"):
            self._writer.add_scalar(f"front/{name}", getattr(record, name), record.rounds)
        with self._writing():
            self._writer.close()

    def _writing(self) -> AbstractContextManager[None]:
        return explain_write_errors(self._folder / TENSORBOARD, then=continue_with(self._folder))
