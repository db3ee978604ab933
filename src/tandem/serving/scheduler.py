"""The scheduler: a policy file, an operating point and a fleet; reports in, decisions out."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import short_repr, unknown_name
from tandem.objectives import to_maximised
from tandem.pareto.decision import pick
from tandem.serving.fleet import Fleet
from tandem.serving.messages import (
    DeviceProfile,
    FleetDecision,
    FleetMismatchError,
    FleetReport,
    OperatingPoint,
    PolicyChoice,
    ReportError,
    UnknownDeviceError,
)
from tandem.serving.numpy_policy import (
    COLUMNS,
    DATA,
    LONGEST_S,
    QUEUE,
    NumpyPolicy,
    build_policy,
    idle_columns,
    observe,
)
from tandem.serving.numpy_shield import Flags, Single, action_mask, project
from tandem.serving.policy_file import PolicyFile, read_policy_file

MAX_ROUND = 2**31 - 1
_REMEMBERED = 16  # fleets with absent or new devices whose policies are kept


class Scheduler:
    """Decides for a fleet. A decision depends on the report, the file, the operating point and the fleet alone.

    Nothing is remembered between decisions, so a repeated report has the same decision in every process; random modes
    depend on the file and the number of the round. Operating point and fleet can be changed while other threads decide:
    a decision uses the old or the new ones.
    """

    def __init__(self, policy_file: PolicyFile, operating_point: OperatingPoint | None = None) -> None:
        """Prepare deciding. Raises InputError if no policy of the front is within the limits."""
        self._file = policy_file
        point = OperatingPoint() if operating_point is None else operating_point
        self._active = _Active.build(policy_file, point, self.choose(point), Fleet.from_policy_file(policy_file))

    @classmethod
    def open(cls, path: str | Path, operating_point: OperatingPoint | None = None) -> Scheduler:
        """Open an export file, or a run's folder, which is exported in memory (this imports JAX)."""
        if Path(path).is_dir():
            from tandem.serving.export import export_run

            return cls(export_run(path), operating_point)
        return cls(read_policy_file(path), operating_point)

    @property
    def policy_file(self) -> PolicyFile:
        """The file that is used."""
        return self._file

    @property
    def operating_point(self) -> OperatingPoint:
        """What the operator wants."""
        return self._active.point

    @property
    def policy(self) -> PolicyChoice:
        """The policy that the operating point selects."""
        return self._active.choice

    @property
    def fleet(self) -> Fleet:
        """The fleet that decisions are made for."""
        return self._active.policy.fleet

    def choose(self, operating_point: OperatingPoint) -> PolicyChoice:
        """Return the policy that an operating point would select, without a change.

        Raises InputError if there is none; the message names the limit to relax and the best value it could have.
        """
        arrays = self._file.arrays
        allowed, points = arrays["front.within_tolerance"], to_maximised(arrays["front.objectives"])
        if allowed.any():  # as ``runs.front.selectable_points``: unsafe policies are left out, unless all are unsafe
            points = np.where(allowed[:, None], points, np.nan)
        choice = pick(points, operating_point.preference, **operating_point.limits)
        first, second, third = arrays["front.preferences"][choice.index].tolist()
        accuracy, latency_s, energy_j = arrays["front.objectives"][choice.index].tolist()
        return PolicyChoice(
            index=choice.index,
            network=int(arrays["front.network"][choice.index]),
            preference=(first, second, third),
            objectives=(accuracy, latency_s, energy_j),
            violation_rate=float(arrays["front.violation_rate"][choice.index]),
            reason=choice.reason,
        )

    def set_operating_point(self, operating_point: OperatingPoint) -> PolicyChoice:
        """Use another operating point from the next decision on."""
        choice = self.choose(operating_point)
        self._active = _Active.build(self._file, operating_point, choice, self.fleet)
        return choice

    def set_fleet(self, fleet: Fleet) -> None:
        """Use another fleet, from ``scheduler.fleet.changed(...)``, from the next decision on."""
        if fleet.source is not self._file:
            raise FleetMismatchError("fleet: is of another policy file; derive it from this scheduler's fleet.")
        self._active = _Active.build(self._file, self._active.point, self._active.choice, fleet)

    def decide(self, report: FleetReport, uniform: Single | None = None) -> FleetDecision:
        """Decide for the devices of a report.

        ``uniform`` is a number in [0, 1) for each device of the fleet, in its order, for a policy that samples its
        modes; None: they are drawn from the version of the file and the number of the round.

        Raises ReportError for values that cannot be used, and FleetMismatchError for a fleet that the policy cannot
        decide for.
        """
        active = self._active
        if report.new_devices:
            active = active.with_new_devices(report.new_devices)
        number = _round_number(report.round)
        last_duration_s = _duration(report.last_duration_s)
        values = _read_columns(report, len(active.features))
        policy = active.policy
        order: NDArray[np.intp] | None = None
        absent: tuple[str, ...] = ()
        present = None if report.present is None else np.asarray(report.present, bool)
        if report.names is not policy.fleet.names and tuple(report.names) != policy.fleet.names:
            order = _positions(report.names, policy.fleet)
            policy, values, present, order, absent = active.arrange(order, values, present)
        _check_values(policy, values, report)

        queue, data = values[QUEUE], values[DATA]
        features = observe(policy.constants, values)
        mask = action_mask(policy.constants, number, queue, data)
        drawn: Single | None = None
        if policy.samples_modes:
            drawn = active.draw_modes(number) if uniform is None else uniform
            if order is not None:
                drawn = active.uniform_of(policy, drawn)
        action = policy.act(features, last_duration_s, data, mask, drawn)
        result = project(policy.constants, number, queue, data, action, mask, present)
        power_w, frequency_hz = policy.constants.power_w(result.power), policy.constants.frequency_hz(result.frequency)
        train = result.train
        if order is not None:
            train, power_w, frequency_hz = train[order], power_w[order], frequency_hz[order]
        late = (
            ()
            if report.present is None
            else tuple(name for name, here in zip(report.names, report.present, strict=True) if not here)
        )
        return FleetDecision(
            names=report.names,
            round=number,
            train=train,
            power_w=power_w,
            frequency_hz=frequency_hz,
            absent=absent,
            late=late,
            policy=active.choice,
            version=self._file.version,
            operating_point=active.point,
            shield=result,
            order=order,
        )


