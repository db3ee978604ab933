"""The progress display of a training run."""

from __future__ import annotations

from types import TracebackType

from tandem.cli.formatting import count, plural_policies
from tandem.cli.progress import ProgressDisplay
from tandem.learn.train_loop import ChunkProgress
from tandem.runs.callbacks import Callback, RunStart


class TrainingProgress(Callback):
    """A callback that shows stage, steps, rounds, speed, the current front, violations, time elapsed and time left."""

    def __init__(self) -> None:
        self._display = ProgressDisplay()

    def __enter__(self) -> TrainingProgress:
        self._display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def on_start(self, start: RunStart) -> None:
        planned = f"{start.planned_rounds:,} rounds"
        budget = f"continuing after {start.rounds:,} of {planned}" if start.rounds else planned
        devices = count(start.devices, "device", "devices")
        self._display.print(f"Training {start.algorithm} for {devices}: {budget}, into {start.folder}")

    def on_compile(self, stage: str) -> None:
        self._display.describe(f"compiling {stage} (about ten seconds the first time)")

    def on_chunk(self, progress: ChunkProgress, wall_s: float) -> None:
        parts = ["rounds", f"step {progress.step:,} of {progress.steps:,}"]
        if self._display.speed:
            parts.append(f"{self._display.speed:,.0f} rounds/s")
        parts += [
            f"hypervolume {progress.hypervolume:.4g}",
            plural_policies(progress.policies),
            f"violations {progress.violation_rate:.1%}",
        ]
        self._display.update(progress.rounds, progress.planned_rounds, ", ".join(parts), progress.stage, wall_s)

    def on_validate(self) -> None:
        self._display.describe("validating the candidates for the front")

    def on_measure(self, policies: int) -> None:
        self._display.describe(f"measuring {plural_policies(policies)} on new seeds")
