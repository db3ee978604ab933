"""Final evaluation: the front that validation has chosen is measured on seeds that nothing else uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.feel.system import System
from tandem.io.tree_io import flatten_arrays
from tandem.learn.algorithm import Algorithm, Candidates
from tandem.learn.validation import ValidationResult
from tandem.objectives import OBJECTIVE_KEYS
from tandem.policy.evaluate import evaluate_policies, unstack
from tandem.policy.neural_policy import NeuralPolicy
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs.front import Front, PolicyRecord, measured_fields
from tandem.runs.run import SavedPolicies
from tandem.runs.simulation import episode_keys
from tandem.tree import tree_index


@dataclass(frozen=True)
class EvaluationTarget:
    """The fleet and the seeds that a front is measured on; its accuracy model may differ from that of the training."""

    system: System
    seeds: Sequence[int] = FINAL_EVALUATION_SEEDS


@dataclass(frozen=True)
class MeasuredFront:
    """A measured front and the networks of its policies."""

    front: Front
    saved: SavedPolicies
    rounds: int  # environment rounds of the measurement


def measure_front(
    algorithm: Algorithm, validation: ValidationResult, target: EvaluationTarget | None = None
) -> MeasuredFront:
    """Simulate each chosen candidate on every seed of the target; policies are sorted by accuracy, the highest first.

    The target is the fleet of the training if none is given.
    """
    target = target or EvaluationTarget(algorithm.environment.system)
    candidates = validation.candidates
    owners = np.asarray(candidates.owner)
    chosen = validation.chosen[_finite_networks(candidates)[owners[validation.chosen]]]
    if len(chosen) == 0:
        raise InputError(
            f"{algorithm.name} has found no policy with finite weights and rewards: its training diverged; train again "
            "into another folder, with a lower learning_rate."
        )
    measured = _measure(target, validation.policies, chosen)
    measured.sort(key=lambda pair: (-pair[1]["objectives"][0], *pair[1]["objectives"][1:], pair[0]))
    networks = list(dict.fromkeys(int(owners[candidate]) for candidate, _ in measured))
    records = tuple(
        PolicyRecord(
            index=index,
            **_origin_fields(algorithm, candidates, candidate),
            network=networks.index(int(owners[candidate])),
            **fields,
        )
        for index, (candidate, fields) in enumerate(measured)
    )
    saved = tree_index(SavedPolicies(candidates.networks, candidates.normalisers), np.asarray(networks))
    rounds = len(measured) * len(target.seeds) * target.system.rounds
    front = Front(records, algorithm.config.reference_point, algorithm.config.tolerance)
    return MeasuredFront(front, saved, rounds)


def _finite_networks(candidates: Candidates) -> NDArray[np.bool_]:
    """Return which networks have only finite weights; the shield hides others, whose policies have finite rewards."""
    arrays = flatten_arrays(SavedPolicies(candidates.networks, candidates.normalisers)).values()
    finite = [np.isfinite(array).reshape(len(array), -1).all(axis=1) for array in arrays]
    return np.asarray(np.all(finite, axis=0))


def _measure(
    target: EvaluationTarget, policies: NeuralPolicy, chosen: NDArray[np.intp]
) -> list[tuple[int, dict[str, Any]]]:
    """Return each chosen candidate, and the measured fields of its record."""
    rows: list[dict[str, Any]] = []
    environment, keys = Environment(target.system), episode_keys(target.seeds)
    for means in evaluate_policies(environment, policies, keys, chosen):
        rows += [measured_fields(policy_means) for policy_means in unstack(means)]
    return list(zip(chosen.tolist(), rows, strict=True))


def _origin_fields(algorithm: Algorithm, candidates: Candidates, candidate: int) -> dict[str, Any]:
    """Return the fields of a record that say how a candidate was trained."""
    objective = int(candidates.objective[candidate])
    return {
        # Via a string, so that 0.9 in single precision is written as 0.9, not as the nearest double.
        "preference": tuple(float(str(weight)) for weight in np.asarray(candidates.preferences[candidate])),
        "stage": algorithm.stages[int(candidates.stage[candidate])].name,
        "improved": OBJECTIVE_KEYS[objective] if objective >= 0 else None,
    }
