"""Shared by the tests of the scheduler and the service: policies and their export, and a database of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from exports import Case, make_case
from fastapi.testclient import TestClient
from postgres import PostgresServer
from servers import build_policy_file

from tandem.serving import Scheduler, write_policy_file
from tandem.serving.http import create_app
from tandem.serving.service import Service, publish
from tandem.serving.storage import Store


@pytest.fixture(scope="session")
def case() -> Case:
    return make_case("discard", 10, "conditioned", 10)


@pytest.fixture(scope="session")
def fixed_case() -> Case:
    """A network that fits one size of fleet."""
    return make_case("discard", 10, "mlp", 10)


@pytest.fixture
def policy_path(case: Case, tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    write_policy_file(path, case.file)
    return path


@pytest.fixture
def scheduler(case: Case) -> Scheduler:
    return Scheduler(case.file)


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


@pytest.fixture(scope="session")
def service_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export file for a fleet of three devices."""
    path = tmp_path_factory.mktemp("policy") / "policy.safetensors"
    write_policy_file(path, build_policy_file())
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with an active policy, in SQLite."""
    store = Store.open(str(tmp_path / "tandem.db"), stale_rounds=10)
    publish(store, build_policy_file(), activate=True, by="test")
    yield store
    store.close()


@pytest.fixture
def http(store: Store) -> Iterator[TestClient]:
    """A client of the application, in this process; errors of the program would be raised."""
    with TestClient(create_app(Service(store)), base_url="http://127.0.0.1") as client:
        yield client
