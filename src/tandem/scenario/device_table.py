"""Sampling of devices from device groups: every constant of every device; device n is the same in every fleet."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.scenario.devices import UNNAMED, DeviceGroup, Fleet
from tandem.scenario.schema import Scenario
from tandem.scenario.units import Range

Column = NDArray[np.float64]


@dataclass(frozen=True)
class DeviceTable:
    """The constants of each device, one column for each constant."""

    names: list[str]
    groups: NDArray[np.intp]  # index into fleet.devices
    training_cycles_per_sample: Column
    inference_cycles_per_request: Column
    frequency_min_hz: Column
    frequency_max_hz: Column
    power_min_w: Column
    power_max_w: Column
    capacitance: Column
    switch_energy_j: Column
    request_rate_per_s: Column
    distance_m: Column
    shadowing_db: Column
    samples_per_request: Column

    def __len__(self) -> int:
        return len(self.names)


def build_device_table(scenario: Scenario) -> DeviceTable:
    """Sample the fleet. Each constant has its own random stream, read in the order of devices."""
    fleet = scenario.fleet
    ends = np.cumsum([group.count for group in fleet.devices])
    groups = np.searchsorted(ends, np.arange(fleet.size) % ends[-1], side="right")

    def stream(field: str) -> np.random.Generator:
        # A stream depends on the seed and the field's name alone: the first n values are the same for every fleet
        # size, and a new field leaves the others as they were.
        return np.random.default_rng([fleet.seed, zlib.crc32(field.encode())])

    def draw(field: str) -> Column:
        ranges: list[Range] = [getattr(group, field) for group in fleet.devices]
        low, high = (np.array([getattr(r, end) for r in ranges])[groups] for end in ("low", "high"))
        return np.asarray(low + (high - low) * stream(field).random(fleet.size))

    return DeviceTable(
        names=_names(fleet, groups),
        groups=groups,
        training_cycles_per_sample=draw("training_cycles_per_sample"),
        inference_cycles_per_request=draw("inference_cycles_per_request"),
        frequency_min_hz=draw("frequency_min_hz"),
        frequency_max_hz=draw("frequency_max_hz"),
        power_min_w=draw("power_min_w"),
        power_max_w=draw("power_max_w"),
        capacitance=draw("capacitance"),
        switch_energy_j=draw("switch_energy_j"),
        request_rate_per_s=scenario.workload.request_rate_per_s * draw("rate_factor"),
        distance_m=draw("distance_m"),
        shadowing_db=scenario.channel.shadowing_db * stream("shadowing_db").standard_normal(fleet.size),
        samples_per_request=np.array([g.conversion.samples_per_request for g in fleet.devices])[groups],
    )


def _names(fleet: Fleet, groups: NDArray[np.intp]) -> list[str]:
    """Name the devices: a group of one keeps its name; others get their number in the fleet."""
    given = Counter(group.name for group in fleet.devices)

    def keeps_name(group: DeviceGroup) -> bool:
        # 'cam-1' could also be the second device of a group 'cam'.
        stem, _, number = group.name.rpartition("-")
        numbered = number.isdecimal() and stem in given
        return group.count == 1 and group.name != UNNAMED and given[group.name] == 1 and not numbered

    keeps = [keeps_name(group) for group in fleet.devices]
    first_cycle = sum(group.count for group in fleet.devices)
    return [
        fleet.devices[g].name if keeps[g] and n < first_cycle else f"{fleet.devices[g].name}-{n}"
        for n, g in enumerate(groups)
    ]
