"""The shield: the nearest thing to an action that every device is sure to manage.

It uses what the edge server knows at the start of a round (queues, buffers, the devices' constants) and the worst
channel and arrivals planned for (``envelope``), never this round's channel. Its five rules:

1. A buffer admits no more samples than the device could train on within a round (``System.data_limit``).
2. Only so many devices train that their uploads fit the part of the round kept for them; those with most data stay.
3. A trainer's power and frequency are high enough for it to finish in time.
4. A device whose queue could overflow serves.
5. A server's frequency is high enough for its inference to end with the round; if even the highest is not, nobody
   trains, and the idle round waits for it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tandem.feel.channel import uplink_rate
from tandem.feel.constraints import exceeds
from tandem.feel.costs import compute_latency, inference_latency, upload_latency
from tandem.feel.reduce import fleet_max
from tandem.feel.state import Action, FleetState
from tandem.feel.system import System
from tandem.feel.types import Count, DeviceFlags, PerDevice, Scalar

# Guards that keep the arithmetic of devices outside the envelope finite; inside it they are never reached.
_INSTANT_S = 1e-6
_MOST_BITS_PER_HZ = 60.0


def project(system: System, state: FleetState, action: Action) -> Action:
    """The action with as few devices told to serve, and as few powers and frequencies raised, as the rules need."""
    devices, envelope = system.devices, system.envelope
    willing = action.train & may_train(system, state)
    room = jnp.min(envelope.most_trainers, initial=jnp.inf, where=willing)
    train = keep_most_data(willing, state.data, jnp.minimum(room, system.size).astype(jnp.int32))

    trainers = jnp.sum(train)
    power = jnp.maximum(action.power, _trainer_power(system, state, trainers))
    trainer_frequency = jnp.maximum(action.frequency, _trainer_frequency(system, state, trainers, power))

    compute_s = _compute_latency(system, state, devices.frequency_hz(trainer_frequency))
    sure_s = jnp.maximum(fleet_max(compute_s, train), system.round_floor_s)
    quickest_s = inference_latency(devices.inference_cycles_per_request, state.queue, devices.frequency_max_hz)
    train &= ~jnp.any(~train & exceeds(quickest_s, sure_s))

    serving_s = jnp.where(jnp.any(train), sure_s, envelope.round_limit_s)
    server_frequency = jnp.maximum(action.frequency, _server_frequency(system, state, serving_s))
    return Action(
        train=train,
        power=jnp.where(train, power, action.power),
        frequency=jnp.where(train, trainer_frequency, server_frequency),
    )


def may_train(system: System, state: FleetState) -> DeviceFlags:
    """The action mask: devices with data (C4), whose queue is sure not to overflow meanwhile (rule 4, if shielded)."""
    has_data = state.data > 0
    if not system.shielded:
        return has_data
    return has_data & (state.queue + system.envelope.worst_arrivals <= system.envelope.queue_limit)


def keep_most_data(willing: DeviceFlags, data: PerDevice, room: Count) -> DeviceFlags:
    """The ``room`` willing devices with most data.

    A device's rank is one integer, its data's leading bits above its place in the fleet, so that no two are equal;
    the lowest rank that gets a place is then found bit by bit, by counting. That costs 31 passes and no sorting, and
    data that agree in those bits (19 bits of mantissa at N = 10, 6 at N = 100,000) count as equal.
    """
    size = data.shape[0]
    place_bits = max(size - 1, 1).bit_length()
    # The bits of non-negative floats are ordered as the floats are.
    data_bits = jax.lax.bitcast_convert_type(data.astype(jnp.float32), jnp.int32)
    place = size - 1 - jnp.arange(size, dtype=jnp.int32)
    rank = jnp.where(willing, (data_bits >> place_bits << place_bits) | place, -1)

    def settle_bit(step: int, lowest: Count) -> Count:
        tried = lowest | (1 << (30 - step))
        return jnp.where(jnp.sum(rank >= tried) >= room, tried, lowest)

    lowest: Count = jax.lax.fori_loop(0, 31, settle_bit, jnp.zeros((), jnp.int32))
    return willing & (rank >= lowest)


def _compute_latency(system: System, state: FleetState, frequency_hz: PerDevice) -> PerDevice:
    return compute_latency(system.iterations, system.devices.training_cycles_per_sample, state.data, frequency_hz)


def _trainer_power(system: System, state: FleetState, trainers: Count) -> PerDevice:
    """The lowest power (normalised) at which the upload fits beside computing at the highest frequency."""
    devices = system.devices
    left_s = system.envelope.round_limit_s - _compute_latency(system, state, devices.frequency_max_hz)
    bits_per_hz = trainers * system.update_bits / (system.bandwidth_hz * jnp.maximum(left_s, _INSTANT_S))
    power_w = jnp.expm1(jnp.minimum(bits_per_hz, _MOST_BITS_PER_HZ) * np.log(2.0)) / system.envelope.worst_gain
    return _normalised(power_w, devices.power_min_w, devices.power_max_w)


def _trainer_frequency(system: System, state: FleetState, trainers: Count, power: PerDevice) -> PerDevice:
    """The lowest frequency (normalised) at which computing ends in time for the upload."""
    devices = system.devices
    rate = uplink_rate(system.bandwidth_hz, trainers, devices.power_w(power), system.envelope.worst_gain)
    left_s = system.envelope.round_limit_s - upload_latency(system.update_bits, rate)
    cycles = system.iterations * devices.training_cycles_per_sample * state.data
    return _normalised(cycles / jnp.maximum(left_s, _INSTANT_S), devices.frequency_min_hz, devices.frequency_max_hz)


def _server_frequency(system: System, state: FleetState, duration_s: Scalar) -> PerDevice:
    """The lowest frequency (normalised) at which the whole queue is served within ``duration_s``."""
    devices = system.devices
    cycles = devices.inference_cycles_per_request * state.queue
    return _normalised(cycles / jnp.maximum(duration_s, _INSTANT_S), devices.frequency_min_hz, devices.frequency_max_hz)


def _normalised(value: PerDevice, low: PerDevice, high: PerDevice) -> PerDevice:
    """Where between low and high a value lies, bounded to [0, 1]."""
    width = high - low
    return jnp.clip(jnp.where(width > 0, (value - low) / jnp.where(width > 0, width, 1.0), 0.0), 0.0, 1.0)
