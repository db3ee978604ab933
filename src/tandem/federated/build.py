"""Construction of the system of a scenario, with the federated simulation of its task if it has one."""

from __future__ import annotations

import functools

from tandem.federated.algorithm import FederatedAlgorithm
from tandem.federated.simulation import build_federated_simulation
from tandem.feel import system as feel_system
from tandem.feel.system import System
from tandem.scenario import Scenario


def build_system(scenario: Scenario, algorithm: FederatedAlgorithm | None = None) -> System:
    """Build a system that estimates accuracy, or measures it if the scenario has a task.

    Devices then train with FedAvg, unless another federated algorithm is given. The task's data are read here, and a
    small task's model is pre-trained if there is none in the cache.
    """
    if scenario.accuracy.task is None:
        return feel_system.build_system(scenario)
    return feel_system.build_system(scenario, functools.partial(build_federated_simulation, algorithm=algorithm))
