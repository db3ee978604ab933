"""A finished run: its scenario, its front, and its policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.feel.system import System, SystemBuilder, build_system
from tandem.io.array_file import read_arrays, write_arrays
from tandem.io.tree_io import flatten_arrays, restore_arrays
from tandem.learn.algorithm import Algorithm
from tandem.learn.config import AlgorithmConfig
from tandem.learn.registry import config_from_document, get_algorithm
from tandem.objectives import OBJECTIVE_KEYS
from tandem.pareto import best_for_preference
from tandem.policy.networks import ActorCritic
from tandem.policy.neural_policy import NeuralPolicy, ObservationNormaliser
from tandem.runs.front import Front, PolicyRecord
from tandem.runs.run_dir import FRONT, POLICIES, RECORD, SCENARIO, RunRecord, read_json, read_record, read_scenario
from tandem.scenario import Scenario
from tandem.tree import tree_index


class SavedPolicies(eqx.Module):
    """The content of policies.safetensors: the networks of the front's policies, stacked."""

    network: ActorCritic
    normaliser: ObservationNormaliser


@dataclass(frozen=True)
class Run:
    """A finished training run, read from its folder."""

    folder: Path
    record: RunRecord  # the content of run.json
    scenario: Scenario
    config: AlgorithmConfig
    front: Front
    _algorithm: Algorithm = field(repr=False)
    _stored: SavedPolicies = field(repr=False)
    system_builder: SystemBuilder = field(repr=False)

    @property
    def algorithm_name(self) -> str:
        """The name of the algorithm that trained the run."""
        return self.record.algorithm

    @property
    def seed(self) -> int:
        """The seed of the training."""
        return self.record.seed

    @property
    def conditioned(self) -> bool:
        """Whether the run has one network that takes any preference as an input."""
        return bool(getattr(self._stored.network, "conditioned", False))

    @property
    def saved(self) -> SavedPolicies:
        """The networks of the run, stacked, with their normalisation; ``PolicyRecord.network`` is an index of one."""
        return self._stored

    def system(self) -> System:
        """Return the system that the run was trained on, for example for ``simulate``."""
        return self._algorithm.environment.system

    def policy(self, index: int) -> NeuralPolicy:
        """Return the policy of the front with this index."""
        if not 0 <= index < len(self.front.policies):
            last = len(self.front.policies) - 1
            raise InputError(f"{self.folder}: its front has no policy {index}; choose one from 0 to {last}.")
        record = self.front.policies[index]
        return self._following(record.network, record.preference)

    def policy_for(self, preference: Sequence[float]) -> NeuralPolicy:
        """Return the best policy for weights of accuracy, latency and energy.

        It is a policy of the front or, if the run is ``conditioned``, the network with exactly this preference.
        """
        best = best_for_preference(preference, self.front.points)  # raises InputError for an invalid preference
        if not self.conditioned:
            return self.policy(best)
        weights = np.asarray(preference, np.float64)
        return self._following(self.front.policies[best].network, weights / weights.sum())

    def policies(self) -> NeuralPolicy:
        """Return all policies of the front as a stack, to be evaluated together."""
        records = self.front.policies
        networks = tree_index(self._stored, jnp.asarray([record.network for record in records]))
        preferences = jnp.asarray([record.preference for record in records], float)
        return self._algorithm.policy(networks.network, networks.normaliser, preferences)

    def summary(self) -> dict[str, Any]:
        """Return the main results of the run as a JSON document."""
        record = self.record
        return {
            "folder": str(self.folder),
            "scenario": record.scenario,
            "algorithm": record.algorithm,
            "preset": record.preset,
            "seed": record.seed,
            "hypervolume": record.hypervolume,
            "sparsity": record.sparsity,
            "policies": record.policies,
            "violation_rate": record.violation_rate,
            "within_tolerance": record.within_tolerance,
            "rounds": record.rounds,
            "wall_s": record.wall_s,
            "rounds_per_s": record.rounds / record.wall_s if record.wall_s > 0 else None,
        }

    def _following(self, network: int, preference: Any) -> NeuralPolicy:
        one = tree_index(self._stored, network)
        return self._algorithm.policy(one.network, one.normaliser, jnp.asarray(preference, float))


