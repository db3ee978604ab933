"""One device of a fleet, as a state machine: an instruction in, the next state and a report out.

The device counts as the simulator does: it plays the simulator's own round, as a fleet of one. Beside the counts it
holds what they count, requests, samples and a model. Samples that were trained on stay until a later instruction
acknowledges the update; if none does, the server never used it, and they are trained on again. So a message that is
lost, late or repeated neither loses a sample nor lets one be trained on twice.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp

from tandem.federated import device as one
from tandem.federated.device import DeviceState
from tandem.federated.drift import DeviceWorld, device_world
from tandem.federated.fleet.alone import Order, Surroundings, after_absence, alone, own_round
from tandem.federated.fleet.hardware import Hardware, Setting
from tandem.federated.fleet.messages import EVENTS, STANDING, GarbledError, Instruction, Report
from tandem.federated.fleet.models import model_of
from tandem.federated.fleet.problem import Problem
from tandem.federated.learning import Model
from tandem.feel.ages import FRESH_AGE_S
from tandem.feel.env import reset
from tandem.feel.state import FleetState
from tandem.feel.types import Scalar
from tandem.runs.weights import arrays_of

NONE = -1
NAPS = 100  # an absence is lived through in so many parts at most


class Counts(eqx.Module):
    """A device between two rounds, as the simulator sees it (arrays of one), and what it holds."""

    fleet: FleetState  # of one
    device: DeviceState


@dataclasses.dataclass(frozen=True)
class Station:
    """A device, durable: all of this is on disk before a report is sent."""

    run: str
    number: int
    round: int  # the last one it took part in; -1 is none
    settled: int  # the last acknowledged round it has acted on
    unsettled: bool  # its last report carried an update that it has not heard of since
    counts: Counts
    report: Report | None  # the last one, in case the instruction comes again


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


def newcomer(place: Place, run: str, clock_s: float) -> Station:
    """A device that joins now, with the pre-trained model and the requests of an idle round."""
    task, system = place.problem.task, place.problem.system
    fleet = alone(reset(system, place.problem.fleet_key), place.number)
    fleet = dataclasses.replace(fleet, clock_s=jnp.asarray(clock_s, jnp.float32))
    shape, slots = task.pool.images.shape[1:], task.slots
    device = DeviceState.start(task.model, task.accuracy, shape, slots.queue, slots.buffer)
    device = _received(place, device, fleet.queue[0], fleet.clock_s - system.idle_round_s / 2)
    return Station(run, place.number, NONE, NONE, False, Counts(fleet, device), None)


def obey(
    place: Place,
    station: Station | None,
    order: Instruction,
    hardware: Hardware,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Station, Report]:
    """Do as told: the next state, to be kept before the report is sent.

    An instruction that was obeyed already is answered as before; one of an earlier round is refused.
    """
    if order.device != place.number:
        raise GarbledError(f"device: the instruction is for device {order.device}, and this is {place.number}.")
    if station is None or station.run != order.run:
        station = newcomer(place, order.run, order.clock_s)
    if order.round == station.round and station.report is not None:
        return station, station.report
    if order.round <= station.round:
        raise GarbledError(f"round: the instruction is of round {order.round}, and round {station.round} is done.")
    current = station.counts.device.model
    model = current if order.weights is None else model_of(order.weights, current)
    station = _settled(station, order, model)
    station = _caught_up(place, station, order.clock_s)
    return _played(place, station, order, model, hardware, clock)


def _settled(station: Station, order: Instruction, model: Model) -> Station:
    """The last update is in the server's model, and its samples go; or it never will be, and they stay."""
    if order.acknowledged <= station.settled:
        return dataclasses.replace(station, unsettled=False)
    fleet, device = station.counts.fleet, station.counts.device
    if station.unsettled and order.acknowledged == station.round:
        device = _trained(device, jnp.asarray(True), jnp.asarray(True), model)
        fleet = dataclasses.replace(
            fleet,
            data=jnp.zeros(1),
            data_age_s=jnp.full(1, FRESH_AGE_S, jnp.float32),
            model_age_s=jnp.zeros(1),
        )
    else:  # it has forgotten what it sent, with its disk: a model is news all the same
        device = eqx.tree_at(lambda d: d.model, device, model)
    # The server leaves out a model that this device once had; it sends it if the report says that it is not settled.
    settled = station.settled if order.weights is None else order.acknowledged
    return dataclasses.replace(station, settled=settled, unsettled=False, counts=Counts(fleet, device))


def _caught_up(place: Place, station: Station, clock_s: float) -> Station:
    """Requests kept coming while the device was away; as many wait as the queue holds."""
    fleet, device = station.counts.fleet, station.counts.device
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
    fleet = dataclasses.replace(fleet, clock_s=jnp.asarray(clock_s, jnp.float32))
    return dataclasses.replace(station, counts=Counts(fleet, device))


def _played(
    place: Place, station: Station, order: Instruction, model: Model, hardware: Hardware, clock: Callable[[], float]
) -> tuple[Station, Report]:
    setting = hardware.apply(Setting(order.frequency_hz, order.power_w))
    before, device, task = station.counts.fleet, station.counts.device, place.problem.task
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
    report = Report(
        run=order.run,
        device=order.device,
        round=order.round,
        weights=weights,
        trained=train,
        settled=station.settled,
        samples=samples,
        accuracy=float(device.accuracy),
        work_s=work_s,
        **values,
    )
    after = dataclasses.replace(
        station, round=order.round, unsettled=train, counts=Counts(fleet, device), report=report
    )
    return after, report


def _order(order: Instruction, setting: Setting) -> Order:
    return Order(
        train=jnp.asarray([order.train]),
        power_w=jnp.asarray([setting.power_w], jnp.float32),
        frequency_hz=jnp.asarray([setting.frequency_hz], jnp.float32),
        trainers=jnp.asarray(order.trainers, jnp.float32),
        duration_s=jnp.asarray(order.duration_s, jnp.float32),
        round=jnp.asarray(order.round, jnp.int32),
    )


_serve, _train, _trained, _receive = (eqx.filter_jit(f) for f in (one.serve, one.train, one.trained, one.receive))


def _received(place: Place, device: DeviceState, admitted: Scalar, time_s: Scalar) -> DeviceState:
    task = place.problem.task
    received: DeviceState = _receive(device, task.pool, task.drift, place.world, admitted, time_s, task.slots.arrivals)
    return received


def whole(station: Station) -> dict[str, int]:
    """What it holds and what has become of the rest, in whole requests and samples."""
    device = station.counts.device
    tally = {name: int(count) for name, count in vars(device.tally).items()}
    return {"waiting": int(device.waiting_count), "buffered": int(device.buffer_count), **tally}
