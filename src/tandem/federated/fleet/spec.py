"""What every process of a fleet knows without being told: the scenario, the seed, and what follows from them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import jax

from tandem.errors import InputError
from tandem.federated.algorithm import FederatedAlgorithm
from tandem.federated.build import build_system
from tandem.federated.fedavg import FedAvg
from tandem.federated.simulation import FederatedSimulation
from tandem.feel.system import System
from tandem.feel.types import RandomKey
from tandem.rng import FleetStream, fold_stream
from tandem.runs.simulation import episode_keys
from tandem.scenario import Scenario

EXCLUDED_FROM_FINGERPRINT = ("name", "description", "rounds")  # of a scenario: not a part of what its devices live in


@dataclass(frozen=True)
class FleetSpec:
    """A fleet with a task. The same scenario and seed give the same world in every process."""

    system: System  # without the task: what the server plans with
    task: FederatedSimulation
    fleet_key: RandomKey  # of the simulator's episode with this seed
    policy_key: RandomKey
    fingerprint: str  # of scenario, seed and federated algorithm

    @property
    def episode_key(self) -> RandomKey:
        """What the channel and the arrivals of a round come from, as in ``feel.env``."""
        return jax.random.split(self.fleet_key)[1]

    @property
    def drift_key(self) -> RandomKey:
        """What the devices' requests come from."""
        return fold_stream(self.fleet_key, FleetStream.MEASURED_ACCURACY)


def build_spec(scenario: Scenario, seed: int, algorithm: FederatedAlgorithm | None = None) -> FleetSpec:
    """Build the fleet of a scenario that has a task; it trains with FedAvg unless another algorithm is given."""
    if scenario.accuracy.task is None:
        raise InputError("accuracy.task: a fleet needs models to run; name a task, such as --task digits.")
    system = build_system(scenario, algorithm)
    task = system.measured_accuracy
    assert isinstance(task, FederatedSimulation)
    fleet_key, policy_key = jax.random.split(episode_keys([seed])[0])
    without = dataclasses.replace(system, measured_accuracy=None)
    return FleetSpec(without, task, fleet_key, policy_key, fingerprint(scenario, seed, task.algorithm))


def fingerprint(scenario: Scenario, seed: int, algorithm: FederatedAlgorithm | None = None) -> str:
    """The same for the same world: whatever a run is called, and wherever a machine keeps its files."""
    told = {
        name: part for name, part in scenario.model_dump(mode="json").items() if name not in EXCLUDED_FROM_FINGERPRINT
    }
    text = json.dumps([_without_paths(told), seed, (algorithm or FedAvg()).describe()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_paths(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _without_paths(inner) for name, inner in part.items() if not name.endswith("path")}
    return [_without_paths(inner) for inner in part] if isinstance(part, list) else part
