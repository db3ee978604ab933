"""A device in its world: what it holds, the time that passes while nobody asks for it, and the work of a round.

The device counts as the simulator does: it plays the simulator's own round, as a fleet of one. Beside the counts it
holds what they count, requests, samples and a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp

from tandem.federated import client as one
from tandem.federated.algorithm import Model
from tandem.federated.client import ClientState
from tandem.federated.drift import DeviceDrift, init_device_drift
from tandem.federated.fleet.hardware import Hardware, HardwareSetting
from tandem.federated.fleet.messages import OUTCOME_FIELDS, STATE_FIELDS, Instruction, Weights
from tandem.federated.fleet.single_device import DeviceAction, DeviceEnv, advance_offline, device_round, slice_device
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel.ages import FRESH_AGE_S
from tandem.feel.env import reset
from tandem.feel.state import FleetState
from tandem.feel.types import Scalar
from tandem.io.tree_io import flatten_arrays

MAX_CATCH_UP_STEPS = 100  # an absence is lived through in so many parts at most

_serve, _train, _trained, _receive = (
    eqx.filter_jit(f) for f in (one.serve, one.train, one.finish_training, one.enqueue)
)


class ClientSnapshot(eqx.Module):
    """A device between two rounds, as the simulator sees it (arrays of one), and what it holds."""

    fleet: FleetState  # of one
    client: ClientState


@dataclasses.dataclass(frozen=True)
class ClientContext:
    """What a device process is built with: the problem and its own number in the fleet."""

    spec: FleetSpec
    number: int
    device_env: DeviceEnv
    drift: DeviceDrift

    @classmethod
    def init(cls, problem: FleetSpec, number: int) -> ClientContext:
        """The place of this device."""
        world = init_device_drift(problem.drift_key, jnp.asarray(number), problem.task.pool.classes)
        return cls(problem, number, DeviceEnv.init(problem, number), world)


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """What a device has done in a round, as far as a report tells of it."""

    trained: bool
    weights: Weights | None  # its update, if it has trained
    samples: int  # behind the update
    accuracy: float  # of its answers when it last served
    work_s: float  # by the wall clock
    values: dict[str, float]  # what the simulator has under the same names


def initial_snapshot(place: ClientContext, clock_s: float) -> ClientSnapshot:
    """A device that joins now, with the pre-trained model and the requests of an idle round."""
    task, system = place.spec.task, place.spec.system
    fleet = slice_device(reset(system, place.spec.fleet_key), place.number)
    fleet = dataclasses.replace(fleet, clock_s=jnp.asarray(clock_s, jnp.float32))
    shape, slots = task.pool.images.shape[1:], task.capacities
    device = ClientState.init(task.model, task.accuracy, shape, slots.queue, slots.buffer)
    return ClientSnapshot(fleet, _received(place, device, fleet.queue[0], fleet.clock_s - system.idle_round_s / 2))


def catch_up(place: ClientContext, counts: ClientSnapshot, clock_s: float) -> ClientSnapshot:
    """Requests kept coming while the device was away; as many wait as the queue holds."""
    fleet, device = counts.fleet, counts.client
    longest_s = float(place.spec.system.round_max_s)
    for nap in range(MAX_CATCH_UP_STEPS):
        away_s = clock_s - float(fleet.clock_s)
        if away_s <= 1e-4 * max(clock_s, 1.0):  # single precision rounds
            break
        full = float(fleet.queue[0]) >= float(place.spec.system.queue_max)
        part_s = jnp.asarray(away_s if full or nap == MAX_CATCH_UP_STEPS - 1 else min(away_s, longest_s), jnp.float32)
        middle_s = fleet.clock_s + part_s / 2
        fleet, admitted = advance_offline(place.device_env, fleet, part_s, jnp.asarray(nap))
        device = _received(place, device, admitted, middle_s)
    # The server's clock is the clock: differences of rounding must not add up.
    return ClientSnapshot(dataclasses.replace(fleet, clock_s=jnp.asarray(clock_s, jnp.float32)), device)


def run_round(
    place: ClientContext,
    counts: ClientSnapshot,
    order: Instruction,
    model: Model,
    hardware: Hardware,
    clock: Callable[[], float],
) -> tuple[ClientSnapshot, RoundResult]:
    """A round as ordered: serve, or train ``model``; meanwhile requests arrive. What was trained on stays."""
    setting = hardware.apply(HardwareSetting(order.frequency_hz, order.power_w))
    before, device, task = counts.fleet, counts.client, place.spec.task
    fleet, outcome = device_round(place.device_env, before, _order(order, setting))
    train = bool(outcome.executed.train[0])
    samples = int(device.buffer_count) if train else 0
    began_s, weights = clock(), None
    if train:
        weights = flatten_arrays(_train(device, task.algorithm, model, task.iterations, task.learning_rate))
    else:
        limits = task.samples_per_request[place.number], task.data_limit[place.number]
        device = _serve(device, jnp.asarray(True), *limits)
        device.accuracy.block_until_ready()
    work_s = max(clock() - began_s, 0.0)
    device = _received(place, device, (outcome.arrived - outcome.dropped)[0], before.clock_s + outcome.duration_s / 2)
    values = {name: float(getattr(fleet, name)[0]) for name in STATE_FIELDS}
    values |= {name: float(getattr(outcome, name)[0]) for name in OUTCOME_FIELDS}
    if hardware.measured:
        values["compute_s" if train else "inference_s"] = work_s
    return ClientSnapshot(fleet, device), RoundResult(train, weights, samples, float(device.accuracy), work_s, values)


def commit_update(counts: ClientSnapshot, model: Model) -> ClientSnapshot:
    """The samples it trained on go, and the averaged model is its own: its update counts."""
    fleet = dataclasses.replace(
        counts.fleet,
        data=jnp.zeros(1),
        data_age_s=jnp.full(1, FRESH_AGE_S, jnp.float32),
        model_age_s=jnp.zeros(1),
    )
    return ClientSnapshot(fleet, _trained(counts.client, jnp.asarray(True), jnp.asarray(True), model))


def _received(place: ClientContext, device: ClientState, admitted: Scalar, time_s: Scalar) -> ClientState:
    task = place.spec.task
    received: ClientState = _receive(
        device, task.pool, task.drift, place.drift, admitted, time_s, task.capacities.arrivals
    )
    return received


def _order(order: Instruction, setting: HardwareSetting) -> DeviceAction:
    return DeviceAction(
        train=jnp.asarray([order.train]),
        power_w=jnp.asarray([setting.power_w], jnp.float32),
        frequency_hz=jnp.asarray([setting.frequency_hz], jnp.float32),
        trainers=jnp.asarray(order.trainers, jnp.float32),
        duration_s=jnp.asarray(order.duration_s, jnp.float32),
        round=jnp.asarray(order.round, jnp.int32),
    )
