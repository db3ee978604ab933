"""What a device keeps on disk: requests, answers, labels, samples, its model and its last report, in one SQLite file.

Every change is one transaction that is on disk before it is confirmed, so a killed device loses nothing that it has
accepted. A sample is made when a request has been served and labelled, whichever comes first. It is deleted in the
transaction that adopts the global model which contains it, so no sample is in two acknowledged updates.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from tandem.device.messages import NO_ROUND, Weights
from tandem.device.model import Inputs, Labels
from tandem.errors import InputError
from tandem.io.locks import file_lock

FILE = "device.db"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, digest BLOB NOT NULL, size INTEGER NOT NULL,
    inputs BLOB, arrived_at REAL NOT NULL, deadline_at REAL, status TEXT NOT NULL, served_at REAL, model_round INTEGER,
    scores BLOB, labels BLOB, labelled_at REAL, correct INTEGER);
CREATE INDEX IF NOT EXISTS requests_by_status ON requests (status, number);
CREATE INDEX IF NOT EXISTS requests_by_arrival ON requests (arrived_at);
CREATE TABLE IF NOT EXISTS samples (
    number INTEGER PRIMARY KEY AUTOINCREMENT, size INTEGER NOT NULL, inputs BLOB NOT NULL, labels BLOB NOT NULL,
    arrived_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""


class Status(StrEnum):
    """The status of a request."""

    WAITING = "waiting"
    SERVED = "served"
    EXPIRED = "expired"  # its deadline passed before the device served it
    FAILED = "failed"  # the model raised an exception


class QueueFullError(Exception):
    """The queue, or the buffer of samples, has no room for a request or its labels."""


class RequestConflictError(Exception):
    """A request id, or the label of a request, was used before with another content."""


class UnknownRequestError(Exception):
    """No request has this id, or it is no longer stored."""


class StoreFullError(Exception):
    """The disk is full or cannot be written. What was accepted before is not affected."""


@dataclass(frozen=True)
class StoredRequest:
    """A request with its answer, if it has one."""

    id: str
    size: int  # number of inputs
    status: Status
    arrived_at: float
    deadline_at: float | None
    served_at: float | None
    model_round: int | None
    scores: NDArray[np.float32] | None  # [inputs, classes]


@dataclass(frozen=True)
class Batch:
    """Waiting requests that are served together."""

    numbers: list[int]
    ids: list[str]
    sizes: list[int]
    inputs: Inputs


@dataclass(frozen=True)
class Progress:
    """Where the device stands in the rounds of a run."""

    run: str = ""
    round: int = NO_ROUND  # the last one that it took part in
    settled: int = NO_ROUND  # the last acknowledgement that it has applied
    last_sample: int | None = None  # of its update that is not acknowledged; None if there is no such update
    reported_at: float = 0.0
    adopted_at: float = 0.0  # when it adopted a global model, or was created
    model_round: int = NO_ROUND  # the round of that model


@dataclass(frozen=True)
class Measurement:
    """Counts since a moment, and the state now."""

    queue: int
    waited_s: float
    data: int
    data_age_s: float
    arrived: int
    served: int
    expired: int
    latency_s: float
    labelled: int
    correct: int


class _Transaction:
    """A transaction, with the changes of the counts that hold if it is committed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.execute = connection.execute
        self.waiting = 0
        self.samples = 0


