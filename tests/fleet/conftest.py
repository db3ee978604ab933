"""A small fleet on digits, with a cache of its own, and a transport that calls the devices directly."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from small_fleet import FLEET, SEED, SIZE, Transport

from tandem.device.hardware import SimulatedHardware
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.messages import to_bytes
from tandem.federated.fleet.spec import ClientContext, FleetSpec, build_spec
from tandem.feel import System
from tandem.scenario import load_scenario


@pytest.fixture(autouse=True, scope="package")
def _room_for_programs() -> Iterator[None]:
    """Keep compiled programs for all files of this folder, which use the same ones, and drop them at its end."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True, scope="session")
def _models(cache: None) -> None:
    """Keep every test out of the user's cache."""


@pytest.fixture(scope="session")
def spec(cache: None) -> FleetSpec:
    return build_spec(load_scenario("paper", FLEET), SEED)


@pytest.fixture(scope="session")
def system(spec: FleetSpec) -> System:
    """The simulator's system of the same fleet, which measures accuracy on the task."""
    return dataclasses.replace(spec.system, measured_accuracy=spec.task)


@pytest.fixture(scope="session")
def contexts(spec: FleetSpec) -> list[ClientContext]:
    return [ClientContext.init(spec, n) for n in range(SIZE)]


@pytest.fixture
def handlers(contexts: list[ClientContext], tmp_path: Path) -> list[ClientHandler]:
    return [ClientHandler(context, tmp_path, SimulatedHardware(), lock_timeout_s=0.2) for context in contexts]


@pytest.fixture
def direct(handlers: list[ClientHandler]) -> Transport:
    """A transport that never fails."""
    return lambda instructions: {i.device: handlers[i.device].handle(to_bytes(i)) for i in instructions}
