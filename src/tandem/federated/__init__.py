"""Federated learning behind the simulator: tasks, drifting request streams, FedAvg, and accuracy that is measured.

A device process of its own uses ``DeviceState`` with ``receive``, ``serve``, ``train`` and ``trained``; its server
``federated_average``. A fleet in one program is ``FederatedTruth``, which a scenario asks for by ``accuracy.task``.
"""

from tandem.federated.client import ClientState, Counters, enqueue, finish_training, serve, train
from tandem.federated.data import LabelledImages, Pool, Samples, sample_requests
from tandem.federated.drift import DeviceDrift, DriftParameters, init_device_drift
from tandem.federated.fedavg import count_correct, federated_average, gradient, local_update
from tandem.federated.fidelity import Fidelity
from tandem.federated.simulation import FederatedSimulation, FederatedState, build_federated_simulation, load_task
from tandem.federated.tasks.base import TASKS, PretrainConfig, Task, TaskData, build_task

__all__ = [
    "TASKS",
    "ClientState",
    "Counters",
    "DeviceDrift",
    "DriftParameters",
    "FederatedSimulation",
    "FederatedState",
    "Fidelity",
    "LabelledImages",
    "Pool",
    "PretrainConfig",
    "Samples",
    "Task",
    "TaskData",
    "build_federated_simulation",
    "build_task",
    "count_correct",
    "enqueue",
    "federated_average",
    "finish_training",
    "gradient",
    "init_device_drift",
    "load_task",
    "local_update",
    "sample_requests",
    "serve",
    "train",
]
