"""The simulator's round for a single device: the same function, applied to a fleet of one.

The length of the round and the share of the uplink depend on the whole fleet and come with the instruction. A device
therefore computes the same values as the simulator does for it.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tandem.federated.fleet.spec import ClientContext
from tandem.feel.arrivals import ArrivalProcess
from tandem.feel.dynamics import advance
from tandem.feel.queues import next_data_age, next_model_age, next_queue, next_waited
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import Array, Count, DeviceFlags, PerDevice, RandomKey, Scalar
from tandem.rng import EpisodeStream, fold_stream
from tandem.scenario.device_table import Column


class FixedArrivals(ArrivalProcess):
    """A known number of requests in a round of a known length."""

    number: PerDevice
    duration_s: Scalar

    def sample(self, clock_s: Scalar, duration_s: Scalar, key: RandomKey) -> PerDevice:
        return self.number

    def upper_quantile(self, duration_s: float, outage: float) -> Column:
        return np.asarray(self.number, np.float64)

    def mean_rate(self) -> Column:
        return np.asarray(self.number / self.duration_s, np.float64)


class DeviceAction(eqx.Module):
    """An ``Instruction`` as arrays; values of the device have one element."""

    train: DeviceFlags
    power_w: PerDevice
    frequency_hz: PerDevice
    trainers: Scalar  # devices that share the uplink
    duration_s: Scalar
    round: Count


def slice_device(state: FleetState, number: int) -> FleetState:
    """Return one device of a fleet, as a fleet of one."""
    size = state.queue.shape[0]

    def select(leaf: Array) -> Array:
        return leaf[number : number + 1] if jnp.shape(leaf) == (size,) else leaf

    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    shared = {name: fields.pop(name) for name in ("key", "round", "clock_s", "last_duration_s", "measured")}
    return FleetState(**{name: jax.tree.map(select, part) for name, part in fields.items()}, **shared)


@eqx.filter_jit
def device_round(context: ClientContext, state: FleetState, action: DeviceAction) -> tuple[FleetState, RoundOutcome]:
    """Simulate a round of the device.

    Training does not change data and model, because the server has not acknowledged the update yet.
    """
    system, n = context.spec.system, context.number
    gain_key, arrival_key = jax.random.split(jax.random.fold_in(context.spec.episode_key, action.round))
    gain = system.channel.gain(state.clock_s, gain_key)[n]
    arrived = system.arrivals.sample(state.clock_s, action.duration_s, arrival_key)[n]
    # Minimum and maximum of power and frequency are both set to the instruction's value, so 0 selects that value.
    normalised = Action(train=action.train, power=jnp.zeros(1), frequency=jnp.zeros(1))
    own_system = _single_device_system(context, action, arrived)
    state = dataclasses.replace(state, round=action.round)
    after, outcome = advance(own_system, state, normalised, gain[None], arrival_key)
    train = outcome.executed.train
    unacknowledged = dataclasses.replace(
        after,
        data=jnp.where(train, state.data, after.data),
        data_age_s=jnp.where(train, state.data_age_s + action.duration_s, after.data_age_s),
        model_age_s=state.model_age_s + action.duration_s,
    )
    return unacknowledged, dataclasses.replace(outcome, discarded=jnp.where(train, 0.0, outcome.discarded))


@eqx.filter_jit
def advance_offline(
    context: ClientContext, state: FleetState, duration_s: Scalar, part: Count
) -> tuple[FleetState, Scalar]:
    """Simulate time without serving, as part number ``part`` of an absence.

    Returns the state, and the number of requests that the queue admitted.
    """
    system = context.spec.system
    key = jax.random.fold_in(fold_stream(context.spec.episode_key, EpisodeStream.ABSENCE), state.round + part)
    arrived = system.arrivals.sample(state.clock_s, duration_s, key)[context.number][None]
    not_serving = jnp.ones(1, bool)  # like a device that trains: its queue is not served
    queue, dropped = next_queue(not_serving, state.queue, arrived, system.queue_max)
    after = dataclasses.replace(
        state,
        clock_s=state.clock_s + duration_s,
        queue=queue,
        waited_s=next_waited(not_serving, state.waited_s, queue, duration_s),
        data_age_s=next_data_age(~not_serving, state.data_age_s, state.data, jnp.zeros(1), duration_s),
        model_age_s=next_model_age(~not_serving, state.model_age_s, duration_s),
    )
    return after, (arrived - dropped)[0]


def _single_device_system(context: ClientContext, action: DeviceAction, arrived: Scalar) -> System:
    """Return the fleet's system reduced to this device: a given round length, and its share of the bandwidth."""
    system, n = context.spec.system, context.number
    devices = jax.tree.map(lambda leaf: leaf[n][None], system.devices)
    devices = dataclasses.replace(
        devices,
        frequency_min_hz=action.frequency_hz,
        frequency_max_hz=action.frequency_hz,
        power_min_w=action.power_w,
        power_max_w=action.power_w,
    )
    return dataclasses.replace(
        system,
        devices=devices,
        arrivals=FixedArrivals(arrived[None], action.duration_s),
        bandwidth_hz=system.bandwidth_hz / jnp.maximum(action.trainers, 1),
        round_floor_s=action.duration_s,  # equal bounds: the instruction determines the duration of the round
        round_max_s=action.duration_s,
        data_limit=system.data_limit[n][None],
        size=1,
        shielded=False,
    )
