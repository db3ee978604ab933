"""Group commit: all decisions and outcomes that wait are stored in one transaction, by a thread of its own.

A single request is stored at once. Under load, when the batch before had several items, the thread waits a few
milliseconds for more: a transaction costs about as much time of the processor as a decision, and one for a few items
would take that time from the thread that decides.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tandem.serving.storage import NewOutcome, NewRound, Retention, RoundError, StorageUnavailableError, Store

MAX_BATCH = 256
MAX_BATCH_BYTES = 32 * 2**20
MAX_PENDING = 4096
GATHER_S = 0.004
PRUNE_INTERVAL_S = 5.0
_PRUNE_TARGET_S = 0.02  # a batch of pruning takes about this long
_PRUNE_SHARE = 0.1  # of the time of this thread

_Item = NewRound | NewOutcome
_Pending = tuple[_Item, "asyncio.Future[Any]"]
logger = logging.getLogger(__name__)


class QueueFullError(Exception):
    """Too many requests wait for the database."""


class GroupCommit:
    """Stores items in the order in which they are submitted; pruning happens between batches."""

    def __init__(
        self, store: Store, retention: Retention | None = None, observe: Callable[[int, float], None] | None = None
    ) -> None:
        """Start the thread. ``observe`` is called with the size of each batch and the time that it took."""
        self._store = store
        self._retention = retention
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._prune_limit = 50
        self._prune_at_s = time.monotonic() + PRUNE_INTERVAL_S
        self._closed = False
        self._last_size = 0  # of a batch
        self._thread = threading.Thread(target=self._run, name="tandem-commit", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """How many items wait for the thread."""
        return self._queue.qsize()

    def submit(self, item: _Item) -> asyncio.Future[Any]:
        """Store an item. The future has what ``Store.commit`` returns for it; a RoundError is a result too."""
        if self._closed or self._queue.qsize() >= MAX_PENDING:
            raise QueueFullError
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put((item, future))
        return future

    async def close(self) -> None:
        """Store what was submitted, then stop the thread."""
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while True:
            batch, last = self._gather()
            self._last_size = len(batch)
            if batch:
                started = time.perf_counter()
                results = self._commit([item for item, _ in batch])
                if self._observe is not None:
                    self._observe(len(batch), time.perf_counter() - started)
                self._loop.call_soon_threadsafe(_resolve, batch, results)
            if last:
                return
            if self._retention is not None and time.monotonic() >= self._prune_at_s:
                self._prune(self._retention)

    def _gather(self) -> tuple[list[_Pending], bool]:
        """Wait for an item or for the time to prune, then take all that wait. The flag says that it was the last."""
        batch: list[_Pending] = []
        size = 0
        try:
            timeout = None if self._retention is None else max(0.0, self._prune_at_s - time.monotonic())
            pending = self._queue.get(timeout=timeout)
            if self._last_size > 1 and not self._closed:
                time.sleep(GATHER_S)
            while pending is not None:
                batch.append(pending)
                item = pending[0]
                size += len(item.report) + len(item.decision) if isinstance(item, NewRound) else len(item.outcome)
                if len(batch) >= MAX_BATCH or size >= MAX_BATCH_BYTES:
                    return batch, False
                pending = self._queue.get_nowait()
        except queue.Empty:
            return batch, False
        return batch, True

    def _commit(self, items: Sequence[_Item]) -> Sequence[Any]:
        try:
            return self._store.commit(items)
        except StorageUnavailableError as error:
            return [error] * len(items)
        except Exception as error:
            if len(items) > 1:  # one item must not affect the others
                return [self._commit([item])[0] for item in items]
            logger.exception("an item could not be stored")
            return [error]

    def _prune(self, retention: Retention) -> None:
        started = time.monotonic()
        try:
            deleted = self._store.prune(retention, self._prune_limit)
        except Exception as error:
            logger.warning("pruning failed and is tried again later: %s", error)
            deleted = 0
        duration = time.monotonic() - started
        is_done = deleted < self._prune_limit
        if deleted:
            factor = min(2.0, _PRUNE_TARGET_S / max(duration, 1e-4))
            self._prune_limit = max(1, min(1000, int(self._prune_limit * factor)))
        self._prune_at_s = time.monotonic() + (PRUNE_INTERVAL_S if is_done else duration / _PRUNE_SHARE)


def _resolve(batch: Sequence[_Pending], results: Sequence[Any]) -> None:
    for (_, future), result in zip(batch, results, strict=True):
        if future.done():  # its request was cancelled
            continue
        if isinstance(result, Exception) and not isinstance(result, RoundError):
            future.set_exception(result)
        else:
            future.set_result(result)
