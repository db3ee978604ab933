"""Final evaluation: the front that validation has chosen is measured on seeds that nothing else uses."""

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
    if len(validation.chosen) == 0:
        raise InputError(
            f"{algorithm.name} has found no policy with finite rewards: its training diverged; train again with a "
            "lower learning_rate."
        )
    candidates = validation.candidates
    measured = _measure(target, validation)
    measured.sort(key=lambda pair: (-pair[1]["objectives"][0], *pair[1]["objectives"][1:], pair[0]))
    owners = np.asarray(candidates.owner)
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
    return MeasuredFront(Front(records, algorithm.config.reference_point), saved, rounds)


def _measure(target: EvaluationTarget, validation: ValidationResult) -> list[tuple[int, dict[str, Any]]]:
    """Return each chosen candidate, and the measured fields of its record."""
    rows: list[dict[str, Any]] = []
    environment, keys = Environment(target.system), episode_keys(target.seeds)
    for means in evaluate_policies(environment, validation.policies, keys, validation.chosen):
        rows += [measured_fields(policy_means) for policy_means in unstack(means)]
    return list(zip(validation.chosen.tolist(), rows, strict=True))


def _origin_fields(algorithm: Algorithm, candidates: Candidates, candidate: int) -> dict[str, Any]:
    """Return the fields of a record that say how a candidate was trained."""
    objective = int(candidates.objective[candidate])
    return {
        # Via a string, so that 0.9 in single precision is written as 0.9, not as the nearest double.
        "preference": tuple(float(str(weight)) for weight in np.asarray(candidates.preferences[candidate])),
        "stage": algorithm.stages[int(candidates.stage[candidate])].name,
        "improved": OBJECTIVE_KEYS[objective] if objective >= 0 else None,
    }
