"""The tables of the service, and how a database gets them: alembic migrations inside the package, run under a lock."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect, Engine

from tandem.errors import InputError
from tandem.io.locks import file_lock

SCHEMA = "0001"  # the newest migration
LOCK_TIMEOUT_S = 60.0
_ADVISORY_LOCK = 7_282_633_650_019_041_901  # any number, the same in all processes


class UtcDateTime(sa.TypeDecorator[datetime]):
    """A moment with a time zone, also in SQLite, which has none."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Write the moment in UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Read the moment in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite numbers rows by itself only if the key has the type INTEGER, which has 64 bits there.
_Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _fleet_column(*, primary_key: bool = False) -> sa.Column[Any]:
    return sa.Column("fleet_id", _Key, sa.ForeignKey("fleets.id"), nullable=False, primary_key=primary_key)


# One row for each fleet. Who writes anything about a fleet locks its row first, so rows of a fleet have ids in the
# order of their commits.
fleets = sa.Table(
    "fleets",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    sa.Column("name", sa.String(100), nullable=False, unique=True),
    sa.Column("revision", sa.BigInteger, nullable=False),  # of the active version and the operating point
    sa.Column("newest_round", sa.BigInteger, nullable=False),  # -1 before the first one
    sa.Column("version", sa.String(64)),  # the active one
    sa.Column("operating_point", sa.JSON, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
)
versions = sa.Table(
    "versions",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    _fleet_column(),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),  # the export file
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("note", sa.JSON),  # why it was published, such as the report of the tuner
    sa.Column("published_at", UtcDateTime, nullable=False),
    sa.UniqueConstraint("fleet_id", "version"),
)
activations = sa.Table(
    "activations",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    _fleet_column(),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("previous", sa.String(64)),  # the version that a roll-back returns to
    sa.Column("activated_by", sa.String(100), nullable=False),
    sa.Column("activated_at", UtcDateTime, nullable=False),
    sa.Index("ix_activations_fleet_id_id", "fleet_id", "id"),
)
operating_points = sa.Table(
    "operating_points",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    _fleet_column(),
    sa.Column("operating_point", sa.JSON, nullable=False),
    sa.Column("changed_by", sa.String(100), nullable=False),
    sa.Column("changed_at", UtcDateTime, nullable=False),
    sa.Index("ix_operating_points_fleet_id_id", "fleet_id", "id"),
)
rounds = sa.Table(
    "rounds",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    _fleet_column(),
    sa.Column("round", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),  # of the request
    sa.Column("report", sa.LargeBinary, nullable=False),  # the request, see storage.pack
    sa.Column("decision", sa.LargeBinary, nullable=False),  # the answer, see storage.pack
    sa.Column("devices", sa.Integer, nullable=False),
    sa.Column("training", sa.Integer, nullable=False),  # devices that were told to train
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("operating_point", sa.JSON, nullable=False),
    sa.Column("decided_at", UtcDateTime, nullable=False),
    sa.UniqueConstraint("fleet_id", "round"),  # a round is decided once
    sa.Index("ix_rounds_fleet_id_id", "fleet_id", "id"),
)
outcomes = sa.Table(
    "outcomes",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    _fleet_column(),
    sa.Column("round", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("outcome", sa.LargeBinary, nullable=False),  # the request, see storage.pack
    sa.Column("recorded_at", UtcDateTime, nullable=False),
    sa.UniqueConstraint("fleet_id", "round"),
    sa.Index("ix_outcomes_fleet_id_id", "fleet_id", "id"),
)
events = sa.Table(
    "events",
    metadata,
    sa.Column("id", _Key, primary_key=True),
    _fleet_column(),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Index("ix_events_fleet_id_id", "fleet_id", "id"),
)
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    _fleet_column(),
    sa.Column("role", sa.String(20), nullable=False),
    sa.Column("label", sa.String(100), nullable=False),
    sa.Column("secret_sha256", sa.String(64), nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime),
    sa.Column("revoked_at", UtcDateTime),
)


def upgrade_schema(engine: Engine) -> None:
    """Bring the database to the schema of this program; several processes may try at the same time.

    Raises InputError if the database was written by a newer program.
    """
    if engine.dialect.name == "sqlite":
        path = Path(str(engine.url.database))
        try:
            with (
                file_lock(path.with_name(path.name + ".lock"), LOCK_TIMEOUT_S),
                engine.connect().execution_options(tandem_writes=True) as connection,
                connection.begin(),
            ):
                _upgrade(connection)
        except TimeoutError as error:
            raise InputError(f"{error} It upgrades the schema; wait until it has ended.") from None
    else:
        with engine.connect() as connection:
            # Migrations may wait longer than requests: for the lock, and for large tables.
            connection.exec_driver_sql("SET lock_timeout = 0; SET statement_timeout = 0")
            connection.commit()
            with connection.begin():  # the lock ends with the transaction, also if this process is killed
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
                _upgrade(connection)
            connection.invalidate()  # so that its settings are not used for requests


def _upgrade(connection: Connection) -> None:
    present = None
    if sa.inspect(connection).has_table("alembic_version"):
        present = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if present == SCHEMA:
        return  # without alembic, whose import takes as long as all the rest of opening a database

    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    if present is not None and present not in {
        each.revision for each in ScriptDirectory.from_config(config).walk_revisions()
    }:
        raise InputError(
            f"the database has schema {present}, which is newer than that of this program, {SCHEMA}; upgrade tandem, "
            "or use another database."
        )
    command.upgrade(config, SCHEMA)
