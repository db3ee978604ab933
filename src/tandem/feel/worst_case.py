"""Worst-case limits of each device in a round as arrays of the simulator. The shield keeps every round within them."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from tandem.feel.shield_plan import ShieldPlan
from tandem.feel.timetable import Timetable
from tandem.feel.types import Array, Count, PerDevice, Scalar


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


def build_worst_case(plan: ShieldPlan) -> WorstCase:
    """Convert the plan of the shield into arrays of the simulator's precision."""
    size = len(plan.arrivals)
    table = plan.timetable or Timetable(np.ones(size, np.int64), np.zeros(size, np.int64), 0)
    return WorstCase(
        round_limit_s=jnp.asarray(plan.round_limit_s, float),
        worst_gain=jnp.asarray(plan.device.worst_gain, float),
        worst_arrivals=jnp.asarray(plan.arrivals, float),
        queue_limit=jnp.asarray(plan.device.queue_limit, float),
        upload_s=jnp.asarray(plan.device.upload_s, float),
        max_trainers=jnp.asarray(plan.max_trainers, float),
        max_data=jnp.asarray(plan.max_data, float),
        period=jnp.asarray(table.period, jnp.int32),
        offset=jnp.asarray(table.offset, jnp.int32),
        reserved=jnp.asarray(table.places, jnp.int32),
    )
