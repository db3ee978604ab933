"""Executors of a sweep's jobs: in this process, in several processes, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from tandem.errors import InputError
from tandem.experiments.run_trial import run_trials
from tandem.experiments.sweep import Job, JobOutcome
from tandem.experiments.trial import TrialResult, read_result, write_result

CONNECT_TIMEOUT_S = 5.0  # for the address of a Ray cluster
RAY_RETRIES = 5  # of a job whose worker or node is lost

RunJob = Callable[[Job, Path], str | None]  # runs a job below a folder; returns the reason if it failed


def try_job(job: Job, out: Path) -> str | None:
    """Run a job; return the reason if it failed."""
    try:
        run_trials(job, out)
    except InputError as error:
        return str(error)
    except (RuntimeError, OSError, ArithmeticError, ValueError) as error:  # other jobs may still succeed
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


class SerialExecutor:
    """An executor that runs jobs one after another in this process."""

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        """Run jobs in the order given."""
        previous: tuple[str, int] | None = None
        for job in jobs:
            programs = (job[0].algorithm, job[0].size)
            if previous not in (None, programs):
                jax.clear_caches()  # type: ignore[no-untyped-call]  # these programs are not needed again
            previous = programs
            yield JobOutcome(job, try_job(job, out))


@dataclass(frozen=True)
class ProcessExecutor:
    """An executor that runs several jobs at a time in separate processes, for many cores or a partly idle GPU."""

    workers: int
    run_job: RunJob = try_job

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        """Yield jobs as they end. Jobs lost with a killed process are retried as long as other jobs end."""
        waiting = list(jobs)
        while waiting:
            # A pool breaks when one of its processes is killed; the jobs that had not started get a new pool.
            lost: list[Job] = []
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(self.workers, mp_context=spawn, initializer=_exit_with_parent)
            try:
                futures: dict[Future[str | None], Job] = {pool.submit(self.run_job, job, out): job for job in waiting}
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


def _exit_with_parent() -> None:
    """End a worker whose parent was killed, since no process would collect its results."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True)
class RayExecutor:
    """An executor on the nodes of a Ray cluster, which share no disk: results are returned, run folders stay there.

    A job that is lost with its node is run again on another one.
    """

    address: str | None  # of a running cluster; None starts one on this machine
    cpus: float = 1.0  # requested per job
    gpus: float = 0.0

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        """Yield jobs as they end."""
        ray = _import_ray()
        connected = not ray.is_initialized()
        if connected:
            _connect(ray, self.address)
        try:
            yield from self._run(ray, jobs, out)
        finally:
            if connected:
                ray.shutdown()

    def _run(self, ray: Any, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RAY_RETRIES)(_run_on_node)
        waiting = {remote.remote(job): job for job in jobs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                yield JobOutcome(waiting.pop(reference), _collect(ray, reference, out))


def _run_on_node(job: Job) -> tuple[list[dict[str, Any]], str | None]:
    """Run a job on a node in a temporary folder, and return its results and the reason if it failed."""
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        failure = try_job(job, Path(folder))
        results = [read_result(trial, Path(folder)) for trial in job]
        return [result.document() for result in results if result is not None], failure


def _collect(ray: Any, reference: Any, out: Path) -> str | None:
    """Write the results of a job that ended on a node; return the reason if it failed."""
    try:
        documents, failure = ray.get(reference)
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    for document in documents:
        write_result(TrialResult.from_document(document), out)
    return None if failure is None else str(failure)


def _connect(ray: Any, address: str | None) -> None:
    if address is not None:
        _check_address(address)
    local = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address is None else {}
    try:
        ray.init(address=address, log_to_driver=False, **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _unreachable(address, str(error).splitlines()[0]) from None


def _check_address(address: str) -> None:
    """Raise InputError for an address that does not answer; Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise InputError(f"--address {address}: is not HOST:PORT; write one such as 10.0.0.1:6379, or auto.")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str | None, reason: str) -> InputError:
    return InputError(
        f"--address {address}: no Ray cluster answers there ({reason}); start one with 'ray start --head'."
    )


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("--executor ray: Ray is not installed; pip install 'tandem[ray]'.") from None
    return ray


def default_seeds_per_job(seeds: int) -> int:
    """Return how many seeds to train in one program: all on a GPU; one on a CPU, which one training run saturates."""
    return seeds if jax.default_backend() != "cpu" else 1
