"""What the service keeps: rounds, outcomes, operating points, versions, events and tokens, in SQLite or PostgreSQL.

``Store`` is synchronous and may be used by several threads and several processes. Everything that is written about a
fleet is written while its row is locked, so the writes of all processes have one order: a round is decided once, and no
decision is stored with an operating point or version that was replaced before.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Dialect, Engine, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tandem.errors import InputError
from tandem.io.locks import file_lock
from tandem.serving import schema
from tandem.serving.schema import activations, events, fleets, operating_points, outcomes, rounds, tokens, versions

DEFAULT_FLEET = "default"
BUSY_TIMEOUT_S = 5  # for the lock of a fleet; a request that waits longer gets an error
STALE_ROUNDS = 1000
_TUNING_LOCK = 728_263  # the first number of the lock; the second one is the fleet
_COMPRESSED_ABOVE = 32_768  # bytes
_NO_OPERATING_POINT = {"preference": None, "min_accuracy": None, "max_latency_s": None, "max_energy_j": None}

# Statements of every transaction, built once: building one takes longer than running it.
_READ_STATE = sa.select(fleets.c.revision, fleets.c.newest_round, fleets.c.version, fleets.c.operating_point).where(
    fleets.c.id == sa.bindparam("fleet_id")
)
_READ_STATE_LOCKED = _READ_STATE.with_for_update()
_SET_NEWEST_ROUND = (
    sa.update(fleets).where(fleets.c.id == sa.bindparam("fleet_id")).values(newest_round=sa.bindparam("newest"))
)


class StorageUnavailableError(Exception):
    """The database cannot be reached or cannot write now. Trying again later may help."""


class RoundError(Exception):
    """A round that cannot be stored as asked. Nothing was changed."""


class RoundConflictError(RoundError):
    """The round was decided, or its outcome recorded, for another request."""


class StaleRoundError(RoundError):
    """The round is much older than the newest one and is no longer, or was never, stored."""

    def __init__(self, newest: int) -> None:
        super().__init__(newest)
        self.newest = newest


class UnknownRoundError(RoundError):
    """No decision is stored for the round."""


class SupersededError(RoundError):
    """The operating point or the version was changed while the decision was made; it must be made again."""


class UnknownVersionError(Exception):
    """The version is not stored, or there is none to roll back to."""


@dataclass(frozen=True)
class FleetState:
    """What all processes that serve a fleet agree on."""

    revision: int  # grows with every change of version or operating point
    newest_round: int  # -1 before the first one
    version: str | None  # the active one
    operating_point: dict[str, Any]


@dataclass(frozen=True)
class NewRound:
    """A decision to be stored. ``revision`` is that of the fleet's state with which it was made."""

    round: int
    digest: bytes
    report: bytes
    decision: bytes
    devices: int
    training: int
    version: str
    operating_point: Mapping[str, Any]
    revision: int


@dataclass(frozen=True)
class NewOutcome:
    """What happened in a round."""

    round: int
    digest: bytes
    outcome: bytes


@dataclass(frozen=True)
class StoredRound:
    """A decided round; ``report``, ``decision`` and ``outcome`` are the bytes of the requests and of the answer."""

    id: int
    round: int
    devices: int
    training: int
    version: str
    operating_point: dict[str, Any]
    decided_at: datetime
    report: bytes = field(default=b"", repr=False)
    decision: bytes = field(default=b"", repr=False)
    outcome: bytes | None = field(default=None, repr=False)
    recorded_at: datetime | None = None


@dataclass(frozen=True)
class StoredVersion:
    """A version of the policy, without its content."""

    version: str
    source: str
    note: Any
    published_at: datetime
    active: bool


@dataclass(frozen=True)
class StoredToken:
    """A token without its secret."""

    id: str
    role: str
    label: str
    secret_sha256: str = field(repr=False)
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token may be used now."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class Retention:
    """How long rounds and their outcomes are kept. The newest rounds are always kept, see ``Store.stale_rounds``."""

    rounds: int | None = 100_000
    days: float | None = None


