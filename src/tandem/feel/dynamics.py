"""One round: from a fleet's state and an action to the next state and what happened. No randomness of its own."""

from __future__ import annotations

import jax.numpy as jnp

from tandem.feel.accuracy import device_accuracy, server_accuracy
from tandem.feel.ages import next_data_age, next_model_age
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
from tandem.feel.queues import converted_data, next_data, next_queue, next_waited, waiting_time
from tandem.feel.rewards import reward, round_objectives
from tandem.feel.shield import project
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import PerDevice, RandomKey


def advance(
    system: System, state: FleetState, action: Action, gain: PerDevice, arrival_key: RandomKey
) -> tuple[FleetState, RoundOutcome]:
    """Play one round under the given channel gains.

    Capacities are physical: the queue holds Q_max, the buffer D_max, the round ends at L_max. What does not fit is
    dropped and counted; a trainer not done by then is not aggregated, its samples are lost and its model stays as it
    was. So every number is bounded for every action, and the round is marked as having broken its constraint.
    """
    devices = system.devices
    chosen = _within_bounds(action)
    chosen = project(system, state, chosen) if system.shielded else chosen
    train = chosen.train & (state.data > 0)
    frequency_hz = devices.frequency_hz(chosen.frequency)
    power_w = devices.power_w(chosen.power)

    # The round: how long each device takes, and so how long the round lasts.
    rate = uplink_rate(system.bandwidth_hz, jnp.sum(train), power_w, gain)
    compute_s = compute_latency(system.iterations, devices.training_cycles_per_sample, state.data, frequency_hz)
    upload_s = upload_latency(system.update_bits, rate)
    inference_s = inference_latency(devices.inference_cycles_per_request, state.queue, frequency_hz)
    training_s = compute_s + upload_s
    lasting_s = round_duration(train, training_s, inference_s, system.round_floor_s, system.idle_round_s)
    duration_s = jnp.minimum(lasting_s, system.round_max_s)
    trained = train & ~exceeds(training_s, system.round_max_s)

    # What it yields: accuracy and latency to those served, energy from everybody.
    estimate = device_accuracy(system.model_decay_per_s, state.model_age_s, state.model_accuracy)
    waiting_s = waiting_time(state.waited_s, state.queue)
    latency_s = waiting_s + inference_s
    # A straggler computes and sends only until the round is cut.
    computing_s = jnp.where(train, jnp.minimum(compute_s, system.round_max_s), inference_s)
    sending_s = jnp.where(trained, upload_s, jnp.clip(duration_s - compute_s, 0.0, upload_s))
    switched = train != state.last_action.train
    energy_j = (
        compute_energy(devices.capacitance, frequency_hz, computing_s)
        + jnp.where(train, upload_energy(power_w, sending_s), 0.0)
        + jnp.where(switched, devices.switch_energy_j, 0.0)
    )

    # The tandem queue: requests arrive, served ones become data, trained data are gone.
    arrived = system.arrivals.sample(state.clock_s, duration_s, arrival_key)
    queue, dropped = next_queue(train, state.queue, arrived, system.queue_max)
    served = jnp.where(train, 0.0, state.queue)
    converted = converted_data(devices.samples_per_request, served)
    data, admitted = next_data(train, state.data, converted, system.data_limit)
    lost = jnp.where(train & ~trained, state.data, 0.0)
    new_accuracy = server_accuracy(system.accuracy_mapping, trained, state.data, state.data_age_s)
    truth, accuracy = None, estimate
    if system.measured_accuracy is not None:
        facts = RoundInfo(train, trained, arrived, dropped, state.clock_s, duration_s)
        truth, accuracy = system.measured_accuracy.step(state.measured, facts)

    violations = Violations(
        c1=round_too_long(train, training_s, inference_s, system.round_max_s),
        c2=exceeds(jnp.where(train, state.queue, 0.0) + arrived, system.queue_max),
        c3=jnp.zeros_like(train) if system.shielded else exceeds(state.data + converted, system.data_max),
        c4=chosen.train & ~(state.data > 0),
        c5=~train & exceeds(inference_s, duration_s),
        c6=jnp.zeros_like(train),  # a mode is a boolean
        c7=outside_unit(action.power),
        c8=outside_unit(action.frequency),
    )
    objectives = round_objectives(train, accuracy, latency_s, energy_j)
    executed = Action(train=train, power=chosen.power, frequency=chosen.frequency)
    after = FleetState(
        key=state.key,
        round=state.round + 1,
        clock_s=state.clock_s + duration_s,
        queue=queue,
        waited_s=next_waited(train, state.waited_s, queue, duration_s),
        data=data,
        data_age_s=next_data_age(train, state.data_age_s, state.data, admitted, duration_s),
        model_age_s=next_model_age(trained, state.model_age_s, duration_s),
        model_accuracy=jnp.where(trained, new_accuracy, state.model_accuracy),
        last_action=executed,
        last_duration_s=duration_s,
        last_gain=gain,
        measured=truth,
    )
    outcome = RoundOutcome(
        executed=executed,
        frequency_hz=frequency_hz,
        power_w=power_w,
        gain=gain,
        trained=trained,
        duration_s=duration_s,
        compute_s=compute_s,
        upload_s=upload_s,
        inference_s=inference_s,
        waiting_s=waiting_s,
        latency_s=latency_s,
        accuracy=accuracy,
        server_accuracy=new_accuracy,
        energy_j=energy_j,
        arrived=arrived,
        served=served,
        dropped=dropped,
        converted=converted,
        discarded=converted - admitted + lost,
        violations=violations,
        objectives=objectives,
        reward=reward(objectives, violations.any(), system.penalty),
        estimated_accuracy=None if system.measured_accuracy is None else estimate,
    )
    return after, outcome


def _within_bounds(action: Action) -> Action:
    """C7 and C8 by construction: choices outside [0, 1] count as the nearest bound, what is no number as 0."""

    def unit(choice: PerDevice) -> PerDevice:
        return jnp.where(choice >= 0, jnp.minimum(choice, 1.0), 0.0)

    return Action(train=action.train, power=unit(action.power), frequency=unit(action.frequency))
