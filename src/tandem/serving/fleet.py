"""The devices that decisions are made for: their constants, and the worst-case bounds of the shield.

A fleet that differs from the one of the export file is planned again, by the functions that the simulator uses
(``feel.shield_plan``), from the scenario in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.serving.messages import DeviceProfile, FleetMismatchError
from tandem.serving.policy_file import (
    DEVICE_COLUMNS,
    SYSTEM_FIELDS,
    TABLE_COLUMNS,
    TIMETABLE_COLUMNS,
    WORST_CASE_COLUMNS,
    PolicyFile,
)

if TYPE_CHECKING:
    from tandem.feel.shield_plan import ShieldPlan
    from tandem.scenario import DeviceTable, Scenario

Single = NDArray[np.float32]
Double = NDArray[np.float64]
_PROFILE_COLUMNS = tuple(field.name for field in fields(DeviceProfile) if field.name not in ("name", "like"))


class Devices(NamedTuple):
    """The constants of each device, as in ``feel.system.Devices``."""

    training_cycles_per_sample: Single
    inference_cycles_per_request: Single
    frequency_min_hz: Single
    frequency_max_hz: Single
    power_min_w: Single
    power_max_w: Single
    capacitance: Single
    switch_energy_j: Single
    samples_per_request: Single


class WorstCase(NamedTuple):
    """The bounds of the shield, as in ``feel.worst_case.WorstCase``."""

    worst_gain: Single
    worst_arrivals: Single
    queue_limit: Single
    upload_s: Single
    max_trainers: Single
    max_data: Single
    period: NDArray[np.int32]
    offset: NDArray[np.int32]
    round_limit_s: np.float32
    reserved: int


class SystemConstants(NamedTuple):
    """The constants of the scenario that decisions depend on, as in ``feel.system.System``."""

    iterations: np.float32
    update_bits: np.float32
    bandwidth_hz: np.float32
    round_max_s: np.float32
    round_floor_s: np.float32
    idle_round_s: np.float32
    queue_max: np.float32
    data_max: np.float32
    pretrained_accuracy: np.float32
    shielded: bool
    discards: bool


@dataclass(frozen=True, eq=False)
class Fleet:
    """The fleet of an export file, or one derived from it; arrays are in single precision, as in the simulator."""

    names: tuple[str, ...]
    devices: Devices
    worst_case: WorstCase
    system: SystemConstants
    table: Mapping[str, NDArray[Any]]  # constants in double precision, and the group of each device
    source: PolicyFile

    @classmethod
    def from_policy_file(cls, policy_file: PolicyFile) -> Fleet:
        """Return the fleet that the policy was trained for."""
        arrays, system = policy_file.arrays, policy_file.metadata["system"]
        columns = {name: arrays[f"worst_case.{name}"] for name in (*WORST_CASE_COLUMNS, *TIMETABLE_COLUMNS)}
        table = {name: arrays[f"devices.{name}"] for name in (*TABLE_COLUMNS, "group")}
        return cls(
            policy_file.device_names,
            _devices(table),
            WorstCase(
                **columns,
                round_limit_s=np.float32(arrays["worst_case.round_limit_s"]),
                reserved=int(arrays["worst_case.reserved"]),
            ),
            SystemConstants(
                **{name: np.float32(system[name]) for name in SYSTEM_FIELDS},
                shielded=system["shielded"],
                discards=system["discards"],
            ),
            table,
            policy_file,
        )

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.names)

    @cached_property
    def index(self) -> dict[str, int]:
        """The position of each device by name."""
        return {name: n for n, name in enumerate(self.names)}

    def take(self, indices: NDArray[np.intp]) -> Fleet:
        """Return some devices of the fleet. Bounds and timetable are still those of the whole fleet."""
        worst_case = self.worst_case
        columns = {name: getattr(worst_case, name)[indices] for name in (*WORST_CASE_COLUMNS, *TIMETABLE_COLUMNS)}
        return Fleet(
            tuple(self.names[n] for n in indices),
            Devices(*(column[indices] for column in self.devices)),
            worst_case._replace(**columns),
            self.system,
            {name: column[indices] for name, column in self.table.items()},
            self.source,
        )

    def changed(self, profiles: Iterable[DeviceProfile] = (), removed: Sequence[str] = ()) -> Fleet:
        """Return the fleet with devices added, replaced or removed, with new bounds and a new timetable.

        Raises FleetMismatchError if the network does not fit another fleet, or if the fleet cannot be kept stable; the
        message names the device and the cause.
        """
        profiles = tuple(profiles)
        source = self.source
        if not source.fits_any_fleet:
            raise FleetMismatchError(
                f"{source.source}: its network was trained for exactly {len(source.device_names)} devices and cannot "
                "decide for another fleet; train with the network deep-set, which fits any fleet."
            )
        for name in removed:
            if name not in self.index:
                raise FleetMismatchError(f"removed: {name!r} is not a device of the fleet; name one that is.")
        repeated = len({profile.name for profile in profiles}) < len(profiles)
        if repeated:
            raise FleetMismatchError("new_devices: a name occurs twice; give every device one profile.")
        rows = {name: {key: column[n] for key, column in self.table.items()} for n, name in enumerate(self.names)}
        known = dict(rows)
        for name in removed:
            del rows[name]
        for profile in profiles:
            rows[profile.name] = self._row(profile, known)
        if not rows:
            raise FleetMismatchError("removed: no device would be left; keep at least one.")
        names = tuple(rows)
        table = {key: np.array([rows[name][key] for name in names], self.table[key].dtype) for key in self.table}
        return Fleet(names, _devices(table), self._plan(names, table), self.system, table, source)

    def _row(self, profile: DeviceProfile, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the constants of a new or changed device."""
        place = f"new_devices[{profile.name}]"
        base = profile.like if profile.like is not None else profile.name if profile.name in known else None
        if base is not None and base not in known:
            raise FleetMismatchError(f"{place}.like is {base!r}, which is not a device of the fleet; name one that is.")
        row = dict(known[base]) if base is not None else {"group": -1, "shadowing_db": 0.0}
        given = {name: getattr(profile, name) for name in _PROFILE_COLUMNS if getattr(profile, name) is not None}
        for name, value in given.items():
            lowest_allowed = name in ("shadowing_db",) or value >= 0
            if isinstance(value, bool) or not np.isfinite(value) or not lowest_allowed:
                raise FleetMismatchError(f"{place}.{name} is {value!r}; give a finite number of 0 or more.")
            row[name] = float(value)
        if "request_rate_per_s" in given:
            row["peak_rate_per_s"] = given["request_rate_per_s"]
        missing = [name for name in _PROFILE_COLUMNS if name not in row]
        if missing:
            raise FleetMismatchError(
                f"{place}.{missing[0]} is missing; give it, or name a similar device of the fleet in {place}.like."
            )
        for low, high in (("frequency_min_hz", "frequency_max_hz"), ("power_min_w", "power_max_w")):
            if row[low] > row[high]:
                raise FleetMismatchError(f"{place}.{low} is {row[low]:g}, above {high} = {row[high]:g}; lower it.")
        for name in ("training_cycles_per_sample", "inference_cycles_per_request", "frequency_max_hz", "capacitance"):
            if row[name] <= 0:
                raise FleetMismatchError(f"{place}.{name} is {row[name]:g}; give a number above 0.")
        if base is None or not {"distance_m", "shadowing_db"}.isdisjoint(given):
            row["worst_gain"] = self._worst_gain(row, place)
        return row

    def _worst_gain(self, row: Mapping[str, Any], place: str) -> float:
        from tandem.feel.path_loss import mean_gain

        factor = self.source.metadata["fading_factor"]
        if factor is None:
            raise FleetMismatchError(
                f"{place}.distance_m: the channel of the scenario is recorded, so the gain of a new device is unknown; "
                f"name a device with a similar channel in {place}.like instead."
            )
        one = _device_table((place,), {name: np.array([value]) for name, value in row.items()})
        mean = np.float32(mean_gain(self.scenario.channel, one)[0])  # in single precision, as in the channel models
        return float(mean) * float(factor)

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario in the file."""
        from tandem.scenario import Scenario  # takes longer to import than all that is needed to decide

        return Scenario.model_validate(self.source.metadata["scenario"])

    def device_table(self) -> DeviceTable:
        """Return the constants of the devices in double precision."""
        return _device_table(self.names, self.table)

    def _plan(self, names: Sequence[str], table: Mapping[str, NDArray[Any]]) -> WorstCase:
        """Plan the shield for the devices of a table, and check that a policy can serve them."""
        from tandem.feel.feasibility import check_feasible
        from tandem.feel.shield_plan import plan_shield

        kind, devices = self.source.metadata["arrivals"], _device_table(names, table)
        if kind == "other":
            raise FleetMismatchError(
                f"{self.source.source}: the arrival process of its scenario is not one of Tandem's, so its bounds for "
                "another fleet are unknown; train for that fleet."
            )
        rate, peak = (table[name].astype(np.float32) for name in ("request_rate_per_s", "peak_rate_per_s"))
        arrivals, channel = (
            _Arrivals(kind, rate.astype(np.float64), peak.astype(np.float64)),
            _Channel(table["worst_gain"]),
        )
        try:
            plan = plan_shield(self.scenario, devices, arrivals, channel)
            check_feasible(self.scenario, devices, arrivals, channel, plan)
        except InputError as error:
            message = str(error).removeprefix(": ").replace("fleet.devices[-1]", "new_devices")
            raise FleetMismatchError(message) from None
        return worst_case_from_plan(plan)


class _Arrivals(NamedTuple):
    """``feel.shield_plan.ArrivalBounds`` from rates: of constant, Poisson and recorded arrivals."""

    kind: str
    rate_per_s: Double
    peak_rate_per_s: Double  # of recorded arrivals; the same for others

    def upper_quantile(self, duration_s: float, outage: float) -> Double:
        from tandem.feel.shield_plan import poisson_quantile

        if self.kind == "poisson":
            return poisson_quantile(self.rate_per_s * duration_s, outage)
        return self.peak_rate_per_s * duration_s

    def mean_rate(self) -> Double:
        return self.rate_per_s


class _Channel(NamedTuple):
    """``feel.shield_plan.ChannelBounds`` from known gains."""

    gain: Double

    def worst_gain(self, outage: float) -> Double:
        return self.gain


def worst_case_from_plan(plan: ShieldPlan) -> WorstCase:
    """Convert a plan into arrays of single precision, as ``feel.worst_case.build_worst_case`` does."""
    size, table = len(plan.arrivals), plan.timetable

    def single(values: Double) -> Single:
        return np.asarray(values, np.float32)

    return WorstCase(
        worst_gain=single(plan.device.worst_gain),
        worst_arrivals=single(plan.arrivals),
        queue_limit=single(plan.device.queue_limit),
        upload_s=single(plan.device.upload_s),
        max_trainers=single(plan.max_trainers),
        max_data=single(plan.max_data),
        period=np.ones(size, np.int32) if table is None else table.period.astype(np.int32),
        offset=np.zeros(size, np.int32) if table is None else table.offset.astype(np.int32),
        round_limit_s=np.float32(plan.round_limit_s),
        reserved=0 if table is None else table.places,
    )


def _devices(table: Mapping[str, NDArray[Any]]) -> Devices:
    return Devices(*(np.asarray(table[name], np.float32) for name in DEVICE_COLUMNS))


def _device_table(names: Sequence[str], table: Mapping[str, NDArray[Any]]) -> DeviceTable:
    from tandem.scenario import DeviceTable

    columns = {name: table[name] for name in TABLE_COLUMNS if name not in ("peak_rate_per_s", "worst_gain")}
    return DeviceTable(names=list(names), groups=np.asarray(table["group"], np.intp), **columns)
