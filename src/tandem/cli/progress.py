"""The progress display of all commands: a bar on a terminal, otherwise a line every few seconds, both on stderr."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from tandem.cli.formatting import format_duration
from tandem.progress import ProgressCallback

LINE_EVERY_S = 5.0  # between two lines of progress where there is no terminal to draw a bar on
RECENT_UPDATES = 20  # that the speed is computed from

Update = Callable[[int, int, str], None]  # takes the number of items done, the total, and the name of the items


class ProgressDisplay:
    """A display of the current activity, its progress, the time elapsed and the time left."""

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._activity = ""
        self._console = Console(stderr=True)
        self._bar = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            console=self._console,
        )
        self._row = self._bar.add_task(title or "preparing", total=None)
        self._details = Text("", style="dim", overflow="fold")
        self._live = Live(self, console=self._console, transient=True) if self._console.is_terminal else None
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_UPDATES)
        self._started_at = self._printed_at = time.monotonic()

    def __rich__(self) -> Group:
        return Group(self._bar, self._details) if self._details.plain else Group(self._bar)

    def __enter__(self) -> ProgressDisplay:
        self._started_at = time.monotonic()
        if self._live:
            self._live.start()
        elif self._title:
            self.print(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def print(self, line: str) -> None:
        """Print a permanent line above the bar."""
        self._printed_at = time.monotonic()
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def describe(self, activity: str) -> None:
        """Show the current activity, for which there are no counts."""
        self._begin(activity)
        if self._live is None:
            self.print(activity)

    def update(self, done: int, total: int, what: str, activity: str = "", elapsed_s: float | None = None) -> None:
        """Show that ``done`` of ``total`` items are done; ``what`` names the items, with any details after a comma."""
        if activity != self._activity:
            self._begin(activity)
            self._printed_at = float("-inf")  # print a line for the first update of an activity
        self._recent.append((time.monotonic(), done))
        elapsed = time.monotonic() - self._started_at if elapsed_s is None else elapsed_s
        parts = [f"{done:,} of {total:,} {what}", f"{format_duration(elapsed)} elapsed"]
        if self.speed and done < total:
            parts.append(f"{format_duration((total - done) / self.speed)} left")
        self._bar.update(self._row, completed=done, total=total)
        self._details.plain = "  " + ", ".join(parts)
        if self._live is None and time.monotonic() - self._printed_at >= LINE_EVERY_S:
            line = ": ".join(part for part in (activity, ", ".join(parts)) if part)
            self.print(activity if activity and done == 0 else line)

    def _begin(self, activity: str) -> None:
        self._activity = activity
        self._recent.clear()  # another activity may have another speed
        self._bar.update(self._row, description=activity or self._title)

    @property
    def speed(self) -> float | None:
        """The number of items done per second, over the last updates; None before the second update."""
        if len(self._recent) < 2:
            return None
        (first, before), (last, after) = self._recent[0], self._recent[-1]
        return (after - before) / max(last - first, 1e-6)


@contextmanager
def progress_bar(title: str) -> Iterator[Update]:
    """Show the progress of an operation with counts; yields a function to call with the counts."""
    with ProgressDisplay(title) as display:
        yield display.update


@contextmanager
def progress_callback(title: str, what: str) -> Iterator[ProgressCallback]:
    """Show the progress that a function reports to a callback; ``what`` names the counted items."""
    with ProgressDisplay(title) as display:
        yield lambda now: display.update(now.done, now.total, what, now.message)


@contextmanager
def spinner(title: str) -> Iterator[None]:
    """Show that an operation without counts is running."""
    with ProgressDisplay(title):
        yield
