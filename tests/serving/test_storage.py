"""What the store promises, on a SQLite file and on a PostgreSQL server."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from postgres import PostgresServer

from tandem.errors import InputError
from tandem.serving import schema
from tandem.serving.storage import (
    EventCursor,
    NewOutcome,
    NewRound,
    Retention,
    RoundConflictError,
    StaleRoundError,
    StorageUnavailableError,
    Store,
    SupersededError,
    UnknownRoundError,
    UnknownVersionError,
    create_engine,
    now,
)

POINT = {"preference": None, "min_accuracy": None, "max_latency_s": 3.0, "max_energy_j": None}


def new_round(number: int, digest: bytes = b"a", decision: bytes | None = None, revision: int = 0) -> NewRound:
    answer = decision or b"decision %d" % number
    return NewRound(number, digest, b"report", answer, 30, 3, "v1", POINT, revision)


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    store = Store.open(database, stale_rounds=10)
    yield store
    store.close()


def test_a_stored_round_is_read_back_after_reopening(store: Store, database: str) -> None:
    large = b"x" * 100_000  # is stored compressed
    assert store.commit([new_round(4, decision=large)]) == [large]
    store.commit([NewOutcome(4, b"o", b'{"round": 4}')])
    again = Store.open(database)
    [stored] = again.read_rounds()
    assert (stored.round, stored.decision, stored.report, stored.outcome) == (4, large, b"report", b'{"round": 4}')
    assert stored.operating_point == POINT
    assert abs(now() - stored.decided_at) < timedelta(minutes=1)
    assert again.read_state().newest_round == 4
    again.close()


def test_a_round_is_decided_once(store: Store) -> None:
    first, repeated, other = store.commit([new_round(1), new_round(1, decision=b"later"), new_round(1, b"b")])
    assert first == repeated == b"decision 1"
    assert isinstance(other, RoundConflictError)
    repeated, other = store.commit([new_round(1, decision=b"later"), new_round(1, b"b")])
    assert repeated == b"decision 1"
    assert isinstance(other, RoundConflictError)
    assert [stored.decision for stored in store.read_rounds()] == [b"decision 1"]


def test_an_outcome_is_recorded_once_and_only_for_a_decided_round(store: Store) -> None:
    store.commit([new_round(1)])
    results = store.commit([NewOutcome(n, digest, b"{}") for n, digest in [(1, b"o"), (1, b"o"), (1, b"p"), (2, b"o")]])
    assert results[:2] == [None, None]
    assert isinstance(results[2], RoundConflictError)
    assert isinstance(results[3], UnknownRoundError)
    [again] = store.commit([NewOutcome(1, b"q", b"{}")])
    assert isinstance(again, RoundConflictError)


def test_a_decision_made_with_a_replaced_operating_point_is_refused(store: Store) -> None:
    store.commit([new_round(1)])
    assert store.set_operating_point(POINT, "test").revision == 1
    repeated, late, fresh = store.commit([new_round(1), new_round(2), new_round(3, revision=1)])
    assert repeated == b"decision 1"  # what was answered is answered again, whatever has changed since
    assert isinstance(late, SupersededError)
    assert fresh == b"decision 3"


def test_pruned_rounds_are_stale_and_never_decided_again(store: Store) -> None:
    store.commit([new_round(n) for n in range(40)])
    store.commit([NewOutcome(n, b"o", b"{}") for n in range(40)])
    assert store.prune(Retention(rounds=20), limit=5) == 5
    while store.prune(Retention(rounds=20), limit=5):
        pass
    assert [stored.round for stored in store.read_rounds()] == list(range(20, 40))
    gone, kept = store.commit([new_round(3), new_round(25)])
    assert isinstance(gone, StaleRoundError)
    assert gone.newest == 39
    assert kept == b"decision 25"
    assert store.prune(Retention(rounds=0), limit=100) == 10  # the ten newest are not stale, and are kept
    assert store.prune(Retention(rounds=None, days=0.0), limit=100) == 0


def test_old_rounds_are_pruned_by_age(store: Store) -> None:
    store.commit([new_round(n) for n in range(20)])
    assert store.prune(Retention(rounds=None, days=1.0), limit=100) == 0
    assert store.prune(Retention(rounds=None, days=0.0), limit=100) == 10


def test_versions_are_kept_activated_and_rolled_back(store: Store) -> None:
    assert store.publish_version("v1", b"one", "run", activate=True)
    assert not store.publish_version("v1", b"one", "run")
    store.publish_version("v2", b"two", "tuner", {"gain": 0.1}, activate=True, by="tuner")
    assert (store.read_state().version, store.read_version("v2")) == ("v2", b"two")
    assert store.activate_version(store.previous_version(), "operator").version == "v1"
    assert [(v.version, v.active, v.note) for v in store.list_versions()] == [
        ("v2", False, {"gain": 0.1}),
        ("v1", True, None),
    ]
    with pytest.raises(UnknownVersionError):
        store.activate_version("v3", "operator")
    assert store.read_state().revision == 3


def test_there_is_nothing_to_roll_back_to_at_first(store: Store) -> None:
    store.publish_version("v1", b"one", "run", activate=True)
    with pytest.raises(UnknownVersionError):
        store.previous_version()


def test_events_can_be_followed(store: Store) -> None:
    cursor = store.event_cursor()
    assert cursor == EventCursor()
    store.set_operating_point(POINT, "test")
    store.commit([new_round(0, revision=1), new_round(1, revision=1)])
    store.commit([NewOutcome(0, b"o", b'{"round": 0, "duration_s": 1.5}')])
    found = store.read_events(cursor)
    assert [event.kind for event in found] == ["operating-point", "decision", "decision", "outcome"]
    assert found[-1].document["duration_s"] == 1.5
    assert store.read_events(found[-1].cursor) == []
    assert store.read_events(found[1].cursor) == found[2:]
    assert store.event_cursor() == found[-1].cursor


def test_fleets_of_one_database_are_separate(store: Store, database: str) -> None:
    other = Store.open(database, "other")
    store.commit([new_round(1)])
    store.add_token("t1", "device", "", "0" * 64, None)
    assert other.read_rounds() == []
    assert other.list_tokens() == []
    assert other.commit([new_round(1, b"b", b"other")]) == [b"other"]
    assert not other.revoke_token("t1")
    other.close()


def test_concurrent_processes_decide_a_round_once(store: Store, database: str) -> None:
    """Sixteen connections from four stores compete for the same rounds with different answers."""
    stores = [store, *(Store.open(database, stale_rounds=10) for _ in range(3))]
    start = threading.Barrier(16)

    def decide(worker: int) -> list[object]:
        start.wait()
        mine = stores[worker % 4]
        return [mine.commit([new_round(n, decision=b"%d by %d" % (n, worker))])[0] for n in range(5)]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(decide, range(16)))
    assert all(each == answers[0] for each in answers)
    assert [stored.decision for stored in store.read_rounds()] == answers[0]
    for each in stores[1:]:
        each.close()


def test_several_processes_may_create_the_schema_at_once(database: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        stores = list(pool.map(lambda _: Store.open(database), range(6)))
    assert len({each._fleet_id for each in stores}) == 1
    for each in stores:
        each.close()


def test_the_migrations_lead_to_the_tables_of_the_program(store: Store) -> None:
    with store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    scripts = ScriptDirectory(str(Path(schema.__file__).parent / "migrations"))
    assert scripts.get_current_head() == schema.SCHEMA


def test_a_newer_schema_is_refused(store: Store, database: str) -> None:
    with store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(InputError, match="schema 9999, which is newer than that of this program"):
        Store.open(database)


def test_sqlite_writes_reach_the_disk_before_commits_return(tmp_path: Path) -> None:
    with create_engine(str(tmp_path / "a.db")).connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mysql://host/db", "mysql is not supported"),
        ("sqlite://", "in memory would be lost"),
        ("sqlite:////nowhere/tandem.db", "there is no folder /nowhere"),
        ("postgresql://host:port/db", "is not a URL"),
    ],
)
def test_databases_that_cannot_be_used_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Store.open(text)


def test_a_database_that_is_away_is_unavailable_until_it_returns(postgres: PostgresServer) -> None:
    store = Store.open(postgres.create_database())
    store.commit([new_round(0)])
    postgres.kill()
    for _ in range(2):
        with pytest.raises(StorageUnavailableError):
            store.commit([new_round(1)])
        with pytest.raises(StorageUnavailableError):
            store.ping()
    postgres.start()
    assert store.commit([new_round(0, decision=b"later"), new_round(1)]) == [b"decision 0", b"decision 1"]
    store.close()


def test_a_locked_sqlite_file_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.serving.storage.BUSY_TIMEOUT_S", 0.1)
    store = Store.open(str(tmp_path / "a.db"))
    other = sa.create_engine(f"sqlite:///{tmp_path}/a.db", isolation_level="AUTOCOMMIT")
    with other.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailableError, match="locked"):
            store.commit([new_round(0)])
        connection.exec_driver_sql("ROLLBACK")
    assert store.commit([new_round(0)]) == [b"decision 0"]
    store.close()
    other.dispose()
