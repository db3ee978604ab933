"""How a training looks while it goes on: a bar on a terminal, now and then a line elsewhere, both on stderr."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from tandem.learn.algorithm import Algorithm
from tandem.learn.train_loop import Progress
from tandem.runs.trainer import Callback

LINE_EVERY_S = 5.0
RECENT = 20  # chunks that speed is reckoned from


class LiveProgress(Callback):
    """Shows stage, steps, rounds, speed, front so far, violations, time spent and time left."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Bar(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), console=self._console
        )
        self._task = self._bar.add_task("preparing", total=None)
        self._text = Text("", style="dim", overflow="fold")
        self._live = Live(self, console=self._console, transient=True) if self._console.is_terminal else None
        self._speed = Speed()
        self._stage = -1
        self._said_at = float("-inf")

    def __rich__(self) -> Group:
        return Group(self._bar, self._text)

    def __enter__(self) -> LiveProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def on_start(self, folder: Path, algorithm: Algorithm, rounds: int) -> None:
        planned = sum(stage.rounds for stage in algorithm.stages)
        self._bar.update(self._task, total=planned, completed=rounds)
        how = f"going on after {rounds:,} of {planned:,} rounds" if rounds else f"{planned:,} rounds"
        devices = algorithm.system.size
        self._say(f"Training {algorithm.name} for {devices} device{'s' if devices > 1 else ''}: {how}, into {folder}")

    def on_compile(self, stage: str) -> None:
        self._speed.forget()
        self._doing(f"compiling {stage}, which takes some ten seconds the first time")

    def on_chunk(self, progress: Progress, wall_s: float) -> None:
        self._speed.add(progress.rounds)
        details = _details(progress, wall_s, self._speed.rounds_per_s)
        self._bar.update(self._task, description=progress.stage, completed=progress.rounds)
        self._text.plain = f"  step {progress.step:,} of {progress.steps:,}, {details}"
        new_stage, self._stage = progress.number != self._stage, progress.number
        if self._live is None and (new_stage or time.monotonic() - self._said_at >= LINE_EVERY_S):
            self._say(f"{progress.stage}: step {progress.step:,} of {progress.steps:,}, {details}")

    def on_validate(self) -> None:
        self._doing("validating the candidates for the front")

    def on_measure(self, policies: int) -> None:
        self._doing(f"measuring {policies} polic{'y' if policies == 1 else 'ies'} on fresh seeds")

    def _doing(self, what: str) -> None:
        self._bar.update(self._task, description=what)
        if self._live is None:
            self._say(what)

    def _say(self, line: str) -> None:
        self._said_at = time.monotonic()
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Speed:
    """Rounds per second over the last chunks."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=RECENT)

    def forget(self) -> None:
        """What comes next runs another program, and its compilation is no guide to its speed."""
        self._seen.clear()

    def add(self, rounds: int) -> None:
        """So many rounds are done now."""
        self._seen.append((time.monotonic(), rounds))

    @property
    def rounds_per_s(self) -> float | None:
        """None until there is something to reckon from."""
        if len(self._seen) < 2:
            return None
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / max(last - first, 1e-6)


def _details(progress: Progress, wall_s: float, rounds_per_s: float | None) -> str:
    parts = [f"{progress.rounds:,} of {progress.planned_rounds:,} rounds"]
    if rounds_per_s is not None:
        parts.append(f"{rounds_per_s:,.0f} rounds/s")
    parts += [
        f"hypervolume {progress.hypervolume:.4g}",
        f"{progress.policies} polic{'y' if progress.policies == 1 else 'ies'}",
        f"violations {progress.violation_rate:.1%}",
        f"{duration(wall_s)} elapsed",
    ]
    if rounds_per_s:
        parts.append(f"{duration((progress.planned_rounds - progress.rounds) / rounds_per_s)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """As h:mm:ss, or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
