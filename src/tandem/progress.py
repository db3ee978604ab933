"""Progress of long operations: functions that report it take a callable and pass it a ``Progress``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The amount of work done, out of the total; ``message`` describes the current step."""

    done: int
    total: int
    message: str = ""


ProgressCallback = Callable[[Progress], object]


def ignore_progress(progress: Progress) -> None:
    """Do nothing: the default of functions that report progress."""
