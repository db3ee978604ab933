"""A sweep: the cells that are not finished yet, handed to an engine; what is finished is never done again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tandem.errors import InputError
from tandem.experiments.trial import Trial, TrialResult, group_by_seed, read_result

Job = tuple[Trial, ...]  # cells that differ in their seed alone, done in one program


@dataclass(frozen=True)
class JobOutcome:
    """A job that has come to an end, well or not."""

    job: Job
    failure: str | None = None


class Executor(Protocol):
    """Where jobs are done."""

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        """Do them in any order; a job's results are below ``out`` when it is named here."""


class SweepCallback(Protocol):
    """Told how a sweep goes."""

    def on_start(self, finished: int, cells: int) -> None:
        """So many of the cells are finished already."""

    def on_job_end(self, done: JobOutcome) -> None:
        """A job has come to an end."""


class NullCallback:
    """For a sweep that nobody looks at."""

    def on_start(self, finished: int, cells: int) -> None:
        """Nothing to show."""

    def on_job_end(self, done: JobOutcome) -> None:
        """Nothing to show."""


def sweep(
    cells: Sequence[Trial], out: Path, engine: Executor, together: int, watcher: SweepCallback
) -> dict[Trial, TrialResult]:
    """Do what is not done, up to so many seeds together in a program, and return the results of all.

    Cells that fail are named when everything else is done; a second sweep tries them again.
    """
    wanted = list(dict.fromkeys(cells))
    found = {cell: read_result(cell, out) for cell in wanted}
    missing = [cell for cell, result in found.items() if result is None]
    watcher.on_start(len(wanted) - len(missing), len(wanted))
    failures = []
    for done in engine.run(jobs_of(missing, together), out) if missing else ():
        watcher.on_job_end(done)
        if done.failure is not None:
            failures.append(f"{done.job[0].name}: {done.failure}")
    results = {cell: result or read_result(cell, out) for cell, result in found.items()}
    if failures or None in results.values():
        lost = sum(result is None for result in results.values())
        why = f" The first: {failures[0]}" if failures else ""
        raise InputError(f"{out}: {lost} of {len(wanted)} cells failed; run the same command again to retry them.{why}")
    return {cell: result for cell, result in results.items() if result is not None}


def jobs_of(cells: Sequence[Trial], together: int) -> list[Job]:
    """Cells that can run in one program, so many at a time. Those that take longest come first."""
    jobs = [
        group[start : start + together] for group in group_by_seed(cells) for start in range(0, len(group), together)
    ]
    return sorted(jobs, key=lambda job: (not _oracle(job[0]), -job[0].marks, -job[0].size))


def _oracle(cell: Trial) -> bool:
    return cell.reward_source is not None and cell.reward_source.oracle
