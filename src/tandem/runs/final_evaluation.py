"""The front of a trained algorithm: candidates validated, the chosen ones measured on seeds that nothing else uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.feel.system import System
from tandem.learn.algorithm import Algorithm, Candidates
from tandem.learn.validation import ValidationResult
from tandem.objectives import OBJECTIVE_KEYS
from tandem.policy.evaluate import evaluate_policies, unstack
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs.front import Front, PolicyRecord, measured_fields
from tandem.runs.run import SavedPolicies
from tandem.runs.simulation import episode_keys
from tandem.tree import tree_index


@dataclass(frozen=True)
class EvaluationTarget:
    """What a front is measured by: a fleet, which may have another accuracy than was trained on, and seeds."""

    system: System
    seeds: Sequence[int] = FINAL_EVALUATION_SEEDS


@dataclass(frozen=True)
class MeasuredFront:
    """A front with the networks its policies run, and what measuring it took."""

    front: Front
    stored: SavedPolicies
    rounds: int


def measure_front(
    algorithm: Algorithm,
    delivery: ValidationResult,
    yardstick: EvaluationTarget | None = None,
) -> MeasuredFront:
    """Play each chosen candidate on every seed; policies come in the order of their accuracy, the highest first."""
    yardstick = yardstick or EvaluationTarget(algorithm.environment.system)
    if len(delivery.chosen) == 0:
        raise InputError(
            f"{algorithm.name} has found no policy with finite rewards: its training diverged; train again with a "
            "lower learning_rate."
        )
    candidates = delivery.candidates
    found = _played(yardstick, delivery)
    found.sort(key=lambda one: (-one[1]["objectives"][0], *one[1]["objectives"][1:], one[0]))
    owners = np.asarray(candidates.owner)
    used = list(dict.fromkeys(int(owners[candidate]) for candidate, _ in found))
    records = tuple(
        PolicyRecord(
            index=index,
            **_origin(algorithm, candidates, candidate),
            network=used.index(int(owners[candidate])),
            **means,
        )
        for index, (candidate, means) in enumerate(found)
    )
    stored = tree_index(SavedPolicies(candidates.networks, candidates.normalisers), np.asarray(used))
    rounds = len(found) * len(yardstick.seeds) * yardstick.system.rounds
    return MeasuredFront(Front(records, algorithm.config.reference_point), stored, rounds)


def _played(yardstick: EvaluationTarget, delivery: ValidationResult) -> list[tuple[int, dict[str, Any]]]:
    """Each chosen candidate, and the measured fields of its record."""
    rows: list[dict[str, Any]] = []
    environment, keys = Environment(yardstick.system), episode_keys(yardstick.seeds)
    for means in evaluate_policies(environment, delivery.policies, keys, delivery.chosen):
        rows += [measured_fields(one) for one in unstack(means)]
    return list(zip(delivery.chosen.tolist(), rows, strict=True))


def _origin(algorithm: Algorithm, candidates: Candidates, candidate: int) -> dict[str, Any]:
    """Where a candidate comes from, as fields of its record."""
    objective = int(candidates.objective[candidate])
    return {
        # By way of text: 0.9 in single precision is to be read as 0.9, not as its nearest double.
        "preference": tuple(float(str(weight)) for weight in np.asarray(candidates.preferences[candidate])),
        "stage": algorithm.stages[int(candidates.stage[candidate])].name,
        "improved": OBJECTIVE_KEYS[objective] if objective >= 0 else None,
    }
