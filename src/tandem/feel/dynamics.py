"""One round: from a fleet's state and an action to the next state and the outcome.

The channel gains and the key of the arrivals are arguments; this module draws no other random numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from tandem.feel.accuracy import device_accuracy, server_accuracy
from tandem.feel.channel import uplink_rate
from tandem.feel.constraints import Violations, exceeds, outside_unit, round_too_long
from tandem.feel.costs import (
    compute_energy,
    compute_latency,
    inference_latency,
    round_duration,
    upload_energy,
    upload_latency,
)
from tandem.feel.measured_accuracy import RoundInfo
from tandem.feel.queues import (
    converted_data,
    next_data,
    next_data_age,
    next_model_age,
    next_queue,
    next_waited,
    waiting_time,
)
from tandem.feel.rewards import reward, round_objectives
from tandem.feel.shield import project
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import DeviceFlags, PerDevice, RandomKey, Scalar


def advance(
    system: System, state: FleetState, action: Action, gain: PerDevice, arrival_key: RandomKey
) -> tuple[FleetState, RoundOutcome]:
    """Simulate one round under the given channel gains.

    Capacities are enforced: the queue holds Q_max, the buffer D_max, the round ends at L_max. Requests and samples that
    do not fit are dropped and counted. The update of a trainer that has not finished by L_max is not aggregated: its
    samples are lost and its model does not change. So every number is bounded for every action, and the round is marked
    as a violation of the constraint.
    """
    chosen = bound_action(system, state, action)
    executed = dataclasses.replace(chosen, train=chosen.train & (state.data > 0))
    times = _round_times(system, state, executed, gain)
    energy_j = _round_energy(system, state, executed.train, times)
    queues = _next_queues(system, state, executed.train, times, arrival_key)
    accuracy = _round_accuracy(system, state, executed.train, times, queues)
    violations = _violations(system, state, action, chosen.train, executed.train, times, queues)
    after = _next_state(state, executed, gain, times, queues, accuracy)
    return after, _outcome(system, state, executed, gain, times, energy_j, queues, accuracy, violations)


class _Times(NamedTuple):
    """The time that each device needs at its power and frequency, and the duration of the round."""

    frequency_hz: PerDevice
    power_w: PerDevice
    compute_s: PerDevice  # as if training
    upload_s: PerDevice  # as if training
    training_s: PerDevice  # both
    inference_s: PerDevice  # as if serving
    duration_s: Scalar
    trained: DeviceFlags  # trainers whose update arrived in time


class _Queues(NamedTuple):
    """The tandem queue after the round, and the requests and samples that passed through it."""

    arrived: PerDevice
    queue: PerDevice
    dropped: PerDevice
    served: PerDevice
    converted: PerDevice
    data: PerDevice
    admitted: PerDevice  # converted samples that the buffer admitted
    lost: PerDevice  # samples of trainers that were cut off


class _RoundAccuracy(NamedTuple):
    """The accuracy of the service, and of the model that the round's trainers produced."""

    service: PerDevice  # estimated by the mapping, or measured
    estimated: PerDevice  # by the mapping
    server: Scalar
    measured_state: Any  # None where accuracy is estimated


def bound_action(system: System, state: FleetState, action: Action, present: DeviceFlags | None = None) -> Action:
    """Enforce C7 and C8: clip choices to [0, 1], with NaN as 0. Then apply the shield, if it is enabled.

    Devices that are not ``present`` serve.
    """

    def unit(choice: PerDevice) -> PerDevice:
        return jnp.where(choice >= 0, jnp.minimum(choice, 1.0), 0.0)

    train = action.train if present is None else action.train & present
    bounded = Action(train=train, power=unit(action.power), frequency=unit(action.frequency))
    return project(system, state, bounded, present) if system.shielded else bounded


def _round_times(system: System, state: FleetState, executed: Action, gain: PerDevice) -> _Times:
    devices, train = system.devices, executed.train
    frequency_hz = devices.frequency_hz(executed.frequency)
    power_w = devices.power_w(executed.power)
    rate = uplink_rate(system.bandwidth_hz, jnp.sum(train), power_w, gain)
    compute_s = compute_latency(system.iterations, devices.training_cycles_per_sample, state.data, frequency_hz)
    upload_s = upload_latency(system.update_bits, rate)
    inference_s = inference_latency(devices.inference_cycles_per_request, state.queue, frequency_hz)
    training_s = compute_s + upload_s
    needed_s = round_duration(train, training_s, inference_s, system.round_floor_s, system.idle_round_s)
    duration_s = jnp.minimum(needed_s, system.round_max_s)
    trained = train & ~exceeds(training_s, system.round_max_s)
    return _Times(frequency_hz, power_w, compute_s, upload_s, training_s, inference_s, duration_s, trained)