def open_run(path: str | Path, *, build_system: SystemBuilder = build_system) -> Run:
    """Read a finished run. Raises InputError if it is not finished, or if a file is missing or damaged."""
    folder = Path(path)
    record = read_record(folder)
    if record.status != "finished":
        raise InputError(f"{folder}: is not finished; continue with 'tandem train --resume {folder}'.")
    scenario = read_scenario(folder)
    options = config_from_document(record.algorithm, record.config, f"{folder / RECORD}: config")
    algorithm = get_algorithm(record.algorithm)(Environment(build_system(scenario)), options)
    front = read_front(folder, options.tolerance)
    stored = _read_policies(folder, algorithm)
    count = int(jax.tree.leaves(eqx.filter(stored, eqx.is_array))[0].shape[0])
    if any(not 0 <= policy.network < count for policy in front.policies):
        raise InputError(
            f"{folder / FRONT}: names a network that {POLICIES} does not hold; restore both from one copy of the run."
        )
    return Run(folder, record, scenario, options, front, algorithm, stored, build_system)


def write_policies(folder: Path, system: System, stored: SavedPolicies) -> None:
    """Write policies.safetensors."""
    write_arrays(folder / POLICIES, flatten_arrays(stored), {"devices": system.size})


def front_document(front: Front, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the content of front.json: the policies as measured on these seeds."""
    return {
        "hypervolume": front.hypervolume,
        "sparsity": front.sparsity,
        "reference": dict(zip(OBJECTIVE_KEYS, front.reference, strict=True)),
        "seeds": list(seeds),
        "policies": [policy.document() for policy in front.policies],
    }


def read_front(folder: Path, tolerance: float) -> Front:
    """Read front.json, which needs neither the networks nor the system. Raises InputError if it is damaged."""
    path = folder / FRONT
    document = read_json(path)
    try:
        reference = document["reference"]
        front = Front(
            tuple(PolicyRecord.from_document(policy) for policy in document["policies"]),
            (float(reference["accuracy"]), float(reference["latency_s"]), float(reference["energy_j"])),
            tolerance,
        )
        numbered = [policy.index for policy in front.policies] == list(range(len(front.policies)))
        whole = len(front.policies) > 0 and numbered and bool(np.isfinite(front.points).all())
    except (KeyError, TypeError, ValueError, AttributeError):
        whole = False
    if not whole:
        raise InputError(f"{path}: is not a front with policies; restore it from a copy, or train again.")
    return front


def _read_policies(folder: Path, algorithm: Algorithm) -> SavedPolicies:
    path = folder / POLICIES
    arrays, note = read_arrays(path)
    size = algorithm.environment.size
    if note.get("devices") != size:
        raise InputError(
            f"{folder / SCENARIO}: has {size} devices, but {path.name} was trained for {note.get('devices')}; restore "
            "the run's own scenario, or train again."
        )
    damaged = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    if damaged:
        raise InputError(f"{path}: {damaged[0]} holds numbers that are not finite; restore it from a copy.")
    counts = {array.shape[:1] for array in arrays.values()}
    if len(counts) != 1 or counts == {()}:
        raise InputError(f"{path}: holds arrays that do not belong together; restore it from a copy.")
    return restore_arrays(_blank(algorithm, counts.pop()[0]), arrays, path)


def _blank(algorithm: Algorithm, count: int) -> SavedPolicies:
    """Return the structure of policies.safetensors, with zeros for weights."""

    def one(key: Any) -> SavedPolicies:
        fresh = NeuralPolicy.init(algorithm.init_network(key), algorithm.environment, algorithm.environment.reset(key))
        return SavedPolicies(fresh.network, fresh.normaliser)

    shapes = eqx.filter_eval_shape(one, jax.random.key(0))

    def stacked(leaf: Any) -> Any:
        return jnp.zeros((count, *leaf.shape), leaf.dtype) if hasattr(leaf, "shape") else leaf

    blank: SavedPolicies = jax.tree.map(stacked, shapes)
    return blank
