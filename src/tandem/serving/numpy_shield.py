"""The shield in NumPy. Each function is the version of the function of the same name in ``tandem.feel.shield``.

Modes are equal to those of JAX, and powers and frequencies agree within 1e-5 of their range, with one exception: a
trainer with so few samples that computing takes less than a fifth of the round, and whose frequency the shield raised.
There the rounding of the upload's time is amplified, in JAX too; the times of computing agree within 2e-6 of the round.

Arithmetic is in single precision, in the order of the JAX functions, and is done only for the devices that need it: the
power floor, for example, is computed for trainers only. See ``tandem.feel.shield`` for the rules and their proof.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.serving.fleet import Fleet
from tandem.serving.messages import ShieldRule

Single = NDArray[np.float32]
Flags = NDArray[np.bool_]

FIRST = np.float32(1e30)  # merit of devices that must train
_INSTANT_S = np.float32(1e-6)
_MOST_BITS_PER_HZ = np.float32(60.0)
_ROUNDING = np.float32(1e-4)
_SLACK = np.float32(1 + 1e-5)  # of ``feel.constraints.exceeds``
_NEVER_S = np.float32(1e9)  # of ``feel.costs.upload_latency``
_LN2 = np.float32(math.log(2.0))
_PER_LN2 = np.float32(1 / math.log(2.0))


class FleetConstants:
    """Products of a fleet's constants that every round needs, computed once."""

    def __init__(self, fleet: Fleet) -> None:
        """Compute the products in single precision, as the JAX functions do."""
        devices, worst_case, system = fleet.devices, fleet.worst_case, fleet.system
        self.fleet = fleet
        self.size = fleet.size
        self.training_cycles = system.iterations * devices.training_cycles_per_sample
        self.per_frequency_max = np.float32(1) / devices.frequency_max_hz
        self.frequency_width = devices.frequency_max_hz - devices.frequency_min_hz
        self.per_frequency_width = _per_width(self.frequency_width)
        self.power_width = devices.power_max_w - devices.power_min_w
        self.per_power_width = _per_width(self.power_width)
        self.lowest_choices = np.stack([devices.power_min_w, devices.frequency_min_hz])
        self.per_worst_gain = np.float32(1) / worst_case.worst_gain
        self.of_trainers = np.stack(  # what ``_raise_trainers`` selects the trainers of
            [
                *(self.training_cycles, self.per_frequency_max),
                *(devices.power_min_w, self.power_width, self.per_power_width),
                *(worst_case.worst_gain, self.per_worst_gain),
                *(devices.frequency_min_hz, self.frequency_width, self.per_frequency_width),
            ]
        )
        self.data_per_round = devices.samples_per_request * worst_case.worst_arrivals
        self.period = worst_case.period.astype(np.float32)
        # The last bits of a rank are the device's place in the fleet, see ``top_k_mask``.
        self.place_bits = max(self.size - 1, 1).bit_length()
        self.place = np.arange(self.size - 1, -1, -1, dtype=np.int32)
        self.nothing = np.zeros(self.size, bool)
        self.nothing.flags.writeable = False  # it is shared by decisions

    def frequency_hz(self, normalised: Single) -> Single:
        """Return the frequency of a normalised choice in [0, 1]."""
        return self.fleet.devices.frequency_min_hz + normalised * self.frequency_width

    def power_w(self, normalised: Single) -> Single:
        """Return the power of a normalised choice in [0, 1]."""
        return self.fleet.devices.power_min_w + normalised * self.power_width


class Mask(NamedTuple):
    """The modes that each device may choose; ``may_serve`` is None if all may serve."""

    may_serve: Flags | None
    may_train: Flags

    def apply(self, train: Flags) -> Flags:
        """Replace modes that are not allowed."""
        return train & self.may_train if self.may_serve is None else (train | ~self.may_serve) & self.may_train


def action_mask(constants: FleetConstants, round_number: int, queue: Single, data: Single) -> Mask:
    """Return the modes that each device may choose (rules 1 and 2)."""
    fleet = constants.fleet
    worst_case = fleet.worst_case
    may_train = data > 0
    if not fleet.system.shielded:
        return Mask(None, may_train)
    may_train &= queue + worst_case.worst_arrivals <= worst_case.queue_limit
    if fleet.system.discards:
        return Mask(None, may_train)
    after_serving, after_training = _data_at_next_place(constants, round_number, queue, data)
    limit = worst_case.max_data * _SLACK
    must_train = may_train & (after_serving > limit)
    may_train &= must_train | ~(after_training > limit)
    return Mask(~must_train, may_train)


