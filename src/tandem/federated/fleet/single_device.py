"""The simulator's round for a single device: the same function, with a fleet of one.

What the fleet decides together, the length of the round and the share of the uplink, comes with the order. So a device
that computes for itself arrives at the numbers that the simulator has for it.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from tandem.federated.fleet.spec import FleetSpec
from tandem.feel.ages import next_data_age, next_model_age
from tandem.feel.arrivals import ArrivalProcess
from tandem.feel.dynamics import advance
from tandem.feel.queues import next_queue, next_waited
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import Array, Count, DeviceFlags, PerDevice, RandomKey, Scalar
from tandem.rng import EpisodeStream, fold_stream
from tandem.scenario.device_table import Column


class FixedArrivals(ArrivalProcess):
    """So many requests in a round of this length, known already."""

    number: PerDevice
    duration_s: Scalar

    def sample(self, clock_s: Scalar, duration_s: Scalar, key: RandomKey) -> PerDevice:
        return self.number

    def upper_quantile(self, duration_s: float, outage: float) -> Column:
        return np.asarray(self.number, np.float64)

    def mean_rate(self) -> Column:
        return np.asarray(self.number / self.duration_s, np.float64)


class DeviceEnv(eqx.Module):
    """What a device lives in: the fleet's constants, its own place among them, and the world's randomness."""

    system: System
    number: Int[Array, ""]
    key: RandomKey  # of the episode

    @classmethod
    def init(cls, problem: FleetSpec, number: int) -> DeviceEnv:
        """Of one device of a fleet."""
        return cls(problem.system, jnp.asarray(number, jnp.int32), problem.episode_key)


class DeviceAction(eqx.Module):
    """An instruction in numbers; values of the device are arrays of one."""

    train: DeviceFlags
    power_w: PerDevice
    frequency_hz: PerDevice
    trainers: Scalar
    duration_s: Scalar
    round: Count


def slice_device(state: FleetState, number: int) -> FleetState:
    """One device of a fleet, as a fleet."""
    size = state.queue.shape[0]

    def own(leaf: Array) -> Array:
        return leaf[number : number + 1] if jnp.shape(leaf) == (size,) else leaf

    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    shared = {name: fields.pop(name) for name in ("key", "round", "clock_s", "last_duration_s", "measured")}
    return FleetState(**{name: jax.tree.map(own, part) for name, part in fields.items()}, **shared)


@eqx.filter_jit
def device_round(around: DeviceEnv, state: FleetState, order: DeviceAction) -> tuple[FleetState, RoundOutcome]:
    """Play a round as ordered. After training, data and model are still as before: nothing is acknowledged yet."""
    gain_key, arrival_key = jax.random.split(jax.random.fold_in(around.key, order.round))
    gain = around.system.channel.gain(state.clock_s, gain_key)[around.number]
    arrived = around.system.arrivals.sample(state.clock_s, order.duration_s, arrival_key)[around.number]
    # Power and frequency are given, so that a choice between the lowest and the highest is none.
    action = Action(train=order.train, power=jnp.zeros(1), frequency=jnp.zeros(1))
    system = _own_system(around, order, arrived)
    after, outcome = advance(system, dataclasses.replace(state, round=order.round), action, gain[None], arrival_key)
    train = outcome.executed.train
    kept = dataclasses.replace(
        after,
        data=jnp.where(train, state.data, after.data),
        data_age_s=jnp.where(train, state.data_age_s + order.duration_s, after.data_age_s),
        model_age_s=state.model_age_s + order.duration_s,
    )
    lost_nothing = jnp.where(train, 0.0, outcome.discarded)
    return kept, dataclasses.replace(outcome, discarded=lost_nothing)


@eqx.filter_jit
def advance_offline(around: DeviceEnv, state: FleetState, away_s: Scalar, part: Count) -> tuple[FleetState, Scalar]:
    """Time passes and nobody serves. Returns the state and the requests that the queue has admitted."""
    key = jax.random.fold_in(fold_stream(around.key, EpisodeStream.ABSENCE), state.round + part)
    arrived = around.system.arrivals.sample(state.clock_s, away_s, key)[around.number][None]
    nobody = jnp.ones(1, bool)  # as if it trained: the queue is not served
    queue, dropped = next_queue(nobody, state.queue, arrived, around.system.queue_max)
    after = dataclasses.replace(
        state,
        clock_s=state.clock_s + away_s,
        queue=queue,
        waited_s=next_waited(nobody, state.waited_s, queue, away_s),
        data_age_s=next_data_age(~nobody, state.data_age_s, state.data, jnp.zeros(1), away_s),
        model_age_s=next_model_age(~nobody, state.model_age_s, away_s),
    )
    return after, (arrived - dropped)[0]


def _own_system(around: DeviceEnv, order: DeviceAction, arrived: Scalar) -> System:
    """The fleet's system with one device, a round of the given length and a share of the uplink as if alone on it."""
    system, n = around.system, around.number
    devices = jax.tree.map(lambda leaf: leaf[n][None], system.devices)
    devices = dataclasses.replace(
        devices,
        frequency_min_hz=order.frequency_hz,
        frequency_max_hz=order.frequency_hz,
        power_min_w=order.power_w,
        power_max_w=order.power_w,
    )
    return dataclasses.replace(
        system,
        devices=devices,
        arrivals=FixedArrivals(arrived[None], order.duration_s),
        bandwidth_hz=system.bandwidth_hz / jnp.maximum(order.trainers, 1),
        round_floor_s=order.duration_s,  # no shorter and no longer: the length of a round is the fleet's
        round_max_s=order.duration_s,
        data_limit=system.data_limit[n][None],
        size=1,
        shielded=False,
    )
