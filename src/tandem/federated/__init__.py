"""Federated learning behind the simulator: tasks, drifting request streams, FedAvg, and accuracy that is measured.

A device process of its own uses ``DeviceState`` with ``receive``, ``serve``, ``train`` and ``trained``; its server
``federated_average``. A fleet in one program is ``FederatedTruth``, which a scenario asks for by ``accuracy.task``.
"""

from tandem.federated.averaging import federated_average
from tandem.federated.device import DeviceState, Tally, receive, serve, train, trained
from tandem.federated.drift import DeviceWorld, DriftSettings, device_world
from tandem.federated.fidelity import Fidelity
from tandem.federated.learning import gradient, local_update, right_answers
from tandem.federated.samples import Samples
from tandem.federated.stream import LabelledImages, Pool, requests_at
from tandem.federated.tasks import TASKS, Recipe, Task, TaskData, task_of
from tandem.federated.truth import FederatedTruth, FleetTruth, build_truth, prepared

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
