"""A database of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the session; skips the test if PostgreSQL is not installed."""
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tandem.db"
    url: str = request.getfixturevalue("postgres").create_database()
    return url