@dataclass(frozen=True)
class EventCursor:
    """The newest round, outcome and event that a reader has seen, as ids of their rows."""

    round: int = 0
    outcome: int = 0
    event: int = 0


@dataclass(frozen=True)
class StoredEvent:
    """Something that happened, and the position after it."""

    kind: str
    document: dict[str, Any]
    at: datetime
    cursor: EventCursor


def now() -> datetime:
    """Return the present moment, in UTC."""
    return datetime.now(UTC)


def pack(content: bytes) -> bytes:
    """Return the content as it is stored: one byte for the format, and large content compressed."""
    return b"\1" + zlib.compress(content, 1) if len(content) > _COMPRESSED_ABOVE else b"\0" + content


def unpack(stored: bytes) -> bytes:
    """Return the content that was packed."""
    return zlib.decompress(stored[1:]) if stored[0] else bytes(stored[1:])


def parse_database(text: str) -> URL:
    """Return the URL of a database; text without ``://`` is the path of a SQLite file."""
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InputError(
            "--database: is not a URL; write it as sqlite:///tandem.db or postgresql://user@host/tandem."
        ) from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise InputError(f"--database: {url.drivername} is not supported; use sqlite:/// or postgresql://.")
    if url.drivername == "sqlite" and (url.database or ":memory:") == ":memory:":
        raise InputError("--database: a SQLite database in memory would be lost; name a file: sqlite:///tandem.db.")
    return url


