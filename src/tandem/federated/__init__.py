"""Federated learning behind the simulator: tasks, drifting request streams, FedAvg, and accuracy that is measured.

A device process of its own uses ``DeviceState`` with ``receive``, ``serve``, ``train`` and ``trained``; its server
``federated_average``. A fleet in one program is ``FederatedTruth``, which a scenario asks for by ``accuracy.task``.
"""

from tandem.federated.client import DeviceState, Tally, receive, serve, train, trained
from tandem.federated.data import LabelledImages, Pool, Samples, requests_at
from tandem.federated.drift import DeviceWorld, DriftSettings, device_world
from tandem.federated.fedavg import federated_average, gradient, local_update, right_answers
from tandem.federated.fidelity import Fidelity
from tandem.federated.simulation import FederatedTruth, FleetTruth, build_truth, prepared
from tandem.federated.tasks.base import TASKS, Recipe, Task, TaskData, task_of

__all__ = [
    "TASKS",
    "DeviceState",
    "DeviceWorld",
    "DriftSettings",
    "FederatedTruth",
    "Fidelity",
    "FleetTruth",
    "LabelledImages",
    "Pool",
    "Recipe",
    "Samples",
    "Tally",
    "Task",
    "TaskData",
    "build_truth",
    "device_world",
    "federated_average",
    "gradient",
    "local_update",
    "prepared",
    "receive",
    "requests_at",
    "right_answers",
    "serve",
    "task_of",
    "train",
    "trained",
]