@dataclass(frozen=True, eq=False)
class _Active:
    """What decisions are made with. It is replaced as a whole, so that a decision never mixes two of them."""

    point: OperatingPoint
    choice: PolicyChoice
    policy: NumpyPolicy
    _derived: _Cache

    @classmethod
    def build(cls, policy_file: PolicyFile, point: OperatingPoint, choice: PolicyChoice, fleet: Fleet) -> _Active:
        weights = np.asarray(choice.preference, np.float32)
        return cls(point, choice, build_policy(policy_file, choice.network, weights, fleet), _Cache(_REMEMBERED))

    @cached_property
    def features(self) -> tuple[str, ...]:
        return self.policy.policy_file.features

    def with_new_devices(self, profiles: tuple[DeviceProfile, ...]) -> _Active:
        """Return what decides for the fleet with these devices added."""
        found = self._derived.get(profiles)
        if found is None:
            known = self.policy.fleet.index
            for profile in profiles:
                if profile.name in known:
                    raise ReportError("new_devices", profile.name, "is a device of the fleet already; leave it out.")
            file = self.policy.policy_file
            found = _Active.build(file, self.point, self.choice, self.policy.fleet.changed(profiles))
            self._derived.put(profiles, found)
        assert isinstance(found, _Active)
        return found

    def arrange(
        self, positions: NDArray[np.intp], values: Single, present: Flags | None
    ) -> tuple[NumpyPolicy, Single, Flags | None, NDArray[np.intp], tuple[str, ...]]:
        """Put the columns of a report into the order of the fleet.

        Returns the policy for the devices that are there, their columns, which of them are present, the place of each
        device of the report, and the absent devices. A network of fixed size is given an idle device for each absent
        one; any other decides for the devices that are there.
        """
        fleet = self.policy.fleet
        if len(positions) == fleet.size:
            arranged = np.empty_like(values)
            arranged[:, positions] = values
            return self.policy, arranged, _scatter(present, positions, fleet.size), positions, ()
        here = np.zeros(fleet.size, bool)
        here[positions] = True
        absent = tuple(fleet.names[n] for n in np.flatnonzero(~here))
        if not self.policy.policy_file.fits_any_fleet:
            arranged = idle_columns(fleet)[: len(values)].copy()
            arranged[:, positions] = values
            there = here if present is None else here & _scatter(present, positions, fleet.size)
            return self.policy, arranged, there, positions, absent
        order = np.argsort(positions, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        members = positions[order]
        key = members.tobytes()
        policy = self._derived.get(key)
        if policy is None:
            weights = np.asarray(self.choice.preference, np.float32)
            policy = build_policy(self.policy.policy_file, self.choice.network, weights, fleet.take(members))
            self._derived.put(key, policy)
        assert isinstance(policy, NumpyPolicy)
        return policy, values[:, order], None if present is None else present[order], place, absent

    def draw_modes(self, round_number: int) -> Single:
        """Draw a number in [0, 1) for each device of the fleet; the same for the same file and round."""
        seed = int(self.policy.policy_file.version, 16)
        return np.random.default_rng([seed, round_number]).random(self.policy.fleet.size, np.float32)

    def uniform_of(self, policy: NumpyPolicy, uniform: Single) -> Single:
        """Return the numbers of the devices that a policy decides for."""
        if policy is self.policy:
            return uniform
        index = self.policy.fleet.index
        return uniform[[index[name] for name in policy.fleet.names]]


class _Cache:
    """The last few values by key."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        return self._values.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        self._values[key] = value
        while len(self._values) > self._size:
            self._values.popitem(last=False)


def _round_number(value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number <= MAX_ROUND:
        raise ReportError("round", None, f"is {short_repr(value)}; give the round's number, from 0 to {MAX_ROUND}.")
    return number


def _duration(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating) or not 0 <= value <= LONGEST_S:
        raise ReportError("last_duration_s", None, f"is {short_repr(value)}; give seconds, from 0 to {LONGEST_S:g}.")
    return float(value)


def _read_columns(report: FleetReport, features: int) -> Single:
    """Return the columns that the policy observes, [columns, devices]."""
    size = len(report.names)
    if size == 0:
        raise ReportError("names", None, "is empty; report at least one device.")
    values = np.empty((features, size), np.float32)
    for row, name in enumerate(COLUMNS[:features]):
        column = getattr(report, name)
        if column is None:
            raise ReportError(name, None, "is missing; the policy observes it, so give one value for each device.")
        try:
            length = len(column)
            if length == size:
                values[row] = column
        except (TypeError, ValueError, OverflowError):
            raise ReportError(name, None, f"is {short_repr(column)}; give a list of numbers.") from None
        if length != size:
            raise ReportError(name, None, f"has {length} values for {size} devices; give one for each.")
    if report.present is not None and len(report.present) != size:
        raise ReportError("present", None, f"has {len(report.present)} values for {size} devices; give one for each.")
    return values


def _positions(names: Any, fleet: Fleet) -> NDArray[np.intp]:
    index = fleet.index
    try:
        positions = np.fromiter((index[name] for name in names), np.intp, len(names))
    except (KeyError, TypeError):
        for name in names:
            if not isinstance(name, str) or name not in index:
                raise UnknownDeviceError(
                    "names", None, f"has an {_unknown_device(name, fleet)} or describe it in new_devices."
                ) from None
        raise
    repeated = np.flatnonzero(np.bincount(positions, minlength=fleet.size) > 1)
    if len(repeated):
        raise ReportError("names", fleet.names[repeated[0]], "occurs twice; report every device once.")
    return positions


def _unknown_device(name: Any, fleet: Fleet) -> str:
    if fleet.size <= 50:
        return unknown_name("device", name, fleet.names).rstrip(".?")
    return f"unknown device {short_repr(name)}; use a name of the fleet"


def _scatter(present: Flags | None, positions: NDArray[np.intp], size: int) -> Any:
    if present is None:
        return None
    scattered = np.zeros(size, bool)
    scattered[positions] = present
    return scattered


def _check_values(policy: NumpyPolicy, values: Single, report: FleetReport) -> None:
    """Raise ReportError for the first value that is not a number within its range."""
    # The bits of floats from 0 up are ordered as the floats are, and those of negative numbers and NaN are above them.
    # So one comparison checks everything, except that it refuses -0.
    if (values.view(np.uint32) <= policy.highest_bits).all():
        return
    highest = policy.highest
    if ((values >= 0) & (values <= highest)).all():
        return
    row, n = np.argwhere(~((values >= 0) & (values <= highest)))[0].tolist()
    name = COLUMNS[row]
    raise ReportError(
        name, policy.fleet.names[n], f"is {values[row, n]:g}; give a number from 0 to {highest[row, n]:g}."
    )
