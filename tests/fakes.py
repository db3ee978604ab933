"""Results that nobody trained, for tests of what is made of them."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tandem.experiments.run_trial import QUANTILES
from tandem.experiments.sweep import Job, JobOutcome
from tandem.experiments.trial import Trial, TrialResult, write_result

DEADLY_SEED = 2
Volume = Callable[[Trial], float]


def fake_result(cell: Trial, hypervolume: float = 60.0, sparsity: float = 0.1) -> TrialResult:
    """A result of this hypervolume; nothing else about it tells algorithms apart."""
    random = np.random.default_rng(cell.seed)
    marks = np.arange(1, cell.marks + 1) / cell.marks
    front = np.stack([random.uniform(0.3, 0.6, 8), random.uniform(2.3, 3, 8), random.uniform(0.4, 20, 8)], axis=1)
    return TrialResult(
        trial=cell,
        rounds=cell.changes["rounds"],
        training_rounds=cell.changes["rounds"] // 2,
        wall_s=2.0 * cell.size,
        hypervolume=hypervolume,
        sparsity=sparsity,
        expected_utility=0.6,
        cardinality=8,
        violation_rate=0.0,
        front=front,
        curve=np.stack([cell.changes["rounds"] * marks, hypervolume * marks, sparsity * marks], axis=1),
        latency_s=np.linspace(1, 4, QUANTILES),
        device="abacus",
    )


@dataclass
class Pretending:
    """An engine that trains nothing, writes made-up results, and remembers what it was asked for."""

    volume: Volume = lambda cell: 60.0
    fails: Callable[[Trial], bool] = lambda cell: False
    asked: list[Job] = field(default_factory=list)

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        for job in jobs:
            self.asked.append(job)
            if any(self.fails(cell) for cell in job):
                yield JobOutcome(job, "the dog ate it")
                continue
            for cell in job:
                write_result(fake_result(cell, self.volume(cell)), out)
            yield JobOutcome(job)


def dying_once(job: Job, out: Path) -> None:
    """Work for a process: made-up results, but the first that comes to ``DEADLY_SEED`` is killed over it."""
    struck = out / "struck"
    if job[0].seed == DEADLY_SEED and not struck.exists():
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    for cell in job:
        write_result(fake_result(cell), out)


def dying(job: Job, out: Path) -> None:
    """The same, but every one that comes to it is killed."""
    (out / "struck").unlink(missing_ok=True)
    dying_once(job, out)


class Silent:
    """Watches a sweep without a word."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.done: list[JobOutcome] = []

    def beginning(self, finished: int, cells: int) -> None:
        self.begun.append((finished, cells))

    def ended(self, done: JobOutcome) -> None:
        self.done.append(done)
