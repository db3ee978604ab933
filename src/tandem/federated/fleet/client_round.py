"""The state of one device and its work: catch up after an absence, serve or train for a round, commit an update.

The device runs the simulator's round as a fleet of one. In addition to the simulator's counts it holds the requests,
the samples and a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp

from tandem.device.hardware import Hardware, HardwareSetting
from tandem.federated import client
from tandem.federated.algorithm import Model
from tandem.federated.client import ClientState
from tandem.federated.fleet.messages import NO_ROUND, OUTCOME_FIELDS, STATE_FIELDS, Instruction, Report
from tandem.federated.fleet.single_device import DeviceAction, advance_offline, device_round, slice_device
from tandem.federated.fleet.spec import ClientContext
from tandem.feel.env import reset
from tandem.feel.queues import FRESH_AGE_S
from tandem.feel.state import FleetState
from tandem.feel.types import Scalar
from tandem.io.tree_io import flatten_arrays

MAX_CATCH_UP_STEPS = 100  # an absence is simulated in at most this many steps

serve = eqx.filter_jit(client.serve)
train = eqx.filter_jit(client.train)
finish_training = eqx.filter_jit(client.finish_training)
enqueue = eqx.filter_jit(client.enqueue)


@dataclasses.dataclass(frozen=True)
class ClientSnapshot:
    """The complete state of one device between two rounds; it is on disk before a report is sent."""

    run: str
    device: int  # its number in the fleet
    round: int  # the last round it took part in, or NO_ROUND
    settled: int  # the last acknowledged round that it has applied, or NO_ROUND
    update_pending: bool  # whether its last report contains an update that the server has not acknowledged yet
    fleet: FleetState  # the simulator's state, of a fleet of one
    client: ClientState  # requests, samples and model
    report: Report | None  # the last one, in case the instruction arrives again


def initial_snapshot(context: ClientContext, run: str, clock_s: float) -> ClientSnapshot:
    """Return the state of a device that joins now, with the pre-trained model and the requests of an idle round."""
    task, system, device = context.spec.task, context.spec.system, context.device
    fleet = slice_device(reset(system, context.spec.fleet_key), device)
    fleet = dataclasses.replace(fleet, clock_s=jnp.asarray(clock_s, jnp.float32))
    shape, slots = task.pool.images.shape[1:], task.capacities
    state = ClientState.init(task.model, task.accuracy, shape, slots.queue, slots.buffer)
    state = _enqueue_requests(context, state, fleet.queue[0], fleet.clock_s - system.idle_round_s / 2)
    return ClientSnapshot(run, device, NO_ROUND, NO_ROUND, False, fleet, state, None)


def catch_up(context: ClientContext, snapshot: ClientSnapshot, clock_s: float) -> ClientSnapshot:
    """Add the requests that arrived while the device was offline, up to the capacity of the queue."""
    fleet, state = snapshot.fleet, snapshot.client
    system = context.spec.system
    step_max_s = float(system.round_max_s)
    for step in range(MAX_CATCH_UP_STEPS):
        absent_s = clock_s - float(fleet.clock_s)
        if absent_s <= 1e-4 * max(clock_s, 1.0):  # tolerance for single precision
            break
        full = float(fleet.queue[0]) >= float(system.queue_max)
        in_one_step = full or step == MAX_CATCH_UP_STEPS - 1
        step_s = jnp.asarray(absent_s if in_one_step else min(absent_s, step_max_s), jnp.float32)
        middle_s = fleet.clock_s + step_s / 2
        fleet, admitted = advance_offline(context, fleet, step_s, jnp.asarray(step))
        state = _enqueue_requests(context, state, admitted, middle_s)
    # Adopt the server's clock, so that rounding differences do not accumulate.
    fleet = dataclasses.replace(fleet, clock_s=jnp.asarray(clock_s, jnp.float32))
    return dataclasses.replace(snapshot, fleet=fleet, client=state)


def run_round(
    context: ClientContext,
    snapshot: ClientSnapshot,
    instruction: Instruction,
    model: Model,
    hardware: Hardware,
    clock: Callable[[], float],
) -> tuple[ClientSnapshot, Report]:
    """Serve, or train ``model``, as instructed, while requests arrive. The samples of an update are kept."""
    setting = hardware.apply(HardwareSetting(instruction.frequency_hz, instruction.power_w))
    before, state, task = snapshot.fleet, snapshot.client, context.spec.task
    fleet, outcome = device_round(context, before, _device_action(instruction, setting))
    training = bool(outcome.executed.train[0])
    samples = int(state.buffer_count) if training else 0
    began_s, weights = clock(), None
    if training:
        weights = flatten_arrays(train(state, task.algorithm, model, task.iterations, task.learning_rate))
    else:
        limits = task.samples_per_request[context.device], task.data_limit[context.device]
        state = serve(state, jnp.asarray(True), *limits)
        state.accuracy.block_until_ready()
    work_s = max(clock() - began_s, 0.0)
    admitted, middle_s = (outcome.arrived - outcome.dropped)[0], before.clock_s + outcome.duration_s / 2
    state = _enqueue_requests(context, state, admitted, middle_s)
    values = {name: float(getattr(fleet, name)[0]) for name in STATE_FIELDS}
    values |= {name: float(getattr(outcome, name)[0]) for name in OUTCOME_FIELDS}
    if hardware.measured:
        values["compute_s" if training else "inference_s"] = work_s
    report = Report(
        run=instruction.run,
        device=instruction.device,
        round=instruction.round,
        weights=weights,
        trained=training,
        settled=snapshot.settled,
        samples=samples,
        accuracy=float(state.accuracy),
        work_s=work_s,
        **values,
    )
    after = dataclasses.replace(
        snapshot, round=instruction.round, update_pending=training, fleet=fleet, client=state, report=report
    )
    return after, report


def commit_update(snapshot: ClientSnapshot, model: Model) -> ClientSnapshot:
    """Remove the samples of the last update and adopt the averaged model, which contains the update."""
    fleet = dataclasses.replace(
        snapshot.fleet,
        data=jnp.zeros(1),
        data_age_s=jnp.full(1, FRESH_AGE_S, jnp.float32),
        model_age_s=jnp.zeros(1),
    )
    state = finish_training(snapshot.client, jnp.asarray(True), jnp.asarray(True), model)
    return dataclasses.replace(snapshot, fleet=fleet, client=state)


def _enqueue_requests(context: ClientContext, state: ClientState, admitted: Scalar, time_s: Scalar) -> ClientState:
    task = context.spec.task
    after: ClientState = enqueue(
        state, task.pool, task.drift, context.drift, admitted, time_s, task.capacities.arrivals
    )
    return after


def _device_action(instruction: Instruction, setting: HardwareSetting) -> DeviceAction:
    return DeviceAction(
        train=jnp.asarray([instruction.train]),
        power_w=jnp.asarray([setting.power_w], jnp.float32),
        frequency_hz=jnp.asarray([setting.frequency_hz], jnp.float32),
        trainers=jnp.asarray(instruction.trainers, jnp.float32),
        duration_s=jnp.asarray(instruction.duration_s, jnp.float32),
        round=jnp.asarray(instruction.round, jnp.int32),
    )
