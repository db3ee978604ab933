"""The fleet's ground truth: every device's model and samples, played along with the simulator, in one program."""

from __future__ import annotations

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tandem.federated import client as one
from tandem.federated.client import DeviceState
from tandem.federated.data import Pool
from tandem.federated.drift import DeviceWorld, DriftSettings, device_world
from tandem.federated.fedavg import Model, federated_average
from tandem.federated.ragged import capacity_for, working_bytes
from tandem.federated.tasks.base import task_of
from tandem.federated.tasks.pretraining import Pretrained, pretrained
from tandem.feel.measured_accuracy import GroundTruth, RoundFacts
from tandem.feel.system import System
from tandem.feel.types import PerDevice, RandomKey, Scalar
from tandem.scenario import Scenario
from tandem.scenario.plugins import Task as WrittenTask

MOST_SLOTS = 2048  # of a queue or a buffer; a scenario may allow more, what is beyond is counted
RARE = 1e-9  # a round in which more requests come than the slots for them


class Slots(eqx.Module):
    """The padded capacities, which shape the program."""

    queue: int = eqx.field(static=True)  # requests that wait at a device
    arrivals: int = eqx.field(static=True)  # requests that come to a device in a round
    buffer: int = eqx.field(static=True)  # samples at a device
    trainers: int = eqx.field(static=True)  # devices that train in a round

    @classmethod
    def of(cls, system: System) -> Slots:
        """What the scenario's limits ask for."""
        most = float(np.max(system.arrivals.most(float(system.round_max_s), RARE)))
        queue = min(float(system.queue_max), MOST_SLOTS)
        together = float(np.max(np.asarray(system.envelope.most_trainers))) if system.shielded else system.size
        return cls(
            queue=capacity_for(queue),
            arrivals=int(min(np.ceil(most) + 1, capacity_for(queue))),
            buffer=capacity_for(min(float(np.max(np.asarray(system.data_limit))), MOST_SLOTS)),
            trainers=int(np.clip(together, 1, system.size)),
        )


class FleetTruth(eqx.Module):
    """What travels in ``FleetState.truth``."""

    server: Model  # the latest global model
    devices: DeviceState  # stacked
    worlds: DeviceWorld  # stacked


class FederatedTruth(GroundTruth):
    """Devices that answer requests of a task and train on them by FedAvg."""

    pool: Pool
    drift: DriftSettings
    model: Model  # pre-trained
    accuracy: Scalar  # of that
    learning_rate: Scalar
    iterations: Scalar  # U
    samples_per_request: PerDevice  # F
    data_limit: PerDevice
    slots: Slots

    @eqx.filter_jit  # who resets a fleet outside of a program should not wait for its operations one by one
    def start(self, queue: PerDevice, idle_s: Scalar, key: RandomKey) -> FleetTruth:
        size = queue.shape[0]
        shape = self.pool.images.shape[1:]
        fresh = DeviceState.start(self.model, self.accuracy, shape, self.slots.queue, self.slots.buffer)
        devices = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), fresh)
        worlds = jax.vmap(lambda n: device_world(key, n, self.pool.classes))(jnp.arange(size))
        return FleetTruth(self.model, self._received(devices, worlds, queue, -idle_s / 2), worlds)

    def play(self, state: FleetTruth, facts: RoundFacts) -> tuple[FleetTruth, PerDevice]:
        devices = jax.vmap(one.serve)(state.devices, ~facts.train, self.samples_per_request, self.data_limit)
        accuracy = devices.accuracy
        server = self._averaged(state.server, devices, facts)
        devices = jax.vmap(one.trained, in_axes=(0, 0, 0, None))(devices, facts.train, facts.trained, server)
        middle_s = facts.clock_s + facts.duration_s / 2
        devices = self._received(devices, state.worlds, facts.arrived - facts.dropped, middle_s)
        return FleetTruth(server, devices, state.worlds), accuracy

    def working_bytes(self) -> int:
        return working_bytes()

    def _averaged(self, server: Model, devices: DeviceState, facts: RoundFacts) -> Model:
        """The server's model after the round. Only trainers are worked on: they are brought into the first slots."""
        who = jnp.argsort(~facts.trained)[: self.slots.trainers]
        trainers = jax.tree.map(lambda leaf: leaf[who], devices)
        # Who did not train has no samples, and costs nothing.
        samples = jnp.where(facts.trained[who], trainers.buffer_count, 0)
        trainers = eqx.tree_at(lambda device: device.buffer_count, trainers, samples)
        train = jax.vmap(one.train, in_axes=(0, None, None, None))
        updated = train(trainers, server, self.iterations, self.learning_rate)
        return federated_average(server, updated, samples.astype(float))

    def _received(self, devices: DeviceState, worlds: DeviceWorld, admitted: PerDevice, time_s: Scalar) -> DeviceState:
        def receive(device: DeviceState, world: DeviceWorld, number: Scalar) -> DeviceState:
            return one.receive(device, self.pool, self.drift, world, number, time_s, self.slots.arrivals)

        received: DeviceState = jax.vmap(receive)(devices, worlds, admitted)
        return received


def build_truth(scenario: Scenario, system: System) -> FederatedTruth:
    """The ground truth of a scenario's task; its data are read and its model made once a process."""
    written = scenario.accuracy.task
    assert written is not None
    pool, start = prepared(written)
    return FederatedTruth(
        pool=pool,
        drift=DriftSettings.of(written.drift),
        model=start.model,
        accuracy=jnp.asarray(start.accuracy, float),
        learning_rate=jnp.asarray(written.learning_rate, float),
        iterations=system.iterations,
        samples_per_request=system.devices.samples_per_request,
        data_limit=system.data_limit,
        slots=Slots.of(system),
    )


def prepared(written: WrittenTask) -> tuple[Pool, Pretrained]:
    """A task's requests and its pre-trained model."""
    # What neither depends on must not make them be read again.
    same = written.model_copy(update={"drift": type(written.drift)(), "learning_rate": 1.0})
    return _prepared(type(same), same.model_dump_json())


@functools.lru_cache(maxsize=4)
def _prepared(kind: type[WrittenTask], fields: str) -> tuple[Pool, Pretrained]:
    task = task_of(kind.model_validate(json.loads(fields)))
    data = task.data()
    return Pool.of(data.requests, task.classes), pretrained(task, data)
