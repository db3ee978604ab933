"""Load for devices: requests that arrive at given rates, labels that follow later, and what a client sees of both.

Requests arrive at each device as a Poisson process, whatever the device does, so a slow device is not asked less. The
latency of a request counts from the moment at which it was due until its answer is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.io.tables import write_csv

COLUMNS = ("device", "due_s", "latency_s", "status", "prediction", "label", "labelled")
FEEDBACK_ATTEMPTS = 5
RETRY_S = 0.5


class RequestSource(Protocol):
    """Where requests come from."""

    def draw(self, device: int, number: int, time_s: float) -> tuple[NDArray[np.float32], int]:
        """Return the input and the right label of a device's request at a time since the start."""


@dataclass
class RequestRecord:
    """One request as the client sees it."""

    device: int
    due_s: float  # since the start
    label: int
    latency_s: float | None = None  # None without an answer
    status: int = 0  # of HTTP; 0: no connection, or no answer in time
    prediction: int | None = None
    labelled: bool = False  # whether the device has accepted the label

    @property
    def is_correct(self) -> bool:
        """Whether the prediction is right."""
        return self.prediction == self.label


@dataclass(frozen=True)
class LoadConfig:
    """Rates and times of the load."""

    rate_per_s: float  # requests at each device
    duration_s: float
    feedback_delay_s: float = 1.0  # mean; exponentially distributed
    timeout_s: float = 60.0  # how long a client waits for its answer
    seed: int = 0
    token: str | None = None


