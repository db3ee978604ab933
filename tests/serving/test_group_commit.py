"""Group commit: batches under load, pruning between them, and errors of single items."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from test_storage import new_round

from tandem.serving import group_commit
from tandem.serving.group_commit import GroupCommit, QueueFullError
from tandem.serving.storage import NewRound, Retention, RoundConflictError, StorageUnavailableError, Store


@pytest.fixture
def run(store: Store) -> Callable[[Callable[[GroupCommit], Coroutine[Any, Any, Any]]], list[int]]:
    """Run a coroutine function with a group commit, and return the sizes of its batches."""

    def run_with(work: Callable[[GroupCommit], Coroutine[Any, Any, Any]]) -> list[int]:
        sizes: list[int] = []

        async def main() -> None:
            commit = GroupCommit(store, Retention(rounds=20), lambda size, duration_s: sizes.append(size))
            try:
                await work(commit)
            finally:
                await commit.close()

        asyncio.run(main())
        return sizes

    return run_with


def item(number: int, **more: Any) -> NewRound:
    return new_round(number, revision=1, **more)  # the first version was activated


def test_waiting_items_share_transactions_and_keep_their_order(store: Store, run: Any) -> None:
    async def work(commit: GroupCommit) -> None:
        futures = [commit.submit(item(n)) for n in range(100)]
        futures.append(commit.submit(item(3, digest=b"other")))
        results = await asyncio.gather(*futures)
        assert results[:100] == [b"decision %d" % n for n in range(100)]
        assert isinstance(results[100], RoundConflictError)

    assert len(run(work)) < 20
    assert [stored.round for stored in store.read_rounds(limit=1000)] == list(range(100))


def test_what_was_submitted_is_stored_before_the_end(store: Store, run: Any) -> None:
    async def work(commit: GroupCommit) -> None:
        for n in range(50):
            commit.submit(item(n))

    run(work)
    assert len(store.read_rounds(limit=1000)) == 50


def test_old_rounds_are_pruned_while_new_ones_are_stored(
    store: Store, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "PRUNE_INTERVAL_S", 0.02)
    store.commit([item(n) for n in range(500)])

    async def work(commit: GroupCommit) -> None:
        for n in range(500, 560):
            assert await commit.submit(item(n)) == b"decision %d" % n
            await asyncio.sleep(0.01)
        for _ in range(200):
            if len(store.list_rounds(limit=1000)) <= 20:
                break
            await asyncio.sleep(0.05)

    run(work)
    assert [stored.round for stored in store.read_rounds(limit=1000)] == list(range(540, 560))


def test_one_item_that_cannot_be_stored_does_not_affect_others(store: Store, run: Any) -> None:
    async def work(commit: GroupCommit) -> None:
        bad = NewRound(1, b"d", b"r", "text instead of bytes", 1, 0, "v", {}, 1)  # type: ignore[arg-type]
        results = await asyncio.gather(
            *(commit.submit(each) for each in (item(0), bad, item(2))), return_exceptions=True
        )
        assert results[0] == b"decision 0"
        assert isinstance(results[1], TypeError)
        assert results[2] == b"decision 2"

    run(work)


def test_a_database_that_is_away_and_a_full_queue_are_reported(
    store: Store, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageUnavailableError("away")

    async def work(commit: GroupCommit) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(store, "commit", fail)
            with pytest.raises(StorageUnavailableError):
                await commit.submit(item(0))
        assert await commit.submit(item(0)) == b"decision 0"
        monkeypatch.setattr(group_commit, "MAX_PENDING", 0)
        with pytest.raises(QueueFullError):
            commit.submit(item(1))

    run(work)
