"""The devices a user describes: one by one, or 'eight of this profile with these ranges'."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Annotated, Any

import yaml
from pydantic import Field, model_validator

from tandem.scenario.parts import Part, did_you_mean
from tandem.scenario.quantities import (
    CapacitanceRange,
    CyclesRange,
    FactorRange,
    HertzRange,
    JoulesRange,
    MetresRange,
    Range,
    WattsRange,
)


class Conversion(Part):
    """How many training samples a served request becomes (the paper's F_n)."""

    samples_per_request: Annotated[float, Field(gt=0, le=1e6)]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if value == "one-to-one":
            return {"samples_per_request": 1.0}
        if isinstance(value, dict) and len(value) == 1:
            kind, number = next(iter(value.items()))
            if kind in ("many-to-one", "one-to-many"):
                if isinstance(number, bool) or not isinstance(number, int | float) or number < 1:
                    raise ValueError(f"is {kind}: {number!r}; write a number >= 1, such as {{{kind}: 2}}")
                return {"samples_per_request": 1.0 / number if kind == "many-to-one" else float(number)}
            if kind == "samples_per_request":
                return value
        raise ValueError(f"is {value!r}; write one-to-one, {{many-to-one: 2}} or {{one-to-many: 2}}")


class DeviceGroup(Part):
    """``count`` devices of one kind. A field given as {uniform: [low, high]} is drawn for each device."""

    name: str = "device"
    count: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    profile: str | None = None
    training_cycles_per_sample: CyclesRange  # chi_tr
    inference_cycles_per_request: CyclesRange  # chi_in
    frequency_min_hz: HertzRange  # f_min
    frequency_max_hz: HertzRange  # f_max
    power_min_w: WattsRange  # p_min
    power_max_w: WattsRange  # p_max
    capacitance: CapacitanceRange  # e, the effective switched capacitance, in W s^3
    switch_energy_j: JoulesRange  # E_sw
    rate_factor: FactorRange = Range(low=1.0, high=1.0)  # this device's share of the workload's mean rate
    distance_m: MetresRange
    conversion: Conversion = Conversion.model_validate("one-to-one")  # F

    @model_validator(mode="after")
    def _ordered(self) -> DeviceGroup:
        for what, low, high in (
            ("frequency", self.frequency_min_hz, self.frequency_max_hz),
            ("power", self.power_min_w, self.power_max_w),
        ):
            unit = "hz" if what == "frequency" else "w"
            if low.high > high.low:
                raise ValueError(
                    f"has {what}_min_{unit} = {low.high:g} above {what}_max_{unit} = {high.low:g}; "
                    f"raise {what}_max_{unit} or lower {what}_min_{unit}"
                )
        return self


@functools.cache
def device_profiles() -> dict[str, dict[str, Any]]:
    """The device profiles shipped with the package, by name."""
    text = resources.files("tandem.scenario").joinpath("profiles.yaml").read_text(encoding="utf-8")
    profiles: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return profiles


class Fleet(Part):
    """The devices: a list of groups, repeated in order until ``size`` is reached.

    Device n is the same device in a fleet of any size: its group depends on n alone, and its draws on ``seed`` and n.
    """

    size: Annotated[int, Field(ge=1, le=10_000_000)]
    seed: Annotated[int, Field(ge=0)] = 0
    devices: Annotated[tuple[DeviceGroup, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """Fill each group from its profile and from ``defaults``; without a size, the list is the fleet."""
        if not isinstance(value, dict):
            return value
        fleet = dict(value)
        defaults = fleet.pop("defaults", None) or {}
        groups = fleet.get("devices", [{}])
        if not isinstance(groups, list | tuple) or not all(isinstance(group, dict) for group in groups):
            raise ValueError("devices must be a list of device groups; write '- {count: 8, profile: ...}' for each")
        fleet["devices"] = [cls._filled(group, defaults) for group in groups]
        counts = [group.get("count", 1) for group in fleet["devices"]]
        if "size" not in fleet and all(isinstance(count, int) for count in counts):
            fleet["size"] = sum(counts)
        return fleet

    @staticmethod
    def _filled(group: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
        profile = group.get("profile", defaults.get("profile"))
        if profile is not None and profile not in device_profiles():
            raise ValueError(f"names the profile {profile!r}; {did_you_mean(str(profile), device_profiles())}")
        return {**defaults, **(device_profiles()[profile] if profile else {}), **group}
