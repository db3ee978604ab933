"""Fake trial results, executors and callbacks, for tests that need no training."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tandem.experiments.run_trial import QUANTILES
from tandem.experiments.sweep import Job, JobOutcome
from tandem.experiments.trial import Trial, TrialResult, write_result

FATAL_SEED = 2


def fake_result(trial: Trial, hypervolume: float = 60.0, sparsity: float = 0.1) -> TrialResult:
    """A result of this hypervolume; algorithms differ in nothing else."""
    random = np.random.default_rng(trial.seed)
    points = np.arange(1, trial.curve_points + 1) / trial.curve_points
    front = np.stack([random.uniform(0.3, 0.6, 8), random.uniform(2.3, 3, 8), random.uniform(0.4, 20, 8)], axis=1)
    budget = trial.changes["budget"]
    return TrialResult(
        trial=trial,
        scenario=trial.fingerprint,
        rounds=budget,
        training_rounds=budget // 2,
        wall_s=2.0 * trial.size,
        hypervolume=hypervolume,
        sparsity=sparsity,
        expected_utility=0.6,
        cardinality=8,
        violation_rate=0.0,
        policies_within_tolerance=8,
        discarded_share=0.0,
        training_violation_rate=0.0,
        late_violation_rate=0.0,
        front=front,
        curve=np.stack([budget * points, hypervolume * points, sparsity * points], axis=1),
        latency_s=np.linspace(1, 4, QUANTILES),
        device="abacus",
    )


@dataclass
class FakeExecutor:
    """An executor that trains nothing, writes fake results, and records the jobs it was given."""

    hypervolume: Callable[[Trial], float] = lambda trial: 60.0
    fails: Callable[[Trial], bool] = lambda trial: False
    jobs: list[Job] = field(default_factory=list)

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        for job in jobs:
            self.jobs.append(job)
            if any(self.fails(trial) for trial in job):
                yield JobOutcome(job, "no space left")
                continue
            for trial in job:
                write_result(fake_result(trial, self.hypervolume(trial)), out)
            yield JobOutcome(job)


def killed_once(job: Job, out: Path) -> None:
    """Write fake results; the first process that reaches ``FATAL_SEED`` is killed."""
    killed = out / "killed"
    if job[0].seed == FATAL_SEED and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    for trial in job:
        write_result(fake_result(trial), out)


def killed_always(job: Job, out: Path) -> None:
    """Write fake results; every process that reaches ``FATAL_SEED`` is killed."""
    (out / "killed").unlink(missing_ok=True)
    killed_once(job, out)


class RecordingCallback:
    """A sweep's callback that records its calls."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.outcomes: list[JobOutcome] = []

    def on_start(self, finished: int, trials: int) -> None:
        self.started.append((finished, trials))

    def on_job_end(self, outcome: JobOutcome) -> None:
        self.outcomes.append(outcome)
