"""Federated learning behind the simulator: tasks, drifting request streams, federated algorithms, measured accuracy.

A single client is a ``ClientState`` with the functions ``enqueue``, ``serve``, ``train`` and ``finish_training``. A
fleet in one program is a ``FederatedSimulation``, which is used if a scenario has ``accuracy.task``. Clients and server
of both run the same ``FederatedAlgorithm``; ``FedAvg`` is the default.
"""

from tandem.federated.algorithm import FederatedAlgorithm
from tandem.federated.client import ClientState, Counters, enqueue, finish_training, serve, train
from tandem.federated.data import LabelledImages, Pool, Samples, sample_requests
from tandem.federated.drift import DeviceDrift, DriftParameters, init_device_drift
from tandem.federated.fedavg import FedAvg, count_correct, federated_average, gradient, gradient_descent
from tandem.federated.fidelity import Fidelity
from tandem.federated.simulation import FederatedSimulation, FederatedState, build_federated_simulation, load_task
from tandem.federated.tasks.base import TASKS, PretrainConfig, Task, TaskData, build_task

__all__ = [
    "TASKS",
    "ClientState",
    "Counters",
    "DeviceDrift",
    "DriftParameters",
    "FedAvg",
    "FederatedAlgorithm",
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
    "gradient_descent",
    "init_device_drift",
    "load_task",
    "sample_requests",
    "serve",
    "train",
]