def _data_at_next_place(
    constants: FleetConstants, round_number: int, queue: Single, data: Single
) -> tuple[Single, Single]:
    """Compute the most data at a device's next place in the timetable, if it serves now and if it trains now."""
    worst_case = constants.fleet.worst_case
    per_round = constants.data_per_round
    queued = constants.fleet.devices.samples_per_request * queue
    since = np.mod(np.int32(round_number) - worst_case.offset, worst_case.period)
    ahead = (worst_case.period - since).astype(np.float32)
    until = ahead - 1
    after_serving = data + queued + until * per_round
    after_training = queued + np.where(ahead > 1, until, constants.period) * per_round
    return after_serving, after_training


def uplink_room(constants: FleetConstants, data: Single, willing: NDArray[np.intp]) -> int:
    """Return how many of the devices at the indices ``willing`` may train, so that each finishes in time (rule 3)."""
    if len(willing) == 0:
        return constants.size
    fleet = constants.fleet
    worst_case = fleet.worst_case
    cycles = constants.training_cycles[willing] * data[willing]
    left_s = worst_case.round_limit_s - cycles / fleet.devices.frequency_max_hz[willing]
    beside = np.floor(left_s / worst_case.upload_s[willing] + _ROUNDING)
    room = np.minimum(np.maximum(beside, np.float32(worst_case.reserved)), worst_case.max_trainers[willing])
    return int(min(max(room.min(), 0), constants.size))


def top_k_mask(constants: FleetConstants, willing: Flags, merit: Single, room: int) -> Flags:
    """Return the ``room`` devices with the highest merit among the ``willing``; ``merit`` is not negative.

    The rank of a device is that of ``feel.shield.top_k_mask``: the leading bits of its merit, then its place. No two
    ranks are equal, so the lowest rank to select is the ``room``-th largest.
    """
    members = willing.nonzero()[0]
    if len(members) <= room:
        return willing
    chosen = np.zeros_like(willing)
    if room > 0:
        bits = constants.place_bits
        rank = (merit[members].view(np.int32) >> bits << bits) | constants.place[members]
        chosen[members[np.argpartition(rank, len(rank) - room)[-room:]]] = True
    return chosen


class RequestedAction(NamedTuple):
    """The action that a policy asks for. Power and frequency are from 0, the lowest, to 1, the highest."""

    wished: Flags  # modes of the network, before the mask
    train: Flags  # modes after the mask and the policy's own limit of trainers
    power: Single
    frequency: Single
    room: int | None = None  # trainers that are sure to fit the uplink, if the policy has limited them


class Projection(NamedTuple):
    """An action after the shield, and the values from which the rules that changed it follow."""

    train: Flags
    power: Single  # normalised
    frequency: Single  # normalised
    constants: FleetConstants
    round_number: int
    queue: Single
    data: Single
    wished: Flags  # modes of the network, before the mask
    ranked: Flags  # modes after the mask and the policy's own limit of trainers
    willing: Flags  # modes after the mask, before the limit of the uplink
    fitting: Flags  # modes after the limit of the uplink
    asked_power: Single
    asked_frequency: Single
    present: Flags | None  # None if all are

    def rules(self) -> NDArray[np.uint16]:
        """Return the rules that changed the action of each device of the fleet, as a ``ShieldRule``."""
        return _rules(self)


def project(
    constants: FleetConstants,
    round_number: int,
    queue: Single,
    data: Single,
    action: RequestedAction,
    mask: Mask,
    present: Flags | None = None,
) -> Projection:
    """Apply the rules to an action, with as few changes of modes, powers and frequencies as possible.

    Devices that are not ``present`` serve. Without a shield only the mask applies.
    """
    wished, ranked, power, frequency, room = action
    willing = mask.apply(ranked)
    if present is not None:
        willing &= present
    given = (constants, round_number, queue, data, wished, ranked, willing)
    if not constants.fleet.system.shielded:
        return Projection(willing, power, frequency, *given, willing, power, frequency, present)
    members = willing.nonzero()[0]
    if room is not None and len(members) <= room:  # the room was computed for more devices, and has only become larger
        fitting = willing
    else:
        merit = data if mask.may_serve is None else np.where(mask.may_serve, data, FIRST)
        fitting = top_k_mask(constants, willing, merit, uplink_room(constants, data, members))
    trainers = members if fitting is willing else fitting.nonzero()[0]

    devices, system = constants.fleet.devices, constants.fleet.system
    inference_cycles = devices.inference_cycles_per_request * queue
    serving_s = constants.fleet.worst_case.round_limit_s
    train, new_power, new_frequency = fitting, power, frequency
    if len(trainers):
        raised_power, raised_frequency, compute_s = _raise_trainers(constants, data, trainers, power, frequency)
        sure_s = max(compute_s.max(), system.round_floor_s)
        quickest_s = inference_cycles * constants.per_frequency_max
        if (~fitting & (quickest_s > sure_s * _SLACK)).any():
            train = np.zeros_like(fitting)
        else:
            serving_s = sure_s
            new_power = power.copy()
            new_power[trainers] = raised_power
    floor_hz = inference_cycles / max(serving_s, _INSTANT_S)
    floor = (floor_hz - devices.frequency_min_hz) * constants.per_frequency_width
    new_frequency = np.maximum(frequency, np.minimum(floor, np.float32(1)))
    if train is fitting and len(trainers):
        new_frequency[trainers] = raised_frequency
    return Projection(train, new_power, new_frequency, *given, fitting, power, frequency, present)


