"""Device groups: single devices, or a number of devices of one profile with ranges."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from tandem.errors import did_you_mean, field_error, short_repr
from tandem.io.yaml_reader import read_yaml
from tandem.scenario.base import ConfigModel, Name
from tandem.scenario.units import (
    CapacitanceRange,
    CyclesRange,
    FactorRange,
    HertzRange,
    JoulesRange,
    MetresRange,
    Range,
    Real,
    WattsRange,
    Whole,
)

UNNAMED = "device"

DeviceCount = Annotated[Whole, Field(ge=1, le=10_000_000)]
_COUNTS = TypeAdapter(list[DeviceCount])


class Conversion(ConfigModel):
    """The number of training samples that a served request becomes (the paper's F_n)."""

    samples_per_request: Annotated[Real, Field(gt=0, le=1e6)]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if value == "one-to-one":
            return {"samples_per_request": 1.0}
        if isinstance(value, dict) and len(value) == 1:
            kind, number = next(iter(value.items()))
            if kind in ("many-to-one", "one-to-many"):
                if isinstance(number, bool) or not isinstance(number, int | float) or not 1 <= number <= 1e6:
                    raise ValueError(
                        f"is {kind}: {short_repr(number)}; write a number from 1 to 1e6, as in {{{kind}: 2}}"
                    )
                return {"samples_per_request": 1.0 / number if kind == "many-to-one" else float(number)}
            if kind == "samples_per_request":
                return value
        raise ValueError(f"is {short_repr(value)}; write one-to-one, {{many-to-one: 2}} or {{one-to-many: 2}}")


class DeviceGroup(ConfigModel):
    """``count`` devices of one kind. A field written as {uniform: [low, high]} is drawn for each device."""

    name: Name = UNNAMED
    count: DeviceCount = 1
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
        for lowest, highest in (("frequency_min_hz", "frequency_max_hz"), ("power_min_w", "power_max_w")):
            low, high = getattr(self, lowest).high, getattr(self, highest).low
            if low > high:
                raise field_error(
                    lowest, said=f"is up to {low:g}, above {highest} = {high:g}; lower it or raise {highest}"
                )
        return self


@functools.cache
def device_profiles() -> dict[str, dict[str, Any]]:
    """Return the device profiles shipped with the package, by name."""
    text = resources.files("tandem.scenario").joinpath("profiles.yaml").read_text(encoding="utf-8")
    profiles: dict[str, dict[str, Any]] = read_yaml(text)
    return profiles


class Fleet(ConfigModel):
    """The devices: a list of groups, repeated in order until ``size`` is reached.

    Device n is the same device in a fleet of any size: its group depends on n alone, and its draws on ``seed`` and n.
    """

    size: DeviceCount
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] = 0
    devices: tuple[DeviceGroup, ...]

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """Fill each group from ``defaults`` and from its profile; without a size, the list is the fleet."""
        if not isinstance(value, dict):
            return value
        fleet = dict(value)
        defaults = fleet.pop("defaults", None) or {}
        if not isinstance(defaults, dict):
            raise field_error(
                "defaults", said=f"is {short_repr(defaults)}; write below it the fields that devices share"
            )
        DeviceGroup.check_keys(defaults, "defaults")
        groups = fleet.get("devices", [{}])
        if not isinstance(groups, list | tuple) or not groups:
            raise field_error(
                "devices", said=f"is {short_repr(groups)}; write a list of device groups, each as '- {{count: 8}}'"
            )
        fleet["devices"] = [cls._fill_group(group, n, defaults) for n, group in enumerate(groups)]
        if "size" not in fleet:
            try:
                counts = _COUNTS.validate_python([group.get("count", 1) for group in fleet["devices"]])
            except ValidationError:  # validation of the groups reports the count, which is what the user wrote
                counts = [1]
            fleet["size"] = sum(counts)
        return fleet

    @staticmethod
    def _fill_group(group: Any, n: int, defaults: dict[str, Any]) -> dict[str, Any]:
        """Complete a group. Its fields override its profile, then ``defaults``, then the profile of ``defaults``."""
        if not isinstance(group, dict):
            raise field_error(
                "devices", n, said=f"is {short_repr(group)}; write the fields of a device group, or {{}} for none"
            )
        shared = {} if "profile" in group else _profile(defaults, "defaults")
        return {**shared, **defaults, **_profile(group, "devices", n), **group}


def _profile(fields: dict[str, Any], *location: str | int) -> dict[str, Any]:
    name, known = fields.get("profile"), device_profiles()
    if name is None:
        return {}
    if not isinstance(name, str) or name not in known:
        said = f"is {short_repr(name)}, which is not known; {did_you_mean(name, known)}"
        raise field_error(*location, "profile", said=said)
    return known[name]