def create_engine(database: str) -> Engine:
    """Return an engine whose commits are on disk before they return."""
    url = parse_database(database)
    if url.drivername == "sqlite":
        path = Path(str(url.database))
        if not path.parent.is_dir():
            raise InputError(f"--database {path}: there is no folder {path.parent}; create it first.")
        if path.is_dir():
            raise InputError(f"--database {path}: is a folder; name a file in it.")
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
        sa.event.listen(engine, "connect", _configure_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    settings = {
        "lock_timeout": f"{BUSY_TIMEOUT_S}s",
        "statement_timeout": f"{3 * BUSY_TIMEOUT_S}s",
        # A process that is stopped while it holds the lock of a fleet loses it.
        "idle_in_transaction_session_timeout": f"{2 * BUSY_TIMEOUT_S}s",
        "synchronous_commit": "on",
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return sa.create_engine(
        url,
        pool_pre_ping=True,
        pool_timeout=BUSY_TIMEOUT_S,
        connect_args={"connect_timeout": BUSY_TIMEOUT_S, "options": options},
    )


def _configure_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says, see _begin_sqlite
    cursor = connection.cursor()
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("tandem_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _writing(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction that writes, and commit it at the end."""
    with engine.connect().execution_options(tandem_writes=True) as connection, connection.begin():
        yield connection


@contextmanager
def _unavailable() -> Iterator[None]:
    """Turn errors of the database's side into StorageUnavailableError; mistakes in statements stay what they are."""
    try:
        yield
    except (IntegrityError, DataError, ProgrammingError):
        raise
    except (DBAPIError, PoolTimeoutError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise StorageUnavailableError(
            str(cause).strip().splitlines()[0] if str(cause).strip() else "no reason"
        ) from error


class Store:
    """The data of one fleet in a database, which may hold other fleets."""

    def __init__(self, engine: Engine, fleet: str, stale_rounds: int = STALE_ROUNDS) -> None:
        self._engine = engine
        self._fleet_id = self._find_or_create_fleet(fleet)
        self.fleet = fleet
        self.stale_rounds = stale_rounds  # rounds that are this much older than the newest are refused

    @classmethod
    def open(cls, database: str, fleet: str = DEFAULT_FLEET, stale_rounds: int = STALE_ROUNDS) -> Store:
        """Open a database, with the newest schema; it is created if needed.

        Raises InputError for one that cannot be used, and StorageUnavailableError for one that cannot be reached.
        """
        engine = create_engine(database)
        with _unavailable():
            schema.upgrade_schema(engine)
        return cls(engine, fleet, stale_rounds)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @property
    def kind(self) -> str:
        """The kind of the database: ``sqlite`` or ``postgresql``."""
        return self._engine.dialect.name

    @property
    def place(self) -> str:
        """The URL of the database without its password."""
        return self._engine.url.render_as_string(hide_password=True)

    def ping(self) -> None:
        """Raise StorageUnavailableError if the database cannot be reached."""
        with self._read() as connection:
            connection.execute(sa.select(fleets.c.id).where(fleets.c.id == self._fleet_id)).scalar_one()

    # State of the fleet

    def read_state(self) -> FleetState:
        """Return what all processes agree on."""
        with self._read() as connection:
            return self._state(connection)

    def set_operating_point(
        self, operating_point: Mapping[str, Any], changed_by: str, revision: int | None = None
    ) -> FleetState:
        """Store the operating point for all later decisions, in all processes.

        With ``revision``, raise SupersededError if the state has another one, because another process was faster.
        """
        document = dict(operating_point)
        with self._write() as connection:
            state = self._lock(connection)
            _check_revision(state, revision)
            self._insert(
                connection, operating_points, operating_point=document, changed_by=changed_by, changed_at=now()
            )
            self._update_fleet(connection, operating_point=document, revision=state.revision + 1)
            self._add_event(connection, "operating-point", {"operating_point": document, "changed_by": changed_by})
            return self._state(connection)

    def operating_point_history(self, limit: int = 100) -> list[dict[str, Any]]:
        """Return the newest changes of the operating point, newest first."""
        columns = operating_points.c
        query = self._newest(operating_points, limit).with_only_columns(
            columns.operating_point, columns.changed_by, columns.changed_at
        )
        with self._read() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    # Versions

    def publish_version(
        self, version: str, content: bytes, source: str, note: Any = None, *, activate: bool = False, by: str = "local"
    ) -> bool:
        """Store a version of the policy, and activate it if asked. Returns False if it was stored already."""
        with self._write() as connection:
            self._lock(connection)
            mine = sa.and_(versions.c.fleet_id == self._fleet_id, versions.c.version == version)
            is_new = connection.execute(sa.select(versions.c.id).where(mine)).first() is None
            if is_new:
                self._insert(
                    connection,
                    versions,
                    version=version,
                    content=content,
                    source=source,
                    note=note,
                    published_at=now(),
                )
                self._add_event(connection, "version-published", {"version": version, "source": source})
            if activate:
                self._activate(connection, version, by)
        return is_new

    def activate_version(self, version: str, by: str, revision: int | None = None) -> FleetState:
        """Use a stored version for all later decisions, in all processes; ``revision`` as for the operating point."""
        with self._write() as connection:
            _check_revision(self._lock(connection), revision)
            self._activate(connection, version, by)
            return self._state(connection)

    def previous_version(self) -> str:
        """Return the version that was active before the present one, to which a roll-back returns."""
        with self._read() as connection:
            return self._previous(connection)

    def list_versions(self) -> list[StoredVersion]:
        """Return all versions, newest first."""
        columns = versions.c
        query = (
            sa.select(columns.version, columns.source, columns.note, columns.published_at)
            .where(columns.fleet_id == self._fleet_id)
            .order_by(columns.id.desc())
        )
        with self._read() as connection:
            active = self._state(connection).version
            return [StoredVersion(*row, active=row.version == active) for row in connection.execute(query)]

    def read_version(self, version: str) -> bytes:
        """Return the content of a version."""
        query = sa.select(versions.c.content).where(
            versions.c.fleet_id == self._fleet_id, versions.c.version == version
        )
        with self._read() as connection:
            content = connection.execute(query).scalar()
        if content is None:
            raise UnknownVersionError(version)
        return bytes(content)

    # Rounds and outcomes

    def commit(self, items: Sequence[NewRound | NewOutcome]) -> list[StoredRound | bytes | RoundError | None]:
        """Store decisions and outcomes in one transaction, and return what to answer for each of them.

        For a decision it is the answer to send: the bytes of this decision, or those of an earlier equal request. For
        an outcome it is None. A RoundError is returned for what cannot be stored; it does not affect the other items.
        """
        results: list[Any] = [None] * len(items)
        with self._write() as connection:
            state = self._lock(connection)
            new_rounds = self._sort_out_rounds(connection, state, items, results)
            new_outcomes = self._sort_out_outcomes(connection, items, results)
            moment = now()
            if new_rounds:
                _insert_rows(connection, rounds, [self._round_row(item, moment) for item in new_rounds.values()])
                newest = max(new_rounds)
                if newest > state.newest_round:
                    connection.execute(_SET_NEWEST_ROUND, {"fleet_id": self._fleet_id, "newest": newest})
            if new_outcomes:
                _insert_rows(connection, outcomes, [self._outcome_row(item, moment) for item in new_outcomes.values()])
        return results

    def _sort_out_rounds(
        self, connection: Connection, state: FleetState, items: Sequence[NewRound | NewOutcome], results: list[Any]
    ) -> dict[int, NewRound]:
        """Fill in the results of the decisions, and return those that are new, by round."""
        new: dict[int, NewRound] = {}
        asked = [item.round for item in items if isinstance(item, NewRound) and item.round <= state.newest_round]
        stored = self._stored_rounds(connection, asked) if asked else {}
        for index, item in enumerate(items):
            if not isinstance(item, NewRound):
                continue
            if item.round in stored:
                digest, decision = stored[item.round]
                results[index] = unpack(decision) if digest == item.digest else RoundConflictError()
            elif item.round in new:
                same = new[item.round].digest == item.digest
                results[index] = new[item.round].decision if same else RoundConflictError()
            elif item.round <= state.newest_round - self.stale_rounds:
                results[index] = StaleRoundError(state.newest_round)
            elif item.revision != state.revision:
                results[index] = SupersededError()
            else:
                new[item.round] = item
                results[index] = item.decision
        return new

    def _stored_rounds(self, connection: Connection, asked: list[int]) -> dict[int, tuple[bytes, bytes]]:
        query = sa.select(rounds.c.round, rounds.c.digest, rounds.c.decision).where(
            rounds.c.fleet_id == self._fleet_id, rounds.c.round.in_(asked)
        )
        return {row.round: (bytes(row.digest), row.decision) for row in connection.execute(query)}

    def _sort_out_outcomes(
        self, connection: Connection, items: Sequence[NewRound | NewOutcome], results: list[Any]
    ) -> dict[int, NewOutcome]:
        """Fill in the results of the outcomes, and return those that are new, by round."""
        new: dict[int, NewOutcome] = {}
        asked = [item.round for item in items if isinstance(item, NewOutcome)]
        if not asked:
            return new
        query = (
            sa.select(rounds.c.round, outcomes.c.digest)
            .join_from(
                rounds,
                outcomes,
                sa.and_(outcomes.c.fleet_id == rounds.c.fleet_id, outcomes.c.round == rounds.c.round),
                isouter=True,
            )
            .where(rounds.c.fleet_id == self._fleet_id, rounds.c.round.in_(asked))
        )
        stored = {row.round: row.digest for row in connection.execute(query)}
        for index, item in enumerate(items):
            if not isinstance(item, NewOutcome):
                continue
            if item.round not in stored:
                results[index] = UnknownRoundError()
            elif stored[item.round] is None:
                new[item.round] = item
                stored[item.round] = item.digest
            elif bytes(stored[item.round]) != item.digest:
                results[index] = RoundConflictError()
        return new

    def _round_row(self, item: NewRound, moment: datetime) -> dict[str, Any]:
        return {
            "fleet_id": self._fleet_id,
            "round": item.round,
            "digest": item.digest,
            "report": pack(item.report),
            "decision": pack(item.decision),
            "devices": item.devices,
            "training": item.training,
            "version": item.version,
            "operating_point": item.operating_point,
            "decided_at": moment,
        }

    def _outcome_row(self, item: NewOutcome, moment: datetime) -> dict[str, Any]:
        return {
            "fleet_id": self._fleet_id,
            "round": item.round,
            "digest": item.digest,
            "outcome": pack(item.outcome),
            "recorded_at": moment,
        }

    def list_rounds(self, before: int | None = None, limit: int = 50) -> list[StoredRound]:
        """Return rounds with a number below ``before``, newest first, without their reports and decisions."""
        query = self._rounds(with_content=False).order_by(rounds.c.round.desc()).limit(limit)
        if before is not None:
            query = query.where(rounds.c.round < before)
        with self._read() as connection:
            return [_read_round(row) for row in connection.execute(query)]

    def read_rounds(self, after: int = -1, limit: int = 50) -> list[StoredRound]:
        """Return rounds with a number above ``after``, oldest first, with reports, decisions and outcomes.

        This is how a background tuner reads what was recorded.
        """
        query = self._rounds(with_content=True).where(rounds.c.round > after).order_by(rounds.c.round).limit(limit)
        with self._read() as connection:
            return [_read_round(row) for row in connection.execute(query)]

    def read_round(self, number: int) -> StoredRound:
        """Return one round with report, decision and outcome. Raises UnknownRoundError."""
        with self._read() as connection:
            row = connection.execute(self._rounds(with_content=True).where(rounds.c.round == number)).first()
        if row is None:
            raise UnknownRoundError
        return _read_round(row)

    def _rounds(self, with_content: bool) -> sa.Select[Any]:
        columns = rounds.c
        chosen = [getattr(columns, name) for name in ("id", "round", "devices", "training", "version")]
        chosen += [columns.operating_point, columns.decided_at, outcomes.c.recorded_at, outcomes.c.outcome]
        chosen += [columns.report, columns.decision] if with_content else []
        matching = sa.and_(outcomes.c.fleet_id == columns.fleet_id, outcomes.c.round == columns.round)
        query = sa.select(*chosen).join_from(rounds, outcomes, matching, isouter=True)
        return query.where(columns.fleet_id == self._fleet_id)

    def prune(self, retention: Retention, limit: int) -> int:
        """Delete at most ``limit`` of the oldest rounds that need not be kept, with their outcomes. Returns how many.

        Rounds that are not stale are always kept: a deleted round is refused as stale, and never decided again.
        """
        with self._write() as connection:
            newest = self._state(connection).newest_round
            columns = rounds.c
            query = (
                sa.select(columns.round, columns.decided_at)
                .where(columns.fleet_id == self._fleet_id, columns.round <= newest - self.stale_rounds)
                .order_by(columns.round)
                .limit(limit)
            )
            last_kept = -1 if retention.rounds is None else newest - retention.rounds
            oldest = now() - timedelta(days=retention.days or 0)
            doomed = [
                row.round
                for row in connection.execute(query)
                if row.round <= last_kept or (retention.days is not None and row.decided_at < oldest)
            ]
            if doomed:
                for table in (outcomes, rounds):
                    mine = sa.and_(table.c.fleet_id == self._fleet_id, table.c.round.in_(doomed))
                    connection.execute(sa.delete(table).where(mine))
        return len(doomed)

    # Events

    def event_cursor(self) -> EventCursor:
        """Return the position after everything that has happened."""
        with self._read() as connection:

            def newest(table: sa.Table) -> int:
                query = sa.select(sa.func.max(table.c.id)).where(table.c.fleet_id == self._fleet_id)
                return connection.execute(query).scalar() or 0

            return EventCursor(newest(rounds), newest(outcomes), newest(events))

    def read_events(self, cursor: EventCursor, limit: int = 500) -> list[StoredEvent]:
        """Return what happened after a position, at most ``limit`` of each kind: changes, decisions, then outcomes."""
        found: list[StoredEvent] = []
        with self._read() as connection:
            for row in self._rows_after(connection, events, cursor.event, limit):
                cursor = EventCursor(cursor.round, cursor.outcome, row.id)
                found.append(StoredEvent(row.kind, row.document, row.at, cursor))
            summary = [rounds.c.id, rounds.c.round, rounds.c.devices, rounds.c.training, rounds.c.version]
            for row in self._rows_after(connection, rounds, cursor.round, limit, [*summary, rounds.c.decided_at]):
                cursor = EventCursor(row.id, cursor.outcome, cursor.event)
                document = {name: getattr(row, name) for name in ("round", "devices", "training", "version")}
                found.append(StoredEvent("decision", document, row.decided_at, cursor))
            for row in self._rows_after(connection, outcomes, cursor.outcome, limit):
                cursor = EventCursor(cursor.round, row.id, cursor.event)
                outcome = json.loads(unpack(row.outcome))
                document = {name: outcome.get(name) for name in ("round", "duration_s", "energy_j", "accuracy")}
                found.append(StoredEvent("outcome", document, row.recorded_at, cursor))
        return found

    def add_event(self, kind: str, document: dict[str, Any]) -> None:
        """Store something that happened, for readers of events."""
        with self._write() as connection:
            self._lock(connection)
            self._add_event(connection, kind, document)

    def list_events(self, kind: str, limit: int = 50) -> list[StoredEvent]:
        """Return the newest events of a kind, newest first."""
        query = self._newest(events, limit).where(events.c.kind == kind)
        with self._read() as connection:
            return [
                StoredEvent(row.kind, row.document, row.at, EventCursor(event=row.id))
                for row in connection.execute(query)
            ]

    @contextmanager
    def tuning_lock(self) -> Iterator[bool]:
        """Try to become the only process that tunes this fleet, and yield whether this worked. It never waits.

        The database, or the operating system, releases the lock when the process ends.
        """
        if self.kind == "sqlite":
            path = Path(str(self._engine.url.database))
            with ExitStack() as stack:
                try:
                    stack.enter_context(file_lock(path.with_name(f"{path.name}.tune-{self._fleet_id}.lock")))
                    got = True
                except TimeoutError:
                    got = False
                yield got
            return
        with _unavailable(), self._engine.connect() as connection:
            lock = sa.func.pg_try_advisory_lock(_TUNING_LOCK, self._fleet_id)
            got = bool(connection.execute(sa.select(lock)).scalar())
            connection.commit()  # the lock belongs to the session, and no transaction stays open meanwhile
            try:
                yield got
            finally:
                connection.invalidate()  # the end of the session releases the lock

    # Tokens

    def add_token(self, token_id: str, role: str, label: str, secret_sha256: str, expires_at: datetime | None) -> None:
        """Store a token without its secret."""
        with self._write() as connection:
            connection.execute(
                sa.insert(tokens).values(
                    id=token_id,
                    fleet_id=self._fleet_id,
                    role=role,
                    label=label,
                    secret_sha256=secret_sha256,
                    created_at=now(),
                    expires_at=expires_at,
                )
            )

    def list_tokens(self) -> list[StoredToken]:
        """Return all tokens of the fleet, oldest first."""
        columns = tokens.c
        query = (
            sa.select(
                columns.id,
                columns.role,
                columns.label,
                columns.secret_sha256,
                columns.created_at,
                columns.expires_at,
                columns.revoked_at,
            )
            .where(columns.fleet_id == self._fleet_id)
            .order_by(columns.created_at, columns.id)
        )
        with self._read() as connection:
            return [StoredToken(*row) for row in connection.execute(query)]

    def revoke_token(self, token_id: str) -> bool:
        """Make a token unusable. Returns False if there is no such token."""
        with self._write() as connection:
            mine = sa.and_(tokens.c.fleet_id == self._fleet_id, tokens.c.id == token_id)
            if connection.execute(sa.select(tokens.c.id).where(mine)).first() is None:
                return False
            query = sa.update(tokens).where(mine, tokens.c.revoked_at.is_(None)).values(revoked_at=now())
            connection.execute(query)
        return True

    # Helpers

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with _unavailable(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with _unavailable(), _writing(self._engine) as connection:
            yield connection

    def _state(self, connection: Connection, lock: bool = False) -> FleetState:
        statement = _READ_STATE_LOCKED if lock and self.kind != "sqlite" else _READ_STATE
        return FleetState(*connection.execute(statement, {"fleet_id": self._fleet_id}).one())

    def _lock(self, connection: Connection) -> FleetState:
        """Lock the fleet for writing until the end of the transaction; in SQLite the transaction itself is the lock."""
        return self._state(connection, lock=True)

    def _update_fleet(self, connection: Connection, **values: Any) -> None:
        connection.execute(sa.update(fleets).where(fleets.c.id == self._fleet_id).values(**values))

    def _insert(self, connection: Connection, table: sa.Table, **values: Any) -> None:
        connection.execute(sa.insert(table).values(fleet_id=self._fleet_id, **values))

    def _add_event(self, connection: Connection, kind: str, document: dict[str, Any]) -> None:
        self._insert(connection, events, kind=kind, document=document, at=now())

    def _activate(self, connection: Connection, version: str, by: str) -> None:
        mine = sa.and_(versions.c.fleet_id == self._fleet_id, versions.c.version == version)
        if connection.execute(sa.select(versions.c.id).where(mine)).first() is None:
            raise UnknownVersionError(version)
        state = self._state(connection)
        if state.version == version:
            return
        self._insert(
            connection, activations, version=version, previous=state.version, activated_by=by, activated_at=now()
        )
        self._update_fleet(connection, version=version, revision=state.revision + 1)
        self._add_event(connection, "version-activated", {"version": version, "previous": state.version, "by": by})

    def _previous(self, connection: Connection) -> str:
        row = connection.execute(self._newest(activations, 1)).first()
        if row is None or row.previous is None:
            raise UnknownVersionError("previous")
        return str(row.previous)

    def _newest(self, table: sa.Table, limit: int) -> sa.Select[Any]:
        query = sa.select(table).where(table.c.fleet_id == self._fleet_id)
        return query.order_by(table.c.id.desc()).limit(limit)

    def _rows_after(
        self, connection: Connection, table: sa.Table, after: int, limit: int, columns: Sequence[Any] | None = None
    ) -> sa.CursorResult[Any]:
        query = sa.select(*(columns or table.c)).where(table.c.fleet_id == self._fleet_id, table.c.id > after)
        return connection.execute(query.order_by(table.c.id).limit(limit))

    def _find_or_create_fleet(self, name: str) -> int:
        def find(connection: Connection) -> int | None:
            return connection.execute(sa.select(fleets.c.id).where(fleets.c.name == name)).scalar()

        with _unavailable():
            try:
                with _writing(self._engine) as connection:
                    found = find(connection)
                    if found is not None:
                        return found
                    values = {"name": name, "revision": 0, "newest_round": -1, "created_at": now()}
                    connection.execute(sa.insert(fleets).values(**values, operating_point=_NO_OPERATING_POINT))
                    return int(find(connection) or 0)
            except IntegrityError:  # another process was faster
                with self._engine.connect() as connection:
                    return int(find(connection) or 0)


def _insert_rows(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have the same columns with one statement.

    The drivers' executemany gives up Python's global lock for every row, and then waits for a busy thread to return it:
    under load most of a transaction's time. SQLAlchemy's own statement of this form would be compiled in every batch.
    """
    names = tuple(rows[0])
    converters = _converters(table, names, connection.dialect)
    values = [
        row[name] if convert is None else convert(row[name])
        for row in rows
        for name, convert in zip(names, converters, strict=True)
    ]
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    connection.exec_driver_sql(_insert_statement(table.name, names, len(rows), mark), tuple(values))


@lru_cache(maxsize=16)
def _converters(table: sa.Table, names: tuple[str, ...], dialect: Dialect) -> list[Any]:
    return [table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names]


@lru_cache(maxsize=1024)
def _insert_statement(table: str, names: tuple[str, ...], count: int, mark: str) -> str:
    row = f"({', '.join([mark] * len(names))})"
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES {', '.join([row] * count)}"


def _check_revision(state: FleetState, revision: int | None) -> None:
    if revision is not None and state.revision != revision:
        raise SupersededError


def _read_round(row: Any) -> StoredRound:
    return StoredRound(
        id=row.id,
        round=row.round,
        devices=row.devices,
        training=row.training,
        version=row.version,
        operating_point=row.operating_point,
        decided_at=row.decided_at,
        report=unpack(row.report) if hasattr(row, "report") else b"",
        decision=unpack(row.decision) if hasattr(row, "decision") else b"",
        outcome=None if row.outcome is None else unpack(row.outcome),
        recorded_at=row.recorded_at,
    )