def _round_energy(system: System, state: FleetState, train: DeviceFlags, times: _Times) -> PerDevice:
    """Compute E: the energy of computing, of the upload (trainers only), and of switching between the modes."""
    devices = system.devices
    # A straggler computes and sends only until the round ends at L_max.
    computing_s = jnp.where(train, jnp.minimum(times.compute_s, system.round_max_s), times.inference_s)
    cut_s = jnp.clip(times.duration_s - times.compute_s, 0.0, times.upload_s)
    sending_s = jnp.where(times.trained, times.upload_s, cut_s)
    switched = train != state.last_action.train
    return (
        compute_energy(devices.capacitance, times.frequency_hz, computing_s)
        + jnp.where(train, upload_energy(times.power_w, sending_s), 0.0)
        + jnp.where(switched, devices.switch_energy_j, 0.0)
    )


def _next_queues(
    system: System, state: FleetState, train: DeviceFlags, times: _Times, arrival_key: RandomKey
) -> _Queues:
    """Update queues and buffers: requests arrive, served requests become data, and data trained on are removed."""
    arrived = system.arrivals.sample(state.clock_s, times.duration_s, arrival_key)
    queue, dropped = next_queue(train, state.queue, arrived, system.queue_max)
    served = jnp.where(train, 0.0, state.queue)
    converted = converted_data(system.devices.samples_per_request, served)
    data, admitted = next_data(train, state.data, converted, system.data_limit)
    lost = jnp.where(train & ~times.trained, state.data, 0.0)
    return _Queues(arrived, queue, dropped, served, converted, data, admitted, lost)


def _round_accuracy(
    system: System, state: FleetState, train: DeviceFlags, times: _Times, queues: _Queues
) -> _RoundAccuracy:
    estimated = device_accuracy(system.model_decay_per_s, state.model_age_s, state.model_accuracy)
    server = server_accuracy(system.accuracy_mapping, times.trained, state.data, state.data_age_s)
    if system.measured_accuracy is None:
        return _RoundAccuracy(estimated, estimated, server, None)
    info = RoundInfo(train, times.trained, queues.arrived, queues.dropped, state.clock_s, times.duration_s)
    measured_state, measured = system.measured_accuracy.step(state.measured, info)
    return _RoundAccuracy(measured, estimated, server, measured_state)


def _violations(
    system: System,
    state: FleetState,
    action: Action,
    chosen: DeviceFlags,
    train: DeviceFlags,
    times: _Times,
    queues: _Queues,
) -> Violations:
    """Check C1 to C8. C7 and C8 apply to the action as given, C4 before devices without data switch to serving."""
    return Violations(
        c1=round_too_long(train, times.training_s, times.inference_s, system.round_max_s),
        c2=exceeds(jnp.where(train, state.queue, 0.0) + queues.arrived, system.queue_max),
        c3=jnp.zeros_like(train) if system.discards else exceeds(state.data + queues.converted, system.data_max),
        c4=chosen & ~(state.data > 0),
        c5=~train & exceeds(times.inference_s, times.duration_s),
        c6=jnp.zeros_like(train),  # a mode is a boolean
        c7=outside_unit(action.power),
        c8=outside_unit(action.frequency),
    )


def _next_state(
    state: FleetState, executed: Action, gain: PerDevice, times: _Times, queues: _Queues, accuracy: _RoundAccuracy
) -> FleetState:
    train, duration_s = executed.train, times.duration_s
    return FleetState(
        key=state.key,
        round=state.round + 1,
        clock_s=state.clock_s + duration_s,
        queue=queues.queue,
        waited_s=next_waited(train, state.waited_s, queues.queue, duration_s),
        data=queues.data,
        data_age_s=next_data_age(train, state.data_age_s, state.data, queues.admitted, duration_s),
        model_age_s=next_model_age(times.trained, state.model_age_s, duration_s),
        model_accuracy=jnp.where(times.trained, accuracy.server, state.model_accuracy),
        last_action=executed,
        last_duration_s=duration_s,
        last_gain=gain,
        measured=accuracy.measured_state,
    )


def _outcome(
    system: System,
    state: FleetState,
    executed: Action,
    gain: PerDevice,
    times: _Times,
    energy_j: PerDevice,
    queues: _Queues,
    accuracy: _RoundAccuracy,
    violations: Violations,
) -> RoundOutcome:
    waiting_s = waiting_time(state.waited_s, state.queue)
    latency_s = waiting_s + times.inference_s
    objectives = round_objectives(executed.train, accuracy.service, latency_s, energy_j)
    return RoundOutcome(
        executed=executed,
        frequency_hz=times.frequency_hz,
        power_w=times.power_w,
        gain=gain,
        trained=times.trained,
        duration_s=times.duration_s,
        compute_s=times.compute_s,
        upload_s=times.upload_s,
        inference_s=times.inference_s,
        waiting_s=waiting_s,
        latency_s=latency_s,
        accuracy=accuracy.service,
        server_accuracy=accuracy.server,
        energy_j=energy_j,
        arrived=queues.arrived,
        served=queues.served,
        dropped=queues.dropped,
        converted=queues.converted,
        discarded=queues.converted - queues.admitted + queues.lost,
        violations=violations,
        objectives=objectives,
        reward=reward(objectives, violations.any(), system.penalty),
        estimated_accuracy=None if system.measured_accuracy is None else accuracy.estimated,
    )
