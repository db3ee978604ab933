"""Build the system of a scenario, with the federated simulation of its task if it has one."""

from __future__ import annotations

from tandem.federated.simulation import build_federated_simulation
from tandem.feel import system as feel_system
from tandem.feel.system import System
from tandem.scenario import Scenario


def build_system(scenario: Scenario) -> System:
    """Build a system that estimates accuracy, or measures it if the scenario has a task.

    The task's data are read here, and a small task's model is pre-trained if that was not done before.
    """
    has_task = scenario.accuracy.task is not None
    return feel_system.build_system(scenario, build_federated_simulation if has_task else None)