def _raise_trainers(
    constants: FleetConstants, data: Single, trainers: NDArray[np.intp], power: Single, frequency: Single
) -> tuple[Single, Single, Single]:
    """Raise power and frequency of the trainers (rule 4). Returns both, and the time that each trainer computes.

    These are ``_trainer_power`` and ``_trainer_frequency``, for the devices at the indices ``trainers`` only.
    """
    system, round_limit_s = constants.fleet.system, constants.fleet.worst_case.round_limit_s
    number = np.float32(len(trainers))
    selected = constants.of_trainers[:, trainers]
    per_sample, per_frequency_max, low_w, width_w, per_width_w = selected[:5]
    gain, per_gain, low_hz, width_hz, per_width_hz = selected[5:]
    cycles = per_sample * data[trainers]
    left_s = round_limit_s - cycles * per_frequency_max
    bits_per_hz = number * system.update_bits / (system.bandwidth_hz * np.maximum(left_s, _INSTANT_S))
    snr = np.expm1(np.minimum(bits_per_hz, _MOST_BITS_PER_HZ) * _LN2)
    raised_power = np.maximum(power[trainers], _unit((snr * per_gain - low_w) * per_width_w))

    rate = system.bandwidth_hz / number * np.log1p((low_w + raised_power * width_w) * gain) * _PER_LN2
    upload_s = np.minimum(system.update_bits / np.maximum(rate, system.update_bits / _NEVER_S), _NEVER_S)
    floor_hz = cycles / np.maximum(round_limit_s - upload_s, _INSTANT_S)
    raised_frequency = np.maximum(frequency[trainers], _unit((floor_hz - low_hz) * per_width_hz))
    return raised_power, raised_frequency, cycles / (low_hz + raised_frequency * width_hz)


def _unit(values: Single) -> Single:
    return np.minimum(np.maximum(values, np.float32(0)), np.float32(1))


def _per_width(width: Single) -> Single:
    """Return 1 / width; 0 for an empty range."""
    safe = np.where(width > 0, width, np.float32(1))
    return np.where(width > 0, np.float32(1) / safe, np.float32(0))


def _rules(given: Projection) -> NDArray[np.uint16]:
    constants = given.constants
    worst_case, system = constants.fleet.worst_case, constants.fleet.system
    rules = np.zeros(constants.size, np.uint16)

    def mark(devices: Flags, rule: ShieldRule) -> None:
        rules[devices] |= np.uint16(rule)

    wished, ranked, willing, fitting = given.wished, given.ranked, given.willing, given.fitting
    no_data = ~(given.data > 0)
    mark(wished & no_data, ShieldRule.NO_DATA)
    if system.shielded:
        crowded = ~no_data & ~(given.queue + worst_case.worst_arrivals <= worst_case.queue_limit)
        mark(wished & crowded, ShieldRule.QUEUE_FULL)
        if not system.discards:
            mask = action_mask(constants, given.round_number, given.queue, given.data)
            assert mask.may_serve is not None
            mark(wished & ~no_data & ~crowded & ~mask.may_train, ShieldRule.AWAIT_PLACE)
            mark(~wished & ~mask.may_serve & willing, ShieldRule.MUST_TRAIN)
            mark(mask.apply(wished) & ~ranked, ShieldRule.RANKED_OUT)
        else:
            mark(wished & ~no_data & ~crowded & ~ranked, ShieldRule.RANKED_OUT)
        mark(willing & ~fitting, ShieldRule.UPLINK_FULL)
        mark(fitting & ~given.train, ShieldRule.SLOW_SERVICE)
    if given.present is not None:
        mark(~given.present, ShieldRule.NOT_PRESENT)
    raised = given.frequency > given.asked_frequency
    mark(given.train & (given.power > given.asked_power), ShieldRule.POWER_RAISED)
    mark(given.train & raised, ShieldRule.TRAINING_FREQUENCY_RAISED)
    mark(~given.train & raised, ShieldRule.SERVING_FREQUENCY_RAISED)
    return rules
