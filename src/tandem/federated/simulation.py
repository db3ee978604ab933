"""Federated learning behind the simulated fleet: every device's model, requests and samples, in one program."""

from __future__ import annotations

import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tandem.federated import client
from tandem.federated.algorithm import AlgorithmState, FederatedAlgorithm, Model, aggregate_models
from tandem.federated.client import ClientState
from tandem.federated.data import Pool
from tandem.federated.drift import DeviceDrift, DriftParameters, init_device_drift
from tandem.federated.fedavg import FedAvg
from tandem.federated.ragged import capacity_for, working_bytes
from tandem.federated.tasks.base import build_task
from tandem.federated.tasks.pretraining import Pretrained, load_pretrained
from tandem.feel.measured_accuracy import MeasuredAccuracy, RoundInfo
from tandem.feel.system import System
from tandem.feel.types import PerDevice, RandomKey, Scalar
from tandem.scenario import Scenario
from tandem.scenario.plugins import TaskConfig

MAX_CAPACITY = 2048  # slots of a queue or a buffer; a scenario may allow more, and the excess is only counted
OVERFLOW_PROBABILITY = 1e-9  # of a round in which more requests arrive than there are slots for arrivals


class Capacities(eqx.Module):
    """Padded sizes, which determine the shapes of the program."""

    queue: int = eqx.field(static=True)  # requests waiting at a device
    arrivals: int = eqx.field(static=True)  # requests that arrive at a device in a round
    buffer: int = eqx.field(static=True)  # samples at a device
    trainers: int = eqx.field(static=True)  # devices that train in a round

    @classmethod
    def from_system(cls, system: System) -> Capacities:
        """Derive the sizes from the scenario's limits."""
        arrivals = float(np.max(system.arrivals.upper_quantile(float(system.round_max_s), OVERFLOW_PROBABILITY)))
        queue = min(float(system.queue_max), MAX_CAPACITY)
        trainers = float(np.max(np.asarray(system.worst_case.max_trainers))) if system.shielded else system.size
        return cls(
            queue=capacity_for(queue),
            arrivals=int(min(np.ceil(arrivals) + 1, capacity_for(queue))),
            buffer=capacity_for(min(float(np.max(np.asarray(system.data_limit))), MAX_CAPACITY)),
            trainers=int(np.clip(trainers, 1, system.size)),
        )


class FederatedState(eqx.Module):
    """The state of the federated simulation, which the simulator carries in ``FleetState.measured``."""

    server_model: Model  # the latest global model
    server_state: AlgorithmState  # state of the algorithm between rounds; None for FedAvg
    clients: ClientState  # stacked
    drifts: DeviceDrift  # stacked


class FederatedSimulation(MeasuredAccuracy):
    """A fleet whose devices answer requests of a task, and train on them with a federated algorithm."""

    pool: Pool
    drift: DriftParameters
    model: Model  # pre-trained
    accuracy: Scalar  # of the pre-trained model
    learning_rate: Scalar
    iterations: Scalar  # U
    samples_per_request: PerDevice  # F
    data_limit: PerDevice
    capacities: Capacities
    algorithm: FederatedAlgorithm

    @eqx.filter_jit  # a reset outside of a compiled program would otherwise dispatch hundreds of operations one by one
    def init(self, queue: PerDevice, idle_s: Scalar, key: RandomKey) -> FederatedState:
        size = queue.shape[0]
        shape = self.pool.images.shape[1:]
        fresh = ClientState.init(self.model, self.accuracy, shape, self.capacities.queue, self.capacities.buffer)
        clients = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), fresh)
        drifts = jax.vmap(lambda n: init_device_drift(key, n, self.pool.classes))(jnp.arange(size))
        clients = self._enqueue(clients, drifts, queue, -idle_s / 2)
        return FederatedState(self.model, self.algorithm.init(self.model), clients, drifts)

    def step(self, state: FederatedState, info: RoundInfo) -> tuple[FederatedState, PerDevice]:
        clients = jax.vmap(client.serve)(state.clients, ~info.train, self.samples_per_request, self.data_limit)
        accuracy = clients.accuracy
        server_state, server_model = self._train(state, clients, info)
        finish = jax.vmap(client.finish_training, in_axes=(0, 0, 0, None))
        clients = finish(clients, info.train, info.trained, server_model)
        middle_s = info.clock_s + info.duration_s / 2
        clients = self._enqueue(clients, state.drifts, info.arrived - info.dropped, middle_s)
        return FederatedState(server_model, server_state, clients, state.drifts), accuracy

    def working_bytes(self) -> int:
        return working_bytes()

    def _train(self, state: FederatedState, clients: ClientState, info: RoundInfo) -> tuple[AlgorithmState, Model]:
        """Return the server's state and model after the round.

        Only trainers are computed: they are gathered into the first slots.
        """
        indices = jnp.argsort(~info.trained)[: self.capacities.trainers]
        trainers = jax.tree.map(lambda leaf: leaf[indices], clients)
        # A device in one of these slots that did not train has a count of 0, so it costs no computation.
        samples = jnp.where(info.trained[indices], trainers.buffer_count, 0)
        trainers = eqx.tree_at(lambda trainer: trainer.buffer_count, trainers, samples)
        train = jax.vmap(client.train, in_axes=(0, None, None, None, None))
        updated = train(trainers, self.algorithm, state.server_model, self.iterations, self.learning_rate)
        return aggregate_models(self.algorithm, state.server_state, state.server_model, updated, samples.astype(float))

    def _enqueue(self, clients: ClientState, drifts: DeviceDrift, admitted: PerDevice, time_s: Scalar) -> ClientState:
        def enqueue(one: ClientState, drift: DeviceDrift, number: Scalar) -> ClientState:
            return client.enqueue(one, self.pool, self.drift, drift, number, time_s, self.capacities.arrivals)

        after: ClientState = jax.vmap(enqueue)(clients, drifts, admitted)
        return after


def build_federated_simulation(
    scenario: Scenario, system: System, algorithm: FederatedAlgorithm | None = None
) -> FederatedSimulation:
    """Build the simulation of a scenario's task, with FedAvg unless another algorithm is given.

    A process reads a task's data and its pre-trained model only once.
    """
    config = scenario.accuracy.task
    assert config is not None
    pool, pretrained = load_task(config)
    return FederatedSimulation(
        pool=pool,
        drift=DriftParameters.from_config(config.drift),
        model=pretrained.model,
        accuracy=jnp.asarray(pretrained.accuracy, float),
        learning_rate=jnp.asarray(config.learning_rate, float),
        iterations=system.iterations,
        samples_per_request=system.devices.samples_per_request,
        data_limit=system.data_limit,
        capacities=Capacities.from_system(system),
        algorithm=FedAvg() if algorithm is None else algorithm,
    )


def load_task(config: TaskConfig) -> tuple[Pool, Pretrained]:
    """Load the pool of a task's requests and its pre-trained model."""
    # Neither depends on the drift or the learning rate, so a change of these must not read them again.
    same = config.model_copy(update={"drift": type(config.drift)(), "learning_rate": 1.0})
    return _load_task(type(same), same.model_dump_json())


@functools.lru_cache(maxsize=4)
def _load_task(kind: type[TaskConfig], fields: str) -> tuple[Pool, Pretrained]:
    task = build_task(kind.model_validate(json.loads(fields)))
    data = task.data()
    return Pool.from_images(data.requests, task.classes), load_pretrained(task, data)
