"""Devices that live in whatever process Flower's simulation puts them, with their memory on disk."""

from __future__ import annotations

import functools
from pathlib import Path

from tandem.federated.fleet.client_round import ClientContext
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.config import DEVICES, read_config, read_spec
from tandem.federated.fleet.hardware import SimulatedHardware
from tandem.federated.fleet.spec import FleetSpec


def handle_message(folder: str, number: int, instruction: bytes) -> bytes:
    """The report of this device."""
    place = Path(folder)
    problem = _problem(place, read_config(place).run)
    return ClientHandler(ClientContext.init(problem, number), place / DEVICES, SimulatedHardware()).handle(instruction)


@functools.lru_cache(maxsize=1)  # read and compiled once a process, not once a message
def _problem(folder: Path, run: str) -> FleetSpec:
    return read_spec(folder, read_config(folder).seed)
