"""Worst-case limits of each device in a round, for the planned outage probability.

They are computed once from the scenario, in double precision. The shield keeps every round within them.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from tandem.feel.arrivals import ArrivalProcess
from tandem.feel.channel import ChannelModel
from tandem.feel.timetable import Timetable, build_timetable
from tandem.feel.types import Array, Count, PerDevice, Scalar
from tandem.scenario.device_table import Column, DeviceTable
from tandem.scenario.schema import Scenario

# The shield plans for slightly less than the limits, so that rounding in single precision cannot cross them.
SAFETY_MARGIN = 1e-3
ROUND_LENGTHS = 8  # planned lengths of a round that are tried, the longest first
_NOTHING = 1e-30  # stands for 0 in a division


class WorstCase(eqx.Module):
    """Bounds that hold in every round, except with the planned outage probability, and the timetable of the shield."""

    round_limit_s: Scalar  # the longest round; at most L_max, and no queue overflows in it
    worst_gain: PerDevice  # the lowest h / sigma^2
    worst_arrivals: PerDevice  # requests in the longest round
    queue_limit: PerDevice  # the longest queue that the device can serve within the shortest round
    upload_s: PerDevice  # duration of its upload alone at full power
    max_trainers: PerDevice  # the most trainers (including itself) that can share the uplink
    max_data: PerDevice  # the most samples that its buffer may hold: D_max, or under the shield what it can train on
    period: Int[Array, " devices"]  # the device has a place among the trainers in one of this many rounds
    offset: Int[Array, " devices"]  # the first round with a place
    reserved: Count  # m, the places of a round; 0 without a timetable


class ShieldPlan(NamedTuple):
    """The longest round, and the timetable of trainers for rounds of that length."""

    round_limit_s: float
    arrivals: Column  # requests in the longest round
    max_trainers: Column
    max_data: Column
    windows: Column  # rounds in which the device must train at least once
    timetable: Timetable | None  # None: not all devices can train before their buffers overflow


def build_worst_case(
    scenario: Scenario, devices: DeviceTable, arrivals: ArrivalProcess, channel: ChannelModel
) -> tuple[WorstCase, ShieldPlan]:
    """Derive the worst-case limits from the scenario's limits and its worst-case channel and arrivals.

    Without a feasible timetable the result is incomplete; ``check_feasible`` then rejects the scenario.
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
    plan = _plan_rounds(scenario, devices, arrivals, queue_limit, upload_s)
    table = plan.timetable or Timetable(np.ones(len(devices), np.int64), np.zeros(len(devices), np.int64), 0)
    return WorstCase(
        round_limit_s=jnp.asarray(plan.round_limit_s, float),
        worst_gain=jnp.asarray(worst_gain, float),
        worst_arrivals=jnp.asarray(plan.arrivals, float),
        queue_limit=jnp.asarray(queue_limit, float),
        upload_s=jnp.asarray(upload_s, float),
        max_trainers=jnp.asarray(plan.max_trainers, float),
        max_data=jnp.asarray(plan.max_data, float),
        period=jnp.asarray(table.period, jnp.int32),
        offset=jnp.asarray(table.offset, jnp.int32),
        reserved=jnp.asarray(table.places, jnp.int32),
    ), plan


def _plan_rounds(
    scenario: Scenario, devices: DeviceTable, arrivals: ArrivalProcess, queue_limit: Column, upload_s: Column
) -> ShieldPlan:
    """Choose the longest round for which a timetable exists, or the longest of all if there is none."""
    limits, outage = scenario.limits, scenario.shield.outage
    keeps_data = scenario.shield.enabled and limits.overflow == "violation"
    # A device that trains has served in the round before, so its queue holds the arrivals of two rounds at most.
    longest_s = _longest_round(arrivals, queue_limit / 2 if keeps_data else queue_limit, limits.round_max_s, outage)
    if not keeps_data:
        return _plan(scenario, devices, arrivals, upload_s, longest_s * (1 - SAFETY_MARGIN), reserved=None)
    shortest_s = min(max(limits.round_floor_s, limits.idle_round_s), longest_s)
    best = None
    for round_s in np.linspace(longest_s, shortest_s, ROUND_LENGTHS) * (1 - SAFETY_MARGIN):
        for reserved in range(1, scenario.fleet.size + 1):
            plan = _plan(scenario, devices, arrivals, upload_s, float(round_s), reserved)
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
    arrivals: ArrivalProcess,
    upload_s: Column,
    round_s: float,
    reserved: int | None,
) -> ShieldPlan:
    """Plan with rounds of this length and ``reserved`` places for trainers in each, or without a timetable."""
    limits, shield, training = scenario.limits, scenario.shield, scenario.training
    max_trainers = np.floor(shield.upload_share * round_s / upload_s)
    uploading_s = shield.upload_share * round_s if reserved is None else reserved * upload_s
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
    return ShieldPlan(round_s, worst_arrivals, max_trainers, max_data, windows, timetable)


def _longest_round(arrivals: ArrivalProcess, queue_limit: Column, round_max_s: float, outage: float) -> float:
    """Return the longest round, up to L_max, whose arrivals fit into every queue; 0 if there is none."""
    for duration_s in np.linspace(round_max_s, 0.0, 200, endpoint=False):
        if np.all(arrivals.upper_quantile(duration_s, outage) <= queue_limit):
            return float(duration_s)
    return 0.0
