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
from tandem.federated.client import DeviceState
from tandem.federated.drift import DeviceWorld, device_world
from tandem.federated.fedavg import Model
from tandem.federated.fleet.hardware import Hardware, Setting
from tandem.federated.fleet.messages import EVENTS, STANDING, Instruction, Weights
from tandem.federated.fleet.single_device import Order, Surroundings, after_absence, alone, own_round
from tandem.federated.fleet.spec import Problem
from tandem.feel.ages import FRESH_AGE_S
from tandem.feel.env import reset
from tandem.feel.state import FleetState
from tandem.feel.types import Scalar
from tandem.io.tree_io import arrays_of

NAPS = 100  # an absence is lived through in so many parts at most

_serve, _train, _trained, _receive = (eqx.filter_jit(f) for f in (one.serve, one.train, one.trained, one.receive))


class Counts(eqx.Module):
    """A device between two rounds, as the simulator sees it (arrays of one), and what it holds."""

    fleet: FleetState  # of one
    device: DeviceState


@dataclasses.dataclass(frozen=True)
class Place:
    """What a device process is built with: the problem and its own number in the fleet."""

    problem: Problem
    number: int
    surroundings: Surroundings
    world: DeviceWorld

    @classmethod
    def of(cls, problem: Problem, number: int) -> Place:
        """The place of this device."""
        world = device_world(problem.world_key, jnp.asarray(number), problem.task.pool.classes)
        return cls(problem, number, Surroundings.of(problem, number), world)


@dataclasses.dataclass(frozen=True)
class Work:
    """What a device has done in a round, as far as a report tells of it."""

    trained: bool
    weights: Weights | None  # its update, if it has trained
    samples: int  # behind the update
    accuracy: float  # of its answers when it last served
    work_s: float  # by the wall clock
    values: dict[str, float]  # what the simulator has under the same names


def beginning(place: Place, clock_s: float) -> Counts:
    """A device that joins now, with the pre-trained model and the requests of an idle round."""
    task, system = place.problem.task, place.problem.system
    fleet = alone(reset(system, place.problem.fleet_key), place.number)
    fleet = dataclasses.replace(fleet, clock_s=jnp.asarray(clock_s, jnp.float32))
    shape, slots = task.pool.images.shape[1:], task.slots
    device = DeviceState.start(task.model, task.accuracy, shape, slots.queue, slots.buffer)
    return Counts(fleet, _received(place, device, fleet.queue[0], fleet.clock_s - system.idle_round_s / 2))


def caught_up(place: Place, counts: Counts, clock_s: float) -> Counts:
    """Requests kept coming while the device was away; as many wait as the queue holds."""
    fleet, device = counts.fleet, counts.device
    longest_s = float(place.problem.system.round_max_s)
    for nap in range(NAPS):
        away_s = clock_s - float(fleet.clock_s)
        if away_s <= 1e-4 * max(clock_s, 1.0):  # single precision rounds
            break
        full = float(fleet.queue[0]) >= float(place.problem.system.queue_max)
        part_s = jnp.asarray(away_s if full or nap == NAPS - 1 else min(away_s, longest_s), jnp.float32)
        middle_s = fleet.clock_s + part_s / 2
        fleet, admitted = after_absence(place.surroundings, fleet, part_s, jnp.asarray(nap))
        device = _received(place, device, admitted, middle_s)
    # The server's clock is the clock: differences of rounding must not add up.
    return Counts(dataclasses.replace(fleet, clock_s=jnp.asarray(clock_s, jnp.float32)), device)


def worked(
    place: Place, counts: Counts, order: Instruction, model: Model, hardware: Hardware, clock: Callable[[], float]
) -> tuple[Counts, Work]:
    """A round as ordered: serve, or train ``model``; meanwhile requests arrive. What was trained on stays."""
    setting = hardware.apply(Setting(order.frequency_hz, order.power_w))
    before, device, task = counts.fleet, counts.device, place.problem.task
    fleet, outcome = own_round(place.surroundings, before, _order(order, setting))
    train = bool(outcome.executed.train[0])
    samples = int(device.buffer_count) if train else 0
    began_s, weights = clock(), None
    if train:
        weights = arrays_of(_train(device, model, task.iterations, task.learning_rate))
    else:
        limits = task.samples_per_request[place.number], task.data_limit[place.number]
        device = _serve(device, jnp.asarray(True), *limits)
        device.accuracy.block_until_ready()
    work_s = max(clock() - began_s, 0.0)
    device = _received(place, device, (outcome.arrived - outcome.dropped)[0], before.clock_s + outcome.duration_s / 2)
    values = {name: float(getattr(fleet, name)[0]) for name in STANDING}
    values |= {name: float(getattr(outcome, name)[0]) for name in EVENTS}
    if hardware.measured:
        values["compute_s" if train else "inference_s"] = work_s
    return Counts(fleet, device), Work(train, weights, samples, float(device.accuracy), work_s, values)


def released(counts: Counts, model: Model) -> Counts:
    """The samples it trained on go, and the averaged model is its own: its update counts."""
    fleet = dataclasses.replace(
        counts.fleet,
        data=jnp.zeros(1),
        data_age_s=jnp.full(1, FRESH_AGE_S, jnp.float32),
        model_age_s=jnp.zeros(1),
    )
    return Counts(fleet, _trained(counts.device, jnp.asarray(True), jnp.asarray(True), model))


def _received(place: Place, device: DeviceState, admitted: Scalar, time_s: Scalar) -> DeviceState:
    task = place.problem.task
    received: DeviceState = _receive(device, task.pool, task.drift, place.world, admitted, time_s, task.slots.arrivals)
    return received


def _order(order: Instruction, setting: Setting) -> Order:
    return Order(
        train=jnp.asarray([order.train]),
        power_w=jnp.asarray([setting.power_w], jnp.float32),
        frequency_hz=jnp.asarray([setting.frequency_hz], jnp.float32),
        trainers=jnp.asarray(order.trainers, jnp.float32),
        duration_s=jnp.asarray(order.duration_s, jnp.float32),
        round=jnp.asarray(order.round, jnp.int32),
    )
