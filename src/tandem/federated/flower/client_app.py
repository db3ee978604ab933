"""Devices that live in whatever process Flower's simulation puts them, with their memory on disk."""

from __future__ import annotations

import functools
from pathlib import Path

from tandem.federated.fleet.client_round import Place
from tandem.federated.fleet.client_store import Device
from tandem.federated.fleet.config import MEMORY, read_problem, read_settings
from tandem.federated.fleet.hardware import SimulatedHardware
from tandem.federated.fleet.spec import Problem


def answer(folder: str, number: int, instruction: bytes) -> bytes:
    """The report of this device."""
    place = Path(folder)
    problem = _problem(place, read_settings(place).run)
    return Device(Place.of(problem, number), place / MEMORY, SimulatedHardware()).answer(instruction)


@functools.lru_cache(maxsize=1)  # read and compiled once a process, not once a message
def _problem(folder: Path, run: str) -> Problem:
    return read_problem(folder, read_settings(folder).seed)
