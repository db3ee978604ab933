"""A small fleet on digits, with a cache of its own, and devices that answer without anything in between."""

from pathlib import Path

import pytest
from small_fleet import FLEET, SEED, SIZE, Transport

from tandem.federated.build import build_system
from tandem.federated.fleet.client_round import ClientContext
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.hardware import SimulatedHardware
from tandem.federated.fleet.messages import to_bytes
from tandem.federated.fleet.spec import FleetSpec, build_spec
from tandem.feel import System
from tandem.scenario import load_scenario


@pytest.fixture(autouse=True, scope="session")
def _models(cache: None) -> None:
    """No test looks into the user's cache."""


@pytest.fixture(scope="session")
def system(cache: None) -> System:
    return build_system(load_scenario("paper", FLEET))


@pytest.fixture(scope="session")
def problem(cache: None) -> FleetSpec:
    return build_spec(load_scenario("paper", FLEET), SEED)


@pytest.fixture(scope="session")
def places(problem: FleetSpec) -> list[ClientContext]:
    return [ClientContext.init(problem, n) for n in range(SIZE)]


@pytest.fixture
def devices(places: list[ClientContext], tmp_path: Path) -> list[ClientHandler]:
    return [ClientHandler(place, tmp_path, SimulatedHardware(), patience_s=0.2) for place in places]


@pytest.fixture
def direct(devices: list[ClientHandler]) -> Transport:
    """A carrier that never fails."""
    return lambda instructions: {order.device: devices[order.device].handle(to_bytes(order)) for order in instructions}
