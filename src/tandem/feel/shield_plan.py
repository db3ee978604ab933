"""The plan of the shield: worst-case limits of each device, and the timetable of trainers.

It is computed once from the scenario, in double precision. This module does not import JAX: the deployed scheduler
plans again, with the same functions, for a fleet that differs from the one of its scenario.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from tandem.feel.timetable import Timetable, build_timetable
from tandem.scenario.device_table import Column, DeviceTable
from tandem.scenario.schema import Scenario

# The shield plans for slightly less than the limits, so that rounding in single precision cannot cross them.
SAFETY_MARGIN = 1e-3
ROUND_LENGTHS = 8  # planned lengths of a round that are tried, the longest first
_NOTHING = 1e-30  # stands for 0 in a division


@runtime_checkable
class ArrivalBounds(Protocol):
    """What a plan needs of an arrival process, such as ``feel.arrivals.ArrivalProcess``."""

    def upper_quantile(self, duration_s: float, outage: float) -> Column:
        """Return the number of requests that arrivals in a round of this length exceed with probability ``outage``."""

    def mean_rate(self) -> Column:
        """Return the mean number of requests per second in the long run."""


@runtime_checkable
class ChannelBounds(Protocol):
    """What a plan needs of a channel, such as ``feel.channel.ChannelModel``."""

    def worst_gain(self, outage: float) -> Column:
        """Return the gain that each device falls below with probability ``outage``."""


class DeviceLimits(NamedTuple):
    """Limits of each device that do not depend on the length of a round."""

    worst_gain: Column  # the lowest h / sigma^2
    queue_limit: Column  # the longest queue that the device can serve within the shortest round
    upload_s: Column  # duration of its upload alone at full power


class ShieldPlan(NamedTuple):
    """The longest round, the limits of each device in it, and the timetable of trainers for rounds of that length."""

    device: DeviceLimits
    round_limit_s: float
    arrivals: Column  # requests in the longest round
    max_trainers: Column
    max_data: Column
    windows: Column  # rounds in which the device must train at least once
    timetable: Timetable | None  # None: not all devices can train before their buffers overflow


def plan_shield(
    scenario: Scenario, devices: DeviceTable, arrivals: ArrivalBounds, channel: ChannelBounds
) -> ShieldPlan:
    """Derive the worst-case limits from the scenario's limits and its worst-case channel and arrivals.

    ``devices`` may be another fleet than the scenario's. Without a feasible timetable the result is incomplete;
    ``check_feasible`` then rejects the fleet.
    """
    limits, shield = scenario.limits, scenario.shield
    worst_gain = channel.worst_gain(shield.outage)
    # Every round lasts at least the slot, so an inference that fits the slot fits any round. Without a slot, only a
    # round without trainers has a minimum duration.
    shortest_s = limits.round_floor_s or limits.idle_round_s
    serviceable = devices.frequency_max_hz * shortest_s / devices.inference_cycles_per_request
    queue_limit = np.minimum(limits.queue_max, serviceable) * (1 - SAFETY_MARGIN)
    bits_per_s = scenario.channel.bandwidth_hz * np.log2(1 + devices.power_max_w * worst_gain)
    upload_s = scenario.training.update_bits / np.maximum(bits_per_s, _NOTHING)
    return _plan_rounds(scenario, devices, arrivals, DeviceLimits(worst_gain, queue_limit, upload_s))


def _plan_rounds(scenario: Scenario, devices: DeviceTable, arrivals: ArrivalBounds, device: DeviceLimits) -> ShieldPlan:
    """Choose the longest round for which a timetable exists, or the longest of all if there is none."""
    limits, outage = scenario.limits, scenario.shield.outage
    keeps_data = scenario.shield.enabled and limits.overflow == "violation"
    # A device that trains has served in the round before, so its queue holds the arrivals of two rounds at most.
    queue_limit = device.queue_limit / 2 if keeps_data else device.queue_limit
    longest_s = _longest_round(arrivals, queue_limit, limits.round_max_s, outage)
    if not keeps_data:
        return _plan(scenario, devices, arrivals, device, longest_s * (1 - SAFETY_MARGIN), reserved=None)
    shortest_s = min(max(limits.round_floor_s, limits.idle_round_s), longest_s)
    best = None
    for round_s in np.linspace(longest_s, shortest_s, ROUND_LENGTHS) * (1 - SAFETY_MARGIN):
        for reserved in range(1, len(devices) + 1):
            plan = _plan(scenario, devices, arrivals, device, float(round_s), reserved)
            best = best or plan
            if plan.timetable is not None:
                return plan
            if np.any(plan.max_trainers < reserved) or np.any(plan.windows < 2):
                break  # more places leave even less time for computing
    assert best is not None
    return best


def _plan(
    scenario: Scenario,
    devices: DeviceTable,
    arrivals: ArrivalBounds,
    device: DeviceLimits,
    round_s: float,
    reserved: int | None,
) -> ShieldPlan:
    """Plan with rounds of this length and ``reserved`` places for trainers in each, or without a timetable."""
    limits, shield, training = scenario.limits, scenario.shield, scenario.training
    max_trainers = np.floor(shield.upload_share * round_s / device.upload_s)
    uploading_s = shield.upload_share * round_s if reserved is None else reserved * device.upload_s
    cycles_per_sample = training.iterations * devices.training_cycles_per_sample
    trainable = devices.frequency_max_hz * np.maximum(round_s - uploading_s, 0.0) / cycles_per_sample
    if not shield.enabled:
        max_data = np.full(len(devices), limits.data_max)
    else:  # a buffer that admits no more samples needs no margin
        max_data = np.minimum(limits.data_max * (1.0 if reserved is None else 1 - SAFETY_MARGIN), trainable)
    worst_arrivals = arrivals.upper_quantile(round_s, shield.outage)
    # Trained in round 0, the device serves the arrivals of two rounds in round 1, then of one in each: k rounds after
    # round 0 its buffer holds (k + 1) F(a), and it trains in round k + 1 at the latest.
    windows = np.floor(max_data / np.maximum(devices.samples_per_request * worst_arrivals, _NOTHING))
    timetable = None
    if reserved is not None and np.all(windows >= 2) and np.sum(1 / windows) < reserved + 1e-9:
        built = build_timetable(np.minimum(windows, 2**40).astype(np.int64))
        timetable = built._replace(places=reserved) if built.places <= reserved <= np.min(max_trainers) else None
    return ShieldPlan(device, round_s, worst_arrivals, max_trainers, max_data, windows, timetable)


def _longest_round(arrivals: ArrivalBounds, queue_limit: Column, round_max_s: float, outage: float) -> float:
    """Return the longest round, up to L_max, whose arrivals fit into every queue; 0 if there is none."""
    for duration_s in np.linspace(round_max_s, 0.0, 200, endpoint=False):
        if np.all(arrivals.upper_quantile(duration_s, outage) <= queue_limit):
            return float(duration_s)
    return 0.0


def poisson_quantile(mean: Column, outage: float) -> Column:
    """Return the number that a Poisson variable exceeds with probability ``outage`` at most."""
    import scipy.special  # takes longer than NumPy to import, and few plans need it

    share = 1 - outage
    # The quantile as in scipy.stats.poisson.ppf; importing scipy.stats takes as long as importing JAX.
    above = np.ceil(scipy.special.pdtrik(share, mean))
    below = np.maximum(above - 1, 0)
    return np.asarray(np.where(scipy.special.pdtr(below, mean) >= share, below, above), np.float64)
