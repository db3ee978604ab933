"""Training as TensorBoard shows it; needs the extra ``tensorboard``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from tandem.errors import InputError
from tandem.learn.algorithm import Algorithm
from tandem.learn.train_loop import Progress
from tandem.runs.run_dir import TENSORBOARD, RunRecord
from tandem.runs.trainer import Callback

SCALARS = ("hypervolume", "policies", "violation_rate", "entropy", "value_error", "clipped")


class TensorBoard(Callback):
    """Writes a point for each chunk, over environment rounds, to the run's folder ``tensorboard``."""

    def __init__(self) -> None:
        try:
            import tensorboardX
        except ImportError:
            raise InputError(
                "--tensorboard: the package tensorboardX is not installed; install it with "
                "'pip install \"tandem[tensorboard]\"', or leave the option out."
            ) from None
        self._package = tensorboardX
        self._writer: Any = None

    def on_start(self, folder: Path, algorithm: Algorithm, rounds: int) -> None:
        # What was written of chunks that will be run again is taken back.
        self._writer = self._package.SummaryWriter(str(folder / TENSORBOARD), purge_step=rounds + 1)

    def on_chunk(self, progress: Progress, wall_s: float) -> None:
        values = asdict(progress)
        for name in SCALARS:
            self._writer.add_scalar(f"training/{name}", values[name], progress.rounds)
        self._writer.add_scalar("training/wall_s", wall_s, progress.rounds)
        self._writer.flush()

    def on_end(self, record: RunRecord) -> None:
        for name in ("hypervolume", "sparsity", "policies", "violation_rate"):
            self._writer.add_scalar(f"front/{name}", getattr(record, name), record.rounds)
        self._writer.close()
