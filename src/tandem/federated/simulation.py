"""The fleet's ground truth: every device's model and samples, played along with the simulator, in one program."""

from __future__ import annotations

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tandem.federated import client as one
from tandem.federated.client import ClientState
from tandem.federated.data import Pool
from tandem.federated.drift import DeviceDrift, DriftParameters, init_device_drift
from tandem.federated.fedavg import Model, federated_average
from tandem.federated.ragged import capacity_for, working_bytes
from tandem.federated.tasks.base import build_task
from tandem.federated.tasks.pretraining import Pretrained, load_pretrained
from tandem.feel.measured_accuracy import MeasuredAccuracy, RoundInfo
from tandem.feel.system import System
from tandem.feel.types import PerDevice, RandomKey, Scalar
from tandem.scenario import Scenario
from tandem.scenario.plugins import TaskConfig as WrittenTask

MAX_CAPACITY = 2048  # of a queue or a buffer; a scenario may allow more, what is beyond is counted
OVERFLOW_PROBABILITY = 1e-9  # a round in which more requests come than the slots for them


class Capacities(eqx.Module):
    """The padded capacities, which shape the program."""

    queue: int = eqx.field(static=True)  # requests that wait at a device
    arrivals: int = eqx.field(static=True)  # requests that come to a device in a round
    buffer: int = eqx.field(static=True)  # samples at a device
    trainers: int = eqx.field(static=True)  # devices that train in a round

    @classmethod
    def from_system(cls, system: System) -> Capacities:
        """What the scenario's limits ask for."""
        most = float(np.max(system.arrivals.upper_quantile(float(system.round_max_s), OVERFLOW_PROBABILITY)))
        queue = min(float(system.queue_max), MAX_CAPACITY)
        together = float(np.max(np.asarray(system.worst_case.max_trainers))) if system.shielded else system.size
        return cls(
            queue=capacity_for(queue),
            arrivals=int(min(np.ceil(most) + 1, capacity_for(queue))),
            buffer=capacity_for(min(float(np.max(np.asarray(system.data_limit))), MAX_CAPACITY)),
            trainers=int(np.clip(together, 1, system.size)),
        )


class FederatedState(eqx.Module):
    """What travels in ``FleetState.truth``."""

    server: Model  # the latest global model
    devices: ClientState  # stacked
    drifts: DeviceDrift  # stacked


class FederatedSimulation(MeasuredAccuracy):
    """Devices that answer requests of a task and train on them by FedAvg."""

    pool: Pool
    drift: DriftParameters
    model: Model  # pre-trained
    accuracy: Scalar  # of that
    learning_rate: Scalar
    iterations: Scalar  # U
    samples_per_request: PerDevice  # F
    data_limit: PerDevice
    capacities: Capacities

    @eqx.filter_jit  # who resets a fleet outside of a program should not wait for its operations one by one
    def init(self, queue: PerDevice, idle_s: Scalar, key: RandomKey) -> FederatedState:
        size = queue.shape[0]
        shape = self.pool.images.shape[1:]
        fresh = ClientState.init(self.model, self.accuracy, shape, self.capacities.queue, self.capacities.buffer)
        devices = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), fresh)
        worlds = jax.vmap(lambda n: init_device_drift(key, n, self.pool.classes))(jnp.arange(size))
        return FederatedState(self.model, self._received(devices, worlds, queue, -idle_s / 2), worlds)

    def step(self, state: FederatedState, facts: RoundInfo) -> tuple[FederatedState, PerDevice]:
        devices = jax.vmap(one.serve)(state.devices, ~facts.train, self.samples_per_request, self.data_limit)
        accuracy = devices.accuracy
        server = self._averaged(state.server, devices, facts)
        devices = jax.vmap(one.finish_training, in_axes=(0, 0, 0, None))(devices, facts.train, facts.trained, server)
        middle_s = facts.clock_s + facts.duration_s / 2
        devices = self._received(devices, state.drifts, facts.arrived - facts.dropped, middle_s)
        return FederatedState(server, devices, state.drifts), accuracy

    def working_bytes(self) -> int:
        return working_bytes()

    def _averaged(self, server: Model, devices: ClientState, facts: RoundInfo) -> Model:
        """The server's model after the round. Only trainers are worked on: they are brought into the first slots."""
        who = jnp.argsort(~facts.trained)[: self.capacities.trainers]
        trainers = jax.tree.map(lambda leaf: leaf[who], devices)
        # Who did not train has no samples, and costs nothing.
        samples = jnp.where(facts.trained[who], trainers.buffer_count, 0)
        trainers = eqx.tree_at(lambda device: device.buffer_count, trainers, samples)
        train = jax.vmap(one.train, in_axes=(0, None, None, None))
        updated = train(trainers, server, self.iterations, self.learning_rate)
        return federated_average(server, updated, samples.astype(float))

    def _received(self, devices: ClientState, worlds: DeviceDrift, admitted: PerDevice, time_s: Scalar) -> ClientState:
        def receive(device: ClientState, world: DeviceDrift, number: Scalar) -> ClientState:
            return one.enqueue(device, self.pool, self.drift, world, number, time_s, self.capacities.arrivals)

        received: ClientState = jax.vmap(receive)(devices, worlds, admitted)
        return received


def build_federated_simulation(scenario: Scenario, system: System) -> FederatedSimulation:
    """The ground truth of a scenario's task; its data are read and its model made once a process."""
    written = scenario.accuracy.task
    assert written is not None
    pool, start = load_task(written)
    return FederatedSimulation(
        pool=pool,
        drift=DriftParameters.from_config(written.drift),
        model=start.model,
        accuracy=jnp.asarray(start.accuracy, float),
        learning_rate=jnp.asarray(written.learning_rate, float),
        iterations=system.iterations,
        samples_per_request=system.devices.samples_per_request,
        data_limit=system.data_limit,
        capacities=Capacities.from_system(system),
    )


def load_task(written: WrittenTask) -> tuple[Pool, Pretrained]:
    """A task's requests and its pre-trained model."""
    # What neither depends on must not make them be read again.
    same = written.model_copy(update={"drift": type(written.drift)(), "learning_rate": 1.0})
    return _prepared(type(same), same.model_dump_json())


@functools.lru_cache(maxsize=4)
def _prepared(kind: type[WrittenTask], fields: str) -> tuple[Pool, Pretrained]:
    task = build_task(kind.model_validate(json.loads(fields)))
    data = task.data()
    return Pool.from_images(data.requests, task.classes), load_pretrained(task, data)
