"""The specification of a fleet, which every process derives from the scenario and the seed without any messages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Int

from tandem.errors import InputError
from tandem.federated.algorithm import FederatedAlgorithm
from tandem.federated.build import build_system
from tandem.federated.drift import DeviceDrift, init_device_drift
from tandem.federated.fedavg import FedAvg
from tandem.federated.fleet.run_dir import SCENARIO
from tandem.federated.simulation import FederatedSimulation
from tandem.feel.system import System
from tandem.feel.types import Array, RandomKey
from tandem.rng import FleetStream, fold_stream
from tandem.runs.simulation import episode_keys
from tandem.scenario import Scenario, load_scenario

EXCLUDED_FROM_FINGERPRINT = ("name", "description", "rounds")  # fields of a scenario that no device depends on


class FleetSpec(eqx.Module):
    """A fleet with a task. The same scenario and seed give the same specification in every process."""

    system: System  # without the task: the model that the server plans with
    task: FederatedSimulation
    fleet_key: RandomKey  # of the simulator's episode with this seed
    policy_key: RandomKey
    fingerprint: str = eqx.field(static=True)  # of the scenario, the seed and the federated algorithm

    @property
    def episode_key(self) -> RandomKey:
        """The key of the channel and the arrivals, as in ``feel.env``."""
        return jax.random.split(self.fleet_key)[1]

    @property
    def drift_key(self) -> RandomKey:
        """The key of the devices' requests."""
        return fold_stream(self.fleet_key, FleetStream.MEASURED_ACCURACY)


class ClientContext(eqx.Module):
    """The static part of one device: the fleet, the device's number in it, and the drift of its requests."""

    spec: FleetSpec
    number: Int[Array, ""]  # an array, so that all devices share one compiled program
    drift: DeviceDrift

    @classmethod
    def init(cls, spec: FleetSpec, number: int) -> ClientContext:
        """Return the context of a device of the fleet."""
        drift = init_device_drift(spec.drift_key, jnp.asarray(number), spec.task.pool.classes)
        return cls(spec, jnp.asarray(number, jnp.int32), drift)

    @property
    def device(self) -> int:
        """The device's number in the fleet, from 0."""
        return int(self.number)


def build_spec(scenario: Scenario, seed: int, algorithm: FederatedAlgorithm | None = None) -> FleetSpec:
    """Build the fleet of a scenario that has a task; it trains with FedAvg unless another algorithm is given."""
    if scenario.accuracy.task is None:
        raise InputError(
            "accuracy.task: a fleet trains real models; set it in the scenario, such as accuracy: {task: digits}."
        )
    system = build_system(scenario, algorithm)
    task = system.measured_accuracy
    assert isinstance(task, FederatedSimulation)
    fleet_key, policy_key = jax.random.split(episode_keys([seed])[0])
    without_task = dataclasses.replace(system, measured_accuracy=None)
    return FleetSpec(without_task, task, fleet_key, policy_key, fingerprint(scenario, seed, task.algorithm))


def load_spec(folder: Path, seed: int) -> FleetSpec:
    """Build the specification of the scenario in a run's folder."""
    return build_spec(load_scenario(folder / SCENARIO), seed)


def fingerprint(scenario: Scenario, seed: int, algorithm: FederatedAlgorithm | None = None) -> str:
    """Hash the data that devices depend on: scenario without name and paths, seed, and federated algorithm."""
    fields = {
        name: part for name, part in scenario.model_dump(mode="json").items() if name not in EXCLUDED_FROM_FINGERPRINT
    }
    text = json.dumps([_without_paths(fields), seed, (algorithm or FedAvg()).describe()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_paths(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _without_paths(inner) for name, inner in part.items() if not name.endswith("path")}
    return [_without_paths(inner) for inner in part] if isinstance(part, list) else part