class DeviceStore:
    """The durable state of one device. Its methods may be called from several threads."""

    def __init__(
        self, folder: Path, input_shape: tuple[int, ...], *, max_queue: int = 1000, max_samples: int = 100_000
    ) -> None:
        """Open or create the state in a folder. Only one process may use it at a time."""
        self._shape = input_shape
        self._max_queue = max_queue
        self._max_samples = max_samples
        self._mutex = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = file_lock(folder / "device.lock")
        try:
            self._lock.__enter__()
        except TimeoutError:
            raise InputError(
                f"--store {folder}: another device uses it; stop that one or name another folder."
            ) from None
        try:
            self._connection = sqlite3.connect(folder / FILE, check_same_thread=False, isolation_level=None)
            for setting in ("journal_mode = WAL", "synchronous = FULL"):
                self._connection.execute(f"PRAGMA {setting}")
            self._connection.executescript(_SCHEMA)
            self._check_shape(folder)
            self._waiting, self._samples = self._count()
        except sqlite3.DatabaseError as error:
            self._lock.__exit__(None, None, None)
            raise InputError(f"--store {folder}: {FILE} cannot be used ({error}); name another folder.") from None
        except InputError:
            self._lock.__exit__(None, None, None)
            raise

    def close(self) -> None:
        """Close the file and release the folder."""
        with self._mutex:
            self._connection.close()
        self._lock.__exit__(None, None, None)

    @property
    def waiting(self) -> int:
        """The number of inputs that wait."""
        return self._waiting

    @property
    def samples(self) -> int:
        """The number of labelled samples."""
        return self._samples

    # Requests

    def add_request(
        self, request_id: str, digest: bytes, inputs: Inputs, deadline_s: float | None
    ) -> tuple[StoredRequest, bool]:
        """Accept a request, or return the one with the same id and content; the flag says whether it is new.

        Raises QueueFullError if there is no room, and RequestConflictError if the id was used for another request.
        """
        now = time.time()
        with self._write() as database:
            found = self._find(database, request_id)
            if found is not None:
                if database.execute("SELECT digest FROM requests WHERE id = ?", [request_id]).fetchone()[0] != digest:
                    raise RequestConflictError(f"id: {request_id} was used for another request")
                return found, False
            if self._waiting + len(inputs) > self._max_queue:
                raise QueueFullError(f"the queue has {self._waiting} of at most {self._max_queue} inputs")
            deadline_at = None if deadline_s is None else now + deadline_s
            database.execute(
                "INSERT INTO requests (id, digest, size, inputs, arrived_at, deadline_at, status)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [request_id, digest, len(inputs), inputs.tobytes(), now, deadline_at, Status.WAITING],
            )
            database.waiting += len(inputs)
        return StoredRequest(request_id, len(inputs), Status.WAITING, now, deadline_at, None, None, None), True

    def read_request(self, request_id: str) -> StoredRequest:
        """Return a request. Raises UnknownRequestError."""
        with self._mutex:
            found = self._find(self._connection, request_id)
        if found is None:
            raise UnknownRequestError(f"id: there is no request {request_id}, or it is no longer stored")
        return found

    def take_batch(self, max_inputs: int) -> Batch | None:
        """Return the requests that have waited longest, with at most ``max_inputs`` inputs; at least one request.

        They keep waiting until ``finish_batch``, so a device that is killed meanwhile serves them again.
        """
        with self._mutex:
            rows = self._connection.execute(
                "SELECT number, id, size, inputs FROM requests WHERE status = ? ORDER BY number LIMIT ?",
                [Status.WAITING, max_inputs],
            ).fetchall()
        chosen: list[tuple[Any, ...]] = []
        total = 0
        for row in rows:
            if chosen and total + row[2] > max_inputs:
                break
            chosen.append(row)
            total += row[2]
        if not chosen:
            return None
        numbers, ids, sizes, inputs = (list(column) for column in zip(*chosen, strict=True))
        return Batch(numbers, ids, sizes, self._array(b"".join(inputs), total))

    def finish_batch(self, batch: Batch, scores: NDArray[np.float32], model_round: int) -> None:
        """Store the answers to a batch, and make samples of those requests that are labelled already."""
        now, start = time.time(), 0
        with self._write() as database:
            for number, size in zip(batch.numbers, batch.sizes, strict=True):
                part = scores[start : start + size]
                start += size
                database.execute(
                    "UPDATE requests SET status = ?, served_at = ?, model_round = ?, scores = ? WHERE number = ?",
                    [Status.SERVED, now, model_round, np.ascontiguousarray(part, np.float32).tobytes(), number],
                )
                self._make_samples(database, number, now)
            database.waiting -= sum(batch.sizes)

    def fail_batch(self, batch: Batch) -> None:
        """Mark requests for which the model raised an exception, so that they do not block the queue."""
        with self._write() as database:
            for number in batch.numbers:
                database.execute(
                    "UPDATE requests SET status = ?, served_at = ? WHERE number = ?",
                    [Status.FAILED, time.time(), number],
                )
            database.waiting -= sum(batch.sizes)

    def expire_requests(self) -> list[str]:
        """Mark waiting requests whose deadline has passed; returns their ids."""
        with self._mutex:
            due = "status = ? AND deadline_at IS NOT NULL AND deadline_at < ?"
            arguments = [Status.WAITING, time.time()]
            if self._connection.execute(f"SELECT 1 FROM requests WHERE {due} LIMIT 1", arguments).fetchone() is None:
                return []
        with self._write() as database:
            rows = database.execute(f"SELECT id, size FROM requests WHERE {due}", arguments).fetchall()
            database.execute(
                f"UPDATE requests SET status = ?, served_at = deadline_at WHERE {due}", [Status.EXPIRED, *arguments]
            )
            database.waiting -= sum(size for _, size in rows)
        return [request_id for request_id, _ in rows]

    def prune(self, older_than_s: float, limit: int = 1000) -> int:
        """Delete requests that were answered or expired this long ago: feedback for them is refused from now on."""
        with self._write() as database:
            cursor = database.execute(
                "DELETE FROM requests WHERE number IN"
                " (SELECT number FROM requests WHERE status != ? AND served_at < ? LIMIT ?)",
                [Status.WAITING, time.time() - older_than_s, limit],
            )
            return cursor.rowcount

    # Labels and samples

    def add_labels(self, request_id: str, labels: Labels) -> None:
        """Record the right labels of a request's inputs. The same labels may be sent again.

        Raises UnknownRequestError; RequestConflictError for other labels than before, and for a request that
        was not answered; and QueueFullError if the buffer of samples is full.
        """
        content = np.ascontiguousarray(labels, np.int64).tobytes()
        with self._write() as database:
            row = database.execute(
                "SELECT number, size, status, labels FROM requests WHERE id = ?", [request_id]
            ).fetchone()
            if row is None:
                raise UnknownRequestError(f"id: there is no request {request_id}, or it is no longer stored")
            number, size, status, known = row
            if size != len(labels):
                raise RequestConflictError(f"labels: there are {len(labels)} for {size} inputs")
            if known is not None:
                if known != content:
                    raise RequestConflictError(f"labels: request {request_id} has other labels already")
                return
            if status in (Status.EXPIRED, Status.FAILED):
                raise RequestConflictError(f"id: request {request_id} has {status} and was not answered")
            if self._samples + size > self._max_samples:
                raise QueueFullError(f"the buffer has {self._samples} of at most {self._max_samples} samples")
            database.execute("UPDATE requests SET labels = ? WHERE number = ?", [content, number])
            if status == Status.SERVED:
                self._make_samples(database, number, time.time())

    def _make_samples(self, database: _Transaction, number: int, now: float) -> None:
        """Make samples of a request that was served, if it is labelled."""
        size, inputs, arrived_at, scores, labels = database.execute(
            "SELECT size, inputs, arrived_at, scores, labels FROM requests WHERE number = ?", [number]
        ).fetchone()
        if labels is None:
            return
        right = np.frombuffer(labels, np.int64)
        predicted = np.frombuffer(scores, np.float32).reshape(size, -1).argmax(axis=1)
        database.execute(
            "INSERT INTO samples (size, inputs, labels, arrived_at) VALUES (?, ?, ?, ?)",
            [size, inputs, labels, arrived_at],
        )
        database.execute(
            "UPDATE requests SET inputs = NULL, labelled_at = ?, correct = ? WHERE number = ?",
            [now, int(np.sum(right == predicted)), number],
        )
        database.samples += size

    def read_samples(self) -> tuple[Inputs, Labels, int]:
        """Return all samples, oldest first, and the number of the last one."""
        with self._mutex:
            rows = self._connection.execute(
                "SELECT number, size, inputs, labels FROM samples ORDER BY number"
            ).fetchall()
        if not rows:
            return self._array(b"", 0), np.zeros(0, np.int64), 0
        inputs = self._array(b"".join(row[2] for row in rows), sum(row[1] for row in rows))
        return inputs, np.frombuffer(b"".join(row[3] for row in rows), np.int64), int(rows[-1][0])

    # Rounds

    def read_progress(self) -> Progress:
        """Return where the device stands."""
        stored = self._read_state("progress")
        return Progress() if stored is None else Progress(**json.loads(stored))

    def write_progress(self, progress: Progress, report: bytes | None = None) -> None:
        """Store where the device stands, and the report of its last round."""
        with self._write() as database:
            _put_progress(database, progress)
            if report is not None:
                _put(database, "report", report)

    def read_report(self) -> bytes | None:
        """Return the report of the last round."""
        return self._read_state("report")

    def read_weights(self) -> Weights | None:
        """Return the adopted global model; None before the first one."""
        stored = self._read_state("weights")
        return None if stored is None else load(stored)

    def adopt(self, weights: Weights, progress: Progress, delete_through: int | None) -> None:
        """Store the global model, and delete the samples up to a number that it contains, in one transaction."""
        content = save({name: np.ascontiguousarray(array) for name, array in weights.items()})
        with self._write() as database:
            _put(database, "weights", content)
            _put_progress(database, progress)
            if delete_through is not None:
                through = "FROM samples WHERE number <= ?"
                database.samples -= database.execute(
                    f"SELECT COALESCE(SUM(size), 0) {through}", [delete_through]
                ).fetchone()[0]
                database.execute(f"DELETE {through}", [delete_through])

    def measure(self, since: float) -> Measurement:
        """Count what happened since a moment, and what waits now."""
        now = time.time()
        with self._mutex:

            def read(query: str, *arguments: Any) -> Sequence[Any]:
                row: Sequence[Any] = self._connection.execute(query, arguments).fetchone()
                return row

            queue, waited = read(
                "SELECT COALESCE(SUM(size), 0), COALESCE(SUM(size * (? - arrived_at)), 0) FROM requests"
                " WHERE status = ?",
                now,
                Status.WAITING,
            )
            data, age = read(
                "SELECT COALESCE(SUM(size), 0), COALESCE(SUM(size * (? - arrived_at)), 0) FROM samples", now
            )
            (arrived,) = read("SELECT COALESCE(SUM(size), 0) FROM requests WHERE arrived_at > ?", since)
            served, latency = read(
                "SELECT COALESCE(SUM(size), 0), COALESCE(SUM(size * (served_at - arrived_at)), 0) FROM requests"
                " WHERE status = ? AND served_at > ?",
                Status.SERVED,
                since,
            )
            (expired,) = read(
                "SELECT COALESCE(SUM(size), 0) FROM requests WHERE status = ? AND served_at > ?", Status.EXPIRED, since
            )
            labelled, correct = read(
                "SELECT COALESCE(SUM(size), 0), COALESCE(SUM(correct), 0) FROM requests WHERE labelled_at > ?", since
            )
        mean_age = max(age, 0.0) / data if data else 0.0
        return Measurement(
            queue, max(waited, 0.0), data, mean_age, arrived, served, expired, max(latency, 0.0), labelled, correct
        )

    # Helpers

    @contextmanager
    def _write(self) -> Iterator[_Transaction]:
        """Run a transaction; it is on disk when the block ends, or nothing of it is."""
        with self._mutex:
            transaction = _Transaction(self._connection)
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield transaction
                self._connection.execute("COMMIT")
                self._waiting += transaction.waiting
                self._samples += transaction.samples
            except sqlite3.OperationalError as error:
                self._roll_back()
                raise StoreFullError(str(error)) from None
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _count(self) -> tuple[int, int]:
        query = "SELECT COALESCE(SUM(size), 0) FROM requests WHERE status = ?"
        waiting = self._connection.execute(query, [Status.WAITING]).fetchone()[0]
        return int(waiting), int(self._connection.execute("SELECT COALESCE(SUM(size), 0) FROM samples").fetchone()[0])

    def _find(self, database: _Transaction | sqlite3.Connection, request_id: str) -> StoredRequest | None:
        row = database.execute(
            "SELECT id, size, status, arrived_at, deadline_at, served_at, model_round, scores"
            " FROM requests WHERE id = ?",
            [request_id],
        ).fetchone()
        if row is None:
            return None
        found_id, size, status, arrived_at, deadline_at, served_at, model_round, scores = row
        array = None if scores is None else np.frombuffer(scores, np.float32).reshape(size, -1)
        return StoredRequest(found_id, size, Status(status), arrived_at, deadline_at, served_at, model_round, array)

    def _array(self, content: bytes, size: int) -> Inputs:
        return np.frombuffer(content, np.float32).reshape(size, *self._shape)

    def _read_state(self, name: str) -> bytes | None:
        with self._mutex:
            row = self._connection.execute("SELECT value FROM state WHERE name = ?", [name]).fetchone()
        return None if row is None else bytes(row[0])

    def _check_shape(self, folder: Path) -> None:
        content = json.dumps(self._shape).encode()
        with closing(self._connection.execute("SELECT value FROM state WHERE name = 'input_shape'")) as cursor:
            row = cursor.fetchone()
        if row is None:
            self._connection.execute("INSERT INTO state VALUES ('input_shape', ?)", [content])
        elif row[0] != content:
            raise InputError(
                f"--store {folder}: holds inputs of the shape {row[0].decode()}, but the model takes "
                f"{list(self._shape)}; name another folder."
            )


def _put(database: _Transaction, name: str, value: bytes) -> None:
    database.execute(
        "INSERT INTO state VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", [name, value]
    )


def _put_progress(database: _Transaction, progress: Progress) -> None:
    _put(database, "progress", json.dumps(vars(progress)).encode())
