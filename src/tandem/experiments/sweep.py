"""A sweep: an executor runs the unfinished trials; finished trials are never run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tandem.errors import InputError
from tandem.experiments.trial import Trial, TrialResult, group_by_seed, read_result

Job = tuple[Trial, ...]  # trials that differ in their seed only, trained in one program


@dataclass(frozen=True)
class JobOutcome:
    """A job that has ended, and the reason if it failed."""

    job: Job
    failure: str | None = None


class Executor(Protocol):
    """The interface of executors, which run jobs in this process, in several, or on a cluster."""

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        """Run jobs in any order. A job's results are below ``out`` by the time its outcome is yielded."""


class SweepCallback(Protocol):
    """The callback of a sweep."""

    def on_start(self, finished: int, trials: int) -> None:
        """Handle the start, with the number of trials that are already finished and the number of all."""

    def on_job_end(self, outcome: JobOutcome) -> None:
        """Handle the end of a job."""


def sweep(
    trials: Sequence[Trial],
    out: Path,
    executor: Executor,
    seeds_per_job: int = 1,
    callback: SweepCallback | None = None,
) -> dict[Trial, TrialResult]:
    """Run the trials that are not finished, and return the results of all.

    Failed trials are reported when all others are done; a second sweep tries them again.
    """
    wanted = list(dict.fromkeys(trials))
    stored = {trial: read_result(trial, out) for trial in wanted}
    missing = [trial for trial, result in stored.items() if result is None]
    if callback:
        callback.on_start(len(wanted) - len(missing), len(wanted))
    failures = []
    for outcome in executor.run(make_jobs(missing, seeds_per_job), out) if missing else ():
        if callback:
            callback.on_job_end(outcome)
        if outcome.failure is not None:
            failures.append(f"{outcome.job[0].name}: {outcome.failure}")
    results = {trial: result or read_result(trial, out) for trial, result in stored.items()}
    failed = sum(result is None for result in results.values())
    if failures or failed:
        reason = f" First failure: {failures[0]}" if failures else ""
        raise InputError(
            f"{out}: {failed} of {len(wanted)} trials failed; run the same command again to retry them.{reason}"
        )
    return {trial: result for trial, result in results.items() if result is not None}


def make_jobs(trials: Sequence[Trial], seeds_per_job: int) -> list[Job]:
    """Group trials into jobs of at most ``seeds_per_job`` seeds. The jobs that take longest come first."""
    jobs = [
        group[start : start + seeds_per_job]
        for group in group_by_seed(trials)
        for start in range(0, len(group), seeds_per_job)
    ]
    return sorted(jobs, key=lambda job: (not _is_oracle(job[0]), -job[0].curve_points, -job[0].size))


def _is_oracle(trial: Trial) -> bool:
    return trial.reward_source is not None and trial.reward_source.oracle
