"""Worst-case limits of each device in a round, for the planned outage probability.

They are computed once from the scenario, in double precision. The shield keeps every round within them.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from tandem.feel.arrivals import ArrivalProcess
from tandem.feel.channel import ChannelModel
from tandem.feel.types import PerDevice, Scalar
from tandem.scenario.device_table import Column, DeviceTable
from tandem.scenario.schema import Scenario

# The shield plans for slightly less than the limits, so that rounding in single precision cannot cross them.
SAFETY_MARGIN = 1e-3


class WorstCase(eqx.Module):
    """Bounds that hold in every round, except with the planned outage probability."""

    round_limit_s: Scalar  # the longest round in which no queue overflows; at most L_max
    worst_gain: PerDevice  # the lowest h / sigma^2
    worst_arrivals: PerDevice  # requests in the longest round
    queue_limit: PerDevice  # the longest queue that the device can serve within the shortest round
    max_trainable_data: PerDevice  # the most samples it can train on and still upload in time
    max_trainers: PerDevice  # the most trainers (including itself) that can share the uplink


def build_worst_case(
    scenario: Scenario, devices: DeviceTable, arrivals: ArrivalProcess, channel: ChannelModel
) -> WorstCase:
    """Derive the worst-case limits from the scenario's limits and its worst-case channel and arrivals."""
    limits, shield, training = scenario.limits, scenario.shield, scenario.training
    worst_gain = channel.worst_gain(shield.outage)
    # Every round lasts at least the slot, so an inference that fits the slot fits any round. Without a slot, only a
    # round without trainers has a minimum duration.
    shortest_s = limits.round_floor_s or limits.idle_round_s
    serviceable = devices.frequency_max_hz * shortest_s / devices.inference_cycles_per_request
    queue_limit = np.minimum(limits.queue_max, serviceable) * (1 - SAFETY_MARGIN)
    round_limit_s = _longest_round(arrivals, queue_limit, limits.round_max_s, shield.outage) * (1 - SAFETY_MARGIN)

    upload_s = shield.upload_share * round_limit_s
    bits_per_s = scenario.channel.bandwidth_hz * np.log2(1 + devices.power_max_w * worst_gain)
    cycles_per_sample = training.iterations * devices.training_cycles_per_sample
    trainable_data = devices.frequency_max_hz * (round_limit_s - upload_s) / cycles_per_sample
    return WorstCase(
        round_limit_s=jnp.asarray(round_limit_s, float),
        worst_gain=jnp.asarray(worst_gain, float),
        worst_arrivals=jnp.asarray(arrivals.upper_quantile(round_limit_s, shield.outage), float),
        queue_limit=jnp.asarray(queue_limit, float),
        max_trainable_data=jnp.asarray(trainable_data, float),
        max_trainers=jnp.asarray(np.floor(upload_s * bits_per_s / training.update_bits), float),
    )


def _longest_round(arrivals: ArrivalProcess, queue_limit: Column, round_max_s: float, outage: float) -> float:
    """Return the longest round, up to L_max, whose arrivals fit into every queue; 0 if there is none."""
    for duration_s in np.linspace(round_max_s, 0.0, 200, endpoint=False):
        if np.all(arrivals.upper_quantile(duration_s, outage) <= queue_limit):
            return float(duration_s)
    return 0.0
