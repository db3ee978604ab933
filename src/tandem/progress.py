"""Progress of work that takes a while: functions that report it take a callable and pass it a ``Progress``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How much of the work is done; ``message`` says what is being done."""

    done: int
    total: int
    message: str = ""


ProgressCallback = Callable[[Progress], object]


def ignore_progress(progress: Progress) -> None:
    """Do nothing: the default of functions that report progress."""
