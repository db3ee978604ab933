"""A fleet of the simulator that is scheduled from outside, as a real fleet is. This module imports JAX.

The fleet reports its devices, takes decisions in watts and hertz, and reports what happened. It has no shield: a wrong
decision has its consequences, and the outcome says which constraints it violated.

>>> fleet = SimulatedFleet(build_system(scenario), names, seed=0)  # doctest: +SKIP
>>> decision = scheduler.decide(fleet.report())  # doctest: +SKIP
>>> outcome = fleet.advance(decision.train, decision.power_w, decision.frequency_hz)  # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.feel import env
from tandem.feel.constraints import CONSTRAINTS, SLACK
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.objectives import to_user_units
from tandem.serving.bodies import report_document
from tandem.serving.messages import FleetReport

Double = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SimulatedOutcome:
    """What happened in a round. Columns have one entry for each device, in the order of ``names``."""

    names: tuple[str, ...]
    train: Flags  # the modes as executed: a device without samples serves
    duration_s: float
    energy_j: float  # of all devices together
    accuracy: float | None  # mean over the devices that served; None if all trained
    objectives: tuple[float, float, float]  # accuracy, latency (s), energy (J): means over devices, as in the paper
    violations: tuple[str, ...]  # the constraints that the round violated, such as ("C1", "C5"); empty if none
    late: tuple[str, ...]  # devices whose update or inference did not end within the round
    requests_arrived: Double
    requests_served: Double
    requests_dropped: Double  # arrived at a full queue
    samples_arrived: Double  # made of served requests
    compute_s: Double  # time of training or inference
    upload_s: Double  # 0 for a device that serves
    device_energy_j: Double
    gain: Double  # h / sigma^2, in 1/W

    @property
    def violated(self) -> bool:
        """Whether the round violated any constraint."""
        return bool(self.violations)

    def document(self, round_number: int) -> dict[str, Any]:
        """Return the body of ``POST /v1/outcomes``."""
        scalars = {"round": round_number, "duration_s": self.duration_s, "energy_j": self.energy_j}
        known = {} if self.accuracy is None else {"accuracy": self.accuracy}
        columns = {name: getattr(self, name).tolist() for name in _REPORTED_COLUMNS}
        return {**scalars, **known, "late": list(self.late), "devices": list(self.names), **columns}


_OBSERVED_COLUMNS = ("queue", "data", "waited_s", "data_age_s", "model_age_s", "model_accuracy", "last_gain")
_REPORTED_COLUMNS = (
    *("requests_arrived", "requests_served", "samples_arrived", "compute_s", "upload_s", "device_energy_j", "gain"),
)


class SimulatedFleet:
    """A fleet of the simulator. The number of the round goes on beyond the length of an episode, without a reset.

    ``system`` is the true one. It may differ from the one that the policy was trained for, and change at any time. The
    randomness is that of an episode of ``policy.rollout`` with the same seed.
    """

    def __init__(self, system: System, names: Sequence[str], seed: int, *, first_round: int = 0) -> None:
        """Start a fleet. ``first_round`` is the number of its first round: that of ``Client.next_round``, or 0."""
        if len(names) != system.size:
            raise ValueError(f"names: has {len(names)} names for a system of {system.size} devices; give one for each.")
        self.names = tuple(names)
        self._use(system)
        fleet_key, _ = jax.random.split(jax.random.key(seed))  # the second is the policy's, as in a rollout
        state: FleetState = _reset(self._system, fleet_key)
        self._state = dataclasses.replace(state, round=jnp.asarray(first_round, jnp.int32))

    @property
    def system(self) -> System:
        """The true system, without a shield."""
        return self._system

    @property
    def state(self) -> FleetState:
        """The state at the start of the next round."""
        return self._state

    @property
    def round(self) -> int:
        """The number of the next round."""
        return int(self._state.round)

    def change_system(self, system: System) -> None:
        """Use another system of the same size from the next round on. The state of the devices is kept."""
        if system.size != self._system.size:
            raise ValueError(f"system: has {system.size} devices instead of {self._system.size}; use the same number.")
        self._use(system)

    def _use(self, system: System) -> None:
        devices = system.devices
        self._system = dataclasses.replace(system, shielded=False)
        self._power_w = _Range.between(devices.power_min_w, devices.power_max_w)
        self._frequency_hz = _Range.between(devices.frequency_min_hz, devices.frequency_max_hz)

    def report(self) -> FleetReport:
        """Return the report of all devices at the start of the next round."""
        values: dict[str, Any] = jax.device_get(_report_columns(self._system, self._state))
        duration_s = float(values.pop("last_duration_s"))
        return FleetReport(names=self.names, round=self.round, last_duration_s=duration_s, **values)

    def report_document(self) -> dict[str, Any]:
        """Return the report as the body of ``POST /v1/decisions``."""
        return report_document(self.report())

    def advance(self, train: ArrayLike, power_w: ArrayLike, frequency_hz: ArrayLike) -> SimulatedOutcome:
        """Simulate one round under a decision, one value for each device in the order of ``names``.

        Nothing is corrected: a power or frequency that the device does not have is a violation, and the nearest one
        that it has is used.
        """
        size = len(self.names)
        columns = {"train": train, "power_w": power_w, "frequency_hz": frequency_hz}
        for name, column in columns.items():
            if np.shape(column) != (size,):
                raise ValueError(
                    f"{name}: has the shape {np.shape(column)}; give one value for each of {size} devices."
                )
        modes, power = np.asarray(train, bool), self._power_w.to_unit(power_w)
        power = np.where(modes, power, np.clip(power, 0, 1))  # a device that serves does not transmit
        frequency = self._frequency_hz.to_unit(frequency_hz)
        action = Action(*(jnp.asarray(column) for column in (modes, power, frequency)))
        self._state, outcome = _advance(self._system, self._state, action)
        return _summarise(self.names, outcome)


_reset = eqx.filter_jit(env.reset)


@eqx.filter_jit
def _report_columns(system: System, state: FleetState) -> dict[str, Any]:
    columns = {name: getattr(state, name) for name in _OBSERVED_COLUMNS}
    last = state.last_action
    return {
        **columns,
        "last_duration_s": state.last_duration_s,
        "last_train": last.train,
        "last_power_w": system.devices.power_w(last.power),
        "last_frequency_hz": system.devices.frequency_hz(last.frequency),
    }


@eqx.filter_jit
def _advance(system: System, state: FleetState, action: Action) -> tuple[FleetState, dict[str, Any]]:
    after, outcome = env.step(system, state, action)
    return after, _columns(outcome)


def _columns(outcome: RoundOutcome) -> dict[str, Any]:
    """Return what a fleet can report. A trainer that is cut off at the end of the round measures its time up to it."""
    train = outcome.executed.train
    compute_s = jnp.where(train, jnp.minimum(outcome.compute_s, outcome.duration_s), outcome.inference_s)
    sending_s = jnp.clip(outcome.duration_s - outcome.compute_s, 0.0, outcome.upload_s)
    return {
        "train": train,
        "duration_s": outcome.duration_s,
        "objectives": outcome.objectives,
        "violations": outcome.violations.by_constraint(),
        "late": (train & ~outcome.trained) | outcome.violations.c5,
        "accuracy": outcome.accuracy,
        "requests_arrived": outcome.arrived,
        "requests_served": outcome.served,
        "requests_dropped": outcome.dropped,
        "samples_arrived": outcome.converted,
        "compute_s": compute_s,
        "upload_s": jnp.where(train, jnp.where(outcome.trained, outcome.upload_s, sending_s), 0.0),
        "device_energy_j": outcome.energy_j,
        "gain": outcome.gain,
    }


def _summarise(names: tuple[str, ...], outcome: dict[str, Any]) -> SimulatedOutcome:
    values = {name: np.asarray(column) for name, column in jax.device_get(outcome).items()}
    columns = {name: values[name].astype(np.float64) for name in (*_REPORTED_COLUMNS, "requests_dropped")}
    serving = ~values["train"]
    accuracy, latency_s, energy_j = to_user_units(values["objectives"]).tolist()
    return SimulatedOutcome(
        names=names,
        train=values["train"],
        duration_s=float(values["duration_s"]),
        energy_j=float(columns["device_energy_j"].sum()),
        accuracy=float(values["accuracy"][serving].mean(dtype=np.float64)) if serving.any() else None,
        objectives=(accuracy, latency_s, energy_j),
        violations=tuple(name for name, violated in zip(CONSTRAINTS, values["violations"], strict=True) if violated),
        late=tuple(name for name, late in zip(names, values["late"], strict=True) if late),
        **columns,
    )


class _Range(NamedTuple):
    """The powers or frequencies that each device has."""

    low: Double
    high: Double

    @classmethod
    def between(cls, low: ArrayLike, high: ArrayLike) -> _Range:
        return cls(np.asarray(low, np.float64), np.asarray(high, np.float64))

    def to_unit(self, value: ArrayLike) -> NDArray[np.float32]:
        """Convert watts or hertz into the action's choice from 0 to 1, and what is no such choice into -1 or 2.

        A value within rounding of a limit is the limit.
        """
        given, span, slack = np.asarray(value, np.float64), self.high - self.low, SLACK * self.high
        unit = np.clip((given - self.low) / np.where(span > 0, span, 1.0), 0, 1)
        inside = (given >= self.low - slack) & (given <= self.high + slack)
        return np.where(inside, unit, np.where(given > self.high, 2.0, -1.0)).astype(np.float32)
