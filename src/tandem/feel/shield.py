"""The shield: a projection of an action to one that keeps C1 to C5, now and in all later rounds.

It uses the information of the edge server at the start of a round (queues, buffers, the devices' constants) and the
worst-case channel and arrivals (``WorstCase``), never this round's channel. Its rules:

1. A buffer never holds more samples than D_max, nor more than the device can train on within a round beside m uploads.
   For this every device has a place among the trainers in certain rounds (``timetable``), m at most in each. A device
   trains if it has data and its buffer could overflow before its next place.
2. A device may train only if it has data (C4), its queue cannot overflow meanwhile, and it can then wait until its next
   place. In the round before a place it may have to leave the training to that place.
3. The number of trainers is limited, so that every trainer can finish in time. Devices that must train come first,
   then those with the most data.
4. A trainer's power and frequency are high enough for it to finish in time.
5. The frequency of a device that serves is high enough for its inference to end within the round. If even the highest
   frequency is not, no device trains, and the idle round lasts until the inference ends. With a slot
   (``round_floor_s``) this never happens, since no queue exceeds what a device can serve within it.

Proof of rule 1. A device with data has served in the round before, so its queue holds at most the arrivals a of one
round. If it trains, it serves F(2a) samples in the next round, then F(a) in each. Its period p is at most max_data /
F(a), so it can wait from any training until its next place (rule 2 covers a training just before a place), and at its
place it either can wait for the next one, or trains. So a device has to train only in the rounds of its places.

With ``limits.overflow: discard`` there is no timetable. A buffer then admits only the samples that the device can train
on within a round, discards the others, and C3 is not checked.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tandem.feel.channel import uplink_rate
from tandem.feel.constraints import exceeds
from tandem.feel.costs import upload_latency
from tandem.feel.numerics import fleet_max, no_fma
from tandem.feel.queues import converted_data
from tandem.feel.state import Action, FleetState
from tandem.feel.system import System
from tandem.feel.types import ActionMask, Count, DeviceFlags, PerDevice, Scalar

# Bounds that keep the arithmetic finite for devices outside the limits of ``WorstCase``; inside they have no effect.
_INSTANT_S = 1e-6
_MOST_BITS_PER_HZ = 60.0
FIRST = 1e30  # merit of devices that must train; above that of any amount of data
_ROUNDING = 1e-4  # of a number of trainers that was computed in single precision


def project(system: System, state: FleetState, action: Action, present: DeviceFlags | None = None) -> Action:
    """Apply the rules to an action, with as few changes of modes, powers and frequencies as possible.

    Devices that are not ``present`` serve, even those that must train by rule 1: their buffers may overflow.
    """
    devices, worst_case = system.devices, system.worst_case
    may_serve, may_train = action_mask(system, state).T
    willing = (action.train | ~may_serve) & may_train
    if present is not None:
        willing &= present
    merit = jnp.where(may_serve, state.data, FIRST)
    train = top_k_mask(willing, merit, uplink_room(system, state, willing))

    trainers = jnp.sum(train)
    power = jnp.maximum(action.power, _trainer_power(system, state, trainers))
    trainer_frequency = jnp.maximum(action.frequency, _trainer_frequency(system, state, trainers, power))

    compute_s = _training_cycles(system, state) / devices.frequency_hz(trainer_frequency)
    sure_s = jnp.maximum(fleet_max(compute_s, train), system.round_floor_s)
    quickest_s = _inference_cycles(system, state) * jnp.reciprocal(devices.frequency_max_hz)
    train &= ~jnp.any(~train & exceeds(quickest_s, sure_s))

    serving_s = jnp.where(jnp.any(train), sure_s, worst_case.round_limit_s)
    server_frequency = jnp.maximum(action.frequency, _server_frequency(system, state, serving_s))
    return Action(
        train=train,
        power=jnp.where(train, power, action.power),
        frequency=jnp.where(train, trainer_frequency, server_frequency),
    )


def action_mask(system: System, state: FleetState) -> ActionMask:
    """Return the modes that each device may choose: column 0 is serve, column 1 is train (rules 1 and 2)."""
    worst_case = system.worst_case
    may_train = state.data > 0
    if not system.shielded:
        return jnp.stack([jnp.ones_like(may_train), may_train], axis=-1)
    may_train &= state.queue + worst_case.worst_arrivals <= worst_case.queue_limit
    if system.discards:
        return jnp.stack([jnp.ones_like(may_train), may_train], axis=-1)
    per_round = converted_data(system.devices.samples_per_request, worst_case.worst_arrivals)
    queued = converted_data(system.devices.samples_per_request, state.queue)
    # Rounds until the next place after this round, as a number of the same type as data.
    since = jnp.mod(state.round - worst_case.offset, worst_case.period)
    ahead = (worst_case.period - since).astype(state.data.dtype)
    period = worst_case.period.astype(state.data.dtype)
    after_serving = state.data + queued + no_fma((ahead - 1) * per_round)  # data at the next place
    # After a training in the round before a place there is no data to train on at that place: it waits a period longer.
    after_training = queued + no_fma(jnp.where(ahead > 1, ahead - 1, period) * per_round)
    limit = worst_case.max_data
    must_train = may_train & exceeds(after_serving, limit)
    may_train &= must_train | ~exceeds(after_training, limit)
    return jnp.stack([~must_train, may_train], axis=-1)


def uplink_room(system: System, state: FleetState, willing: DeviceFlags) -> Count:
    """Return how many of the ``willing`` devices may train, so that each can still finish in time (rule 3)."""
    worst_case = system.worst_case
    left_s = worst_case.round_limit_s - _training_cycles(system, state) / system.devices.frequency_max_hz
    beside = jnp.floor(left_s / worst_case.upload_s + _ROUNDING)
    room = jnp.minimum(jnp.maximum(beside, worst_case.reserved), worst_case.max_trainers)
    return jnp.clip(jnp.min(room, initial=jnp.inf, where=willing), 0, system.size).astype(jnp.int32)


def top_k_mask(willing: DeviceFlags, merit: PerDevice, room: Count) -> DeviceFlags:
    """Return the ``room`` devices with the highest merit among the ``willing``; ``merit`` is not negative.

    The rank of a device is one integer: the leading bits of its merit, followed by the bits of its index in the fleet,
    so that no two ranks are equal. The lowest rank to select is then found bit by bit, by counting. This takes 31
    passes and no sorting. Merits that agree in their leading bits (19 bits of mantissa at N = 10, 6 at N = 100,000)
    count as equal.
    """
    size = merit.shape[0]
    place_bits = max(size - 1, 1).bit_length()
    # The bits of non-negative floats are ordered as the floats are.
    merit_bits = jax.lax.bitcast_convert_type(merit.astype(jnp.float32), jnp.int32)
    place = size - 1 - jnp.arange(size, dtype=jnp.int32)
    rank = jnp.where(willing, (merit_bits >> place_bits << place_bits) | place, -1)

    def settle_bit(step: Count, lowest: Count) -> Count:
        tried = lowest | (1 << (30 - step))
        return jnp.where(jnp.sum(rank >= tried) >= room, tried, lowest)

    lowest: Count = jax.lax.fori_loop(0, 31, settle_bit, jnp.zeros((), jnp.int32))
    return willing & (rank >= lowest)


def _training_cycles(system: System, state: FleetState) -> PerDevice:
    return system.iterations * system.devices.training_cycles_per_sample * state.data


def _inference_cycles(system: System, state: FleetState) -> PerDevice:
    return system.devices.inference_cycles_per_request * state.queue


def _trainer_power(system: System, state: FleetState, trainers: Count) -> PerDevice:
    """Compute the lowest power (normalised) at which the upload ends in time, after computing at full frequency."""
    devices = system.devices
    quickest_s = no_fma(_training_cycles(system, state) * jnp.reciprocal(devices.frequency_max_hz))
    left_s = system.worst_case.round_limit_s - quickest_s
    bits_per_hz = trainers * system.update_bits / (system.bandwidth_hz * jnp.maximum(left_s, _INSTANT_S))
    snr = jnp.expm1(jnp.minimum(bits_per_hz, _MOST_BITS_PER_HZ) * np.log(2.0))
    power_w = no_fma(snr * jnp.reciprocal(system.worst_case.worst_gain))
    return normalised(power_w, devices.power_min_w, devices.power_max_w)


def _trainer_frequency(system: System, state: FleetState, trainers: Count, power: PerDevice) -> PerDevice:
    """Compute the lowest frequency (normalised) at which computing ends in time for the upload."""
    devices = system.devices
    rate = uplink_rate(system.bandwidth_hz, trainers, devices.power_w(power), system.worst_case.worst_gain)
    left_s = system.worst_case.round_limit_s - upload_latency(system.update_bits, rate)
    frequency_hz = _training_cycles(system, state) / jnp.maximum(left_s, _INSTANT_S)
    return normalised(frequency_hz, devices.frequency_min_hz, devices.frequency_max_hz)


def _server_frequency(system: System, state: FleetState, duration_s: Scalar) -> PerDevice:
    """Compute the lowest frequency (normalised) at which the whole queue is served within ``duration_s``."""
    frequency_hz = _inference_cycles(system, state) / jnp.maximum(duration_s, _INSTANT_S)
    return normalised(frequency_hz, system.devices.frequency_min_hz, system.devices.frequency_max_hz)


def normalised(value: PerDevice, low: PerDevice, high: PerDevice) -> PerDevice:
    """Scale a value linearly from [low, high] to [0, 1], and clip it."""
    width = high - low
    per_width = jnp.where(width > 0, jnp.reciprocal(jnp.where(width > 0, width, 1.0)), 0.0)
    return jnp.clip((value - low) * per_width, 0.0, 1.0)
