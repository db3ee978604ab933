"""Where the jobs of a sweep are done on this machine: in this process, or in several."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import jax

from tandem.errors import InputError
from tandem.experiments.run_trial import run_trials
from tandem.experiments.sweep import Job, JobOutcome

Work = Callable[[Job, Path], str | None]  # does a job below a folder, and says what went wrong, if anything


def try_job(job: Job, out: Path) -> str | None:
    """Do a job; what went wrong, or None."""
    try:
        run_trials(job, out)
    except InputError as error:
        return str(error)
    except (RuntimeError, OSError, ArithmeticError, ValueError) as error:  # of this job; the others may do well
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


class SerialExecutor:
    """One after another, in this process."""

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        """In their order."""
        before: tuple[str, int] | None = None
        for job in jobs:
            programs = (job[0].algorithm, job[0].size)
            if before not in (None, programs):
                jax.clear_caches()  # type: ignore[no-untyped-call]  # not needed again, and there may be hundreds
            before = programs
            yield JobOutcome(job, try_job(job, out))


@dataclass(frozen=True)
class ProcessExecutor:
    """Several at a time, each in a process of its own: for a GPU that one leaves idle, or many cores."""

    workers: int
    work: Work = try_job

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        """As they end. What is lost with a process that is killed is tried again, as long as others come to an end."""
        waiting = list(jobs)
        while waiting:
            # A pool breaks when one of its processes is killed; those whose turn had not come get a new one.
            lost: list[Job] = []
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(self.workers, mp_context=spawn, initializer=_end_with_parent)
            try:
                futures: dict[Future[str | None], Job] = {pool.submit(self.work, job, out): job for job in waiting}
                for future in as_completed(futures):
                    try:
                        yield JobOutcome(futures[future], future.result())
                    except BrokenProcessPool:
                        lost.append(futures[future])
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
            if len(lost) == len(waiting):
                yield from (JobOutcome(job, "its process was killed; is there enough memory?") for job in lost)
                return
            waiting = lost


def _end_with_parent() -> None:
    """Let a worker not outlive a parent that is killed: nobody would come for what it does."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def seeds_together(seeds: int) -> int:
    """How many seeds to train in one program where nobody says: all on a GPU, one on a CPU, which one keeps busy."""
    return seeds if jax.default_backend() != "cpu" else 1
