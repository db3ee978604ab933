"""Where the jobs of a sweep are done by a Ray cluster. The only place that imports ray."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import InputError
from tandem.experiments.sweep import Job, JobOutcome
from tandem.experiments.trial import TrialResult, write_result

PATIENCE_S = 5.0  # with an address that may not answer
RETRIES = 5  # of a job whose worker or node is lost


@dataclass(frozen=True)
class RayExecutor:
    """Jobs spread over the nodes of a Ray cluster, which share no disk: results come back, runs stay there.

    A job that is lost with its node is done again elsewhere.
    """

    address: str | None  # of a running cluster; None starts one on this machine
    cpus: float = 1.0  # that a job asks for
    gpus: float = 0.0

    def run(self, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        """As they end."""
        ray = _ray()
        started = not ray.is_initialized()
        if started:
            _connect(ray, self.address)
        try:
            yield from self._run(ray, jobs, out)
        finally:
            if started:
                ray.shutdown()

    def _run(self, ray: Any, jobs: Sequence[Job], out: Path) -> Iterator[JobOutcome]:
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES)(_perform_elsewhere)
        waiting = {remote.remote(job): job for job in jobs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                job = waiting.pop(reference)
                yield JobOutcome(job, _received(ray, reference, out))


def _received(ray: Any, reference: Any, out: Path) -> str | None:
    """Write a job's results; what went wrong, or None."""
    try:
        documents, failure = ray.get(reference)
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    for document in documents:
        write_result(TrialResult.from_document(document), out)
    return None if failure is None else str(failure)


def _perform_elsewhere(job: Job) -> tuple[list[dict[str, Any]], str | None]:
    """On a node: do the job in a folder of its own, and bring back what it leaves."""
    from tandem.experiments.executors import try_job
    from tandem.experiments.trial import read_result

    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        failure = try_job(job, Path(folder))
        results = [read_result(cell, Path(folder)) for cell in job]
        return [result.document() for result in results if result is not None], failure


def _connect(ray: Any, address: str | None) -> None:
    if address is not None:
        _check_answers(address)
    here = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address is None else {}
    try:
        ray.init(address=address, log_to_driver=False, **here)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _unreachable(address, str(error).splitlines()[0]) from None


def _check_answers(address: str) -> None:
    """Refuse an address where nobody listens: Ray would try for minutes before it says so."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise InputError(f"--address {address}: is not HOST:PORT; write one such as 10.0.0.1:6379, or auto.")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str | None, why: str) -> InputError:
    return InputError(f"--address {address}: no Ray cluster answers there ({why}); start one with 'ray start --head'.")


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray: Ray is not installed; pip install 'tandem[ray]'.") from None
    return ray
