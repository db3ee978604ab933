"""What goes into the scheduler and comes out of it, in the user's units: seconds, watts, hertz.

All types are columns of NumPy arrays or plain Python values, so that a service can fill them from any format. None of
them refers to a web framework, to Flower or to JAX.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.objectives import OBJECTIVE_LABELS

Column = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]


class ReportError(InputError):
    """A report that cannot be used. It names the field and, if only one is concerned, the device."""

    def __init__(self, field: str, device: str | None, problem: str) -> None:
        """Write the message ``field[device] problem``."""
        self.field = field
        self.device = device
        super().__init__(f"{field if device is None else f'{field}[{device}]'} {problem}")


class UnknownDeviceError(ReportError):
    """A report that names a device which is not in the fleet and gives no profile for it."""


class FleetMismatchError(InputError):
    """A fleet that the policy cannot decide for: its network has a fixed size, or no timetable exists for the fleet."""


@dataclass(frozen=True)
class DeviceProfile:
    """The constants of a device that the scenario does not have, or that replace those of a device which it has.

    ``like`` names a device of the fleet whose constants are used for every field that is None.
    """

    name: str
    like: str | None = None
    training_cycles_per_sample: float | None = None
    inference_cycles_per_request: float | None = None
    frequency_min_hz: float | None = None
    frequency_max_hz: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None
    capacitance: float | None = None  # effective switched capacitance, in W s^3
    switch_energy_j: float | None = None
    request_rate_per_s: float | None = None
    distance_m: float | None = None
    shadowing_db: float | None = None
    samples_per_request: float | None = None


@dataclass(frozen=True)
class FleetReport:
    """The devices at the start of a round, one column for each quantity and one entry for each device in ``names``.

    Devices of the fleet that are not in ``names`` are absent: they are assumed to serve. The order of devices is free.
    A column that the policy does not observe may be None; the scheduler says which one is missing.
    """

    names: Sequence[str]
    round: int  # number of the round, from 0; the timetable of the shield depends on it
    queue: Column  # Q, requests waiting
    data: Column  # D, new training samples
    last_duration_s: float = 0.0  # L of the round before
    last_train: Flags | None = None  # whether the device trained in the round before
    last_power_w: Column | None = None  # its power in the round before; power_min_w if it served
    last_frequency_hz: Column | None = None
    waited_s: Column | None = None  # request-seconds: the sum over waiting requests of the time each has waited
    data_age_s: Column | None = None  # Delta, the mean age of the samples; 1 for an empty buffer
    model_age_s: Column | None = None  # delta, the time since the device last trained
    model_accuracy: Column | None = None  # accuracy of the server's model in the round in which it last trained
    last_gain: Column | None = None  # h / sigma^2 of the round before, the signal-to-noise ratio for one watt
    # False for a device that is late: its row has its last known values, which the policy observes, and it serves.
    present: Flags | None = None
    new_devices: tuple[DeviceProfile, ...] = ()  # devices in ``names`` that the fleet does not have


@dataclass(frozen=True)
class OperatingPoint:
    """What the operator wants: weights of the objectives, limits on their mean values, or both.

    The rules are those of ``tandem pick``: limits exclude policies of the front; among the others it is the best for
    the preference, or the knee without one. "Latency at most 3 s and energy at most 10 J, then most accuracy" is
    ``OperatingPoint(preference=(1, 0, 0), max_latency_s=3, max_energy_j=10)``. A conditioned network is given the
    preference of the chosen policy of the front. It differs from the operator's: in training a preference weights
    advantages, while an operator weights objectives on the scale of the front.
    """

    preference: tuple[float, float, float] | None = None  # accuracy, latency, energy
    min_accuracy: float | None = None
    max_latency_s: float | None = None
    max_energy_j: float | None = None

    @property
    def limits(self) -> dict[str, float | None]:
        """The limits by name, as arguments of ``tandem.pareto.pick``."""
        return {
            "min_accuracy": self.min_accuracy,
            "max_latency_s": self.max_latency_s,
            "max_energy_j": self.max_energy_j,
        }

    def document(self) -> dict[str, Any]:
        """Return the operating point as a JSON document."""
        weights = None if self.preference is None else dict(zip(OBJECTIVE_LABELS, self.preference, strict=True))
        return {"preference": weights, **self.limits}


@dataclass(frozen=True)
class PolicyChoice:
    """The policy that an operating point selects, and the reason."""

    index: int  # in the front
    network: int  # among the networks of the file
    preference: tuple[float, float, float]  # that the network follows
    objectives: tuple[float, float, float]  # of the policy of the front, as measured: accuracy, latency (s), energy (J)
    violation_rate: float  # share of rounds that violated any constraint, as measured
    reason: str

    def document(self) -> dict[str, Any]:
        """Return the choice as a JSON document."""
        accuracy, latency_s, energy_j = self.objectives
        return {
            "index": self.index,
            "network": self.network,
            "preference": dict(zip(OBJECTIVE_LABELS, self.preference, strict=True)),
            "objectives": {"accuracy": accuracy, "latency_s": latency_s, "energy_j": energy_j},
            "violation_rate": self.violation_rate,
            "reason": self.reason,
        }


class ShieldRule(enum.IntFlag):
    """Why the decision for a device differs from the output of the network. Several rules may apply to one device."""

    UNCHANGED = 0
    NO_DATA = enum.auto()  # train -> serve: it has no samples (C4)
    QUEUE_FULL = enum.auto()  # train -> serve: its queue could overflow while it trains (C2)
    AWAIT_PLACE = enum.auto()  # train -> serve: it must leave the training to its next place in the timetable (C3)
    MUST_TRAIN = enum.auto()  # serve -> train: its buffer could overflow before its next place (C3)
    UPLINK_FULL = enum.auto()  # train -> serve: too many trainers share the uplink (C1)
    RANKED_OUT = enum.auto()  # train -> serve: in a fleet larger than in training, others are more likely to train
    SLOW_SERVICE = enum.auto()  # train -> serve: a device that serves needs longer than the trainers (C5)
    POWER_RAISED = enum.auto()  # its upload would not end in time (C1)
    TRAINING_FREQUENCY_RAISED = enum.auto()  # its training would not end in time (C1)
    SERVING_FREQUENCY_RAISED = enum.auto()  # its inference would not end within the round (C5)
    NOT_PRESENT = enum.auto()  # it did not report in time and is assumed to serve

    @property
    def codes(self) -> list[str]:
        """The names of the rules, such as ``["must-train", "power-raised"]``; empty if nothing was changed."""
        return [rule.name.lower().replace("_", "-") for rule in ShieldRule if rule in self and rule.name]

    @property
    def sentence(self) -> str:
        """The reason in words."""
        return " ".join(_SENTENCES[rule] for rule in ShieldRule if rule in self) or "The network's output is unchanged."


_SENTENCES = {
    ShieldRule.NO_DATA: "It serves, since it has no samples to train on.",
    ShieldRule.QUEUE_FULL: "It serves, since its queue could overflow while it trains.",
    ShieldRule.AWAIT_PLACE: "It serves, since it must train at its next place in the timetable instead.",
    ShieldRule.MUST_TRAIN: "It trains, since its buffer could overflow before its next place in the timetable.",
    ShieldRule.UPLINK_FULL: "It serves, since the uplink has no room for its update beside those of other devices.",
    ShieldRule.RANKED_OUT: "It serves, since the uplink has no room and other devices are more likely to train.",
    ShieldRule.SLOW_SERVICE: "It serves, since the inference of another device would outlast the training.",
    ShieldRule.POWER_RAISED: "Its power was raised, so that its upload ends in time.",
    ShieldRule.TRAINING_FREQUENCY_RAISED: "Its frequency was raised, so that its training ends in time.",
    ShieldRule.SERVING_FREQUENCY_RAISED: "Its frequency was raised, so that its inference ends within the round.",
    ShieldRule.NOT_PRESENT: "It did not report in time and is assumed to serve.",
}


@dataclass(frozen=True)
class FleetDecision:
    """The decisions of a round: one entry for each device of the report, in its order, and their explanation."""

    names: Sequence[str]
    round: int
    train: Flags  # the mode: train, else serve
    power_w: Column  # transmission power; a device that serves does not transmit and ignores it
    frequency_hz: Column
    absent: tuple[str, ...]  # devices of the fleet without a row in the report, which are assumed to serve
    late: tuple[str, ...]  # devices with a row of last known values, which are assumed to serve
    policy: PolicyChoice
    version: str  # fingerprint of the policy file
    operating_point: OperatingPoint
    shield: Any = field(repr=False)  # numpy_shield.Projection: the intermediate values, from which the rules follow
    order: NDArray[np.intp] | None = field(default=None, repr=False)  # the devices' places in ``shield``, if another

    @property
    def modes(self) -> list[str]:
        """The mode of each device: ``train`` or ``serve``."""
        return ["train" if train else "serve" for train in self.train]

    @cached_property
    def rules(self) -> NDArray[np.uint16]:
        """The rules that changed the network's output for each device, as a ``ShieldRule``; 0 if none did."""
        rules: NDArray[np.uint16] = self.shield.rules()
        return rules if self.order is None else rules[self.order]

    def explain(self, name: str) -> str:
        """Return a sentence on one device: what was decided, and what the shield changed and why."""
        index = list(self.names).index(name)
        mode = "trains" if self.train[index] else "serves"
        power = f"{self.power_w[index]:.3g} W and " if self.train[index] else ""
        changes = ShieldRule(int(self.rules[index])).sentence
        return f"{name} {mode} with {power}{self.frequency_hz[index] / 1e9:.3g} GHz. {changes}"

    def document(self) -> dict[str, Any]:
        """Return the decisions and their explanation as a JSON document, with one list for each column."""
        changed = np.flatnonzero(self.rules)
        rules = {int(code): ShieldRule(int(code)) for code in np.unique(self.rules[changed])}
        return {
            "round": self.round,
            "devices": list(self.names),
            "mode": self.modes,
            "power_w": self.power_w.tolist(),
            "frequency_hz": self.frequency_hz.tolist(),
            "absent": list(self.absent),
            "late": list(self.late),
            "version": self.version,
            "policy": self.policy.document(),
            "operating_point": self.operating_point.document(),
            "changes": [
                {
                    "device": self.names[n],
                    "rules": rules[int(self.rules[n])].codes,
                    "reason": rules[int(self.rules[n])].sentence,
                }
                for n in changed.tolist()
            ],
        }