class FolderRequests:
    """Requests from a folder of .npy files, one input each, with their classes in ``labels.csv`` (file, label)."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        """Read the list of files; raises InputError if it is missing or wrong."""
        self._seed = seed
        path = folder / "labels.csv"
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self._entries = [(folder / row["file"], int(row["label"])) for row in rows]
        except OSError as error:
            raise InputError(f"--folder {folder}: {path.name} cannot be read ({error.strerror}).") from None
        except (KeyError, ValueError, TypeError):
            raise InputError(f"{path}: needs the columns file and label, with whole numbers as labels.") from None
        if not self._entries:
            raise InputError(f"{path}: has no lines; write one for each file.")
        for path, _ in self._entries:
            if not path.is_file():
                raise InputError(f"{path}: is named in labels.csv, but there is no such file.")

    def draw(self, device: int, number: int, time_s: float) -> tuple[NDArray[np.float32], int]:
        choice = np.random.default_rng([self._seed, device, number]).integers(len(self._entries))
        path, label = self._entries[choice]
        try:
            return np.asarray(np.load(path, allow_pickle=False), np.float32), label
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: is not an array of numbers in NumPy's format ({error}).") from None


@dataclass
class Load:
    """A running load, with the requests so far."""

    urls: Sequence[str]
    source: RequestSource
    config: LoadConfig
    records: list[RequestRecord] = field(default_factory=list)
    elapsed_s: float = 0.0  # time of sending
    on_progress: Callable[[float], None] = lambda elapsed_s: None

    async def run(self) -> None:
        """Send requests for the given time, then wait for the answers and labels that are still due."""
        headers = {} if self.config.token is None else {"Authorization": f"Bearer {self.config.token}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        async with httpx.AsyncClient(timeout=self.config.timeout_s, limits=limits, headers=headers) as client:
            started_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                ticker = group.create_task(self._tick(started_s))
                streams = [
                    group.create_task(self._send(client, group, device, url, started_s))
                    for device, url in enumerate(self.urls)
                ]
                await asyncio.gather(*streams)
                ticker.cancel()
                self.elapsed_s = self.config.duration_s

    async def _tick(self, started_s: float) -> None:
        while True:
            self.elapsed_s = min(time.monotonic() - started_s, self.config.duration_s)
            self.on_progress(self.elapsed_s)
            await asyncio.sleep(0.5)

    async def _send(
        self, client: httpx.AsyncClient, group: asyncio.TaskGroup, device: int, url: str, started_s: float
    ) -> None:
        rng = np.random.default_rng([self.config.seed, device])
        due_s, number = float(rng.exponential(1 / self.config.rate_per_s)), 0
        while due_s < self.config.duration_s:
            await asyncio.sleep(max(0.0, started_s + due_s - time.monotonic()))
            values, label = self.source.draw(device, number, due_s)
            record = RequestRecord(device, due_s, label)
            self.records.append(record)
            delay_s = float(rng.exponential(self.config.feedback_delay_s)) if self.config.feedback_delay_s else 0.0
            group.create_task(self._ask(client, url, values, record, started_s + due_s, delay_s))
            due_s, number = due_s + float(rng.exponential(1 / self.config.rate_per_s)), number + 1

    async def _ask(
        self,
        client: httpx.AsyncClient,
        url: str,
        values: NDArray[np.float32],
        record: RequestRecord,
        due_at_s: float,
        delay_s: float,
    ) -> None:
        body = {"id": uuid.uuid4().hex, "input": values.tolist()}
        while True:
            # The same id again: a device that has accepted the request answers it, also after a restart.
            with contextlib.suppress(httpx.TransportError):
                answer = await client.post(f"{url}/predict", json=body)
                record.status = answer.status_code
                if record.status != 202:
                    break
            if time.monotonic() > due_at_s + self.config.timeout_s:
                return
            await asyncio.sleep(RETRY_S)
        if record.status != 200:
            return
        record.latency_s = time.monotonic() - due_at_s
        document = answer.json()
        record.prediction = int(document["predictions"][0])
        await asyncio.sleep(delay_s)
        await self._label(client, url, {"id": document["id"], "label": record.label}, record)

    async def _label(self, client: httpx.AsyncClient, url: str, body: dict[str, Any], record: RequestRecord) -> None:
        for _ in range(FEEDBACK_ATTEMPTS):
            try:
                if (await client.post(f"{url}/feedback", json=body)).status_code == 200:
                    record.labelled = True
                    return
            except httpx.HTTPError:
                pass  # the device may be starting again
            await asyncio.sleep(RETRY_S)


def summarise(records: Sequence[RequestRecord], devices: int, duration_s: float) -> dict[str, Any]:
    """Return what clients saw, for all devices and for each, as a JSON document."""

    def describe(some: Sequence[RequestRecord]) -> dict[str, Any]:
        answered = [record for record in some if record.latency_s is not None]
        latencies = np.array([record.latency_s for record in answered], np.float64)
        return {
            "requests": len(some),
            "answered": len(answered),
            "rejected": sum(record.status == 429 for record in some),
            "expired": sum(record.status == 504 for record in some),
            "refused": sum(record.status in (400, 401, 403, 404, 409, 413, 422) for record in some),
            "without_answer": sum(record.status in (0, 202) or record.status in (500, 503, 507) for record in some),
            "labelled": sum(record.labelled for record in some),
            "accuracy": float(np.mean([record.is_correct for record in answered])) if answered else None,
            "latency_s": float(latencies.mean()) if answered else None,
            "latency_p50_s": float(np.median(latencies)) if answered else None,
            "latency_p99_s": float(np.quantile(latencies, 0.99)) if answered else None,
        }

    by_device = [describe([record for record in records if record.device == device]) for device in range(devices)]
    return {"duration_s": duration_s, **describe(records), "devices": by_device}


def write_records(path: Path, records: Sequence[RequestRecord]) -> None:
    """Write one line for each request, in the order in which they were due."""
    rows = sorted(records, key=lambda record: record.due_s)
    write_csv(path, COLUMNS, ([_cell(getattr(row, name)) for name in COLUMNS] for row in rows))


def _cell(value: Any) -> Any:
    return "" if value is None else round(value, 6) if isinstance(value, float) else value
