"""The front of a trained algorithm: candidates validated, the chosen ones measured on seeds that nothing else uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.errors import InputError
from tandem.feel.objectives import OBJECTIVES
from tandem.feel.system import System
from tandem.learn.algorithm import Algorithm, Candidates
from tandem.learn.validation import Delivery
from tandem.policy.evaluate import each, played
from tandem.policy.neural_policy import NeuralPolicy
from tandem.runs.front import Front, PolicyRecord, measured
from tandem.runs.run import Stored
from tandem.runs.simulation import episode_keys
from tandem.tree import member

# Fresh: training and validation fold streams of their own into the run's seed, and who simulates counts from 0. The
# same for every run, so that fronts are compared on the same episodes.
SEEDS = range(1_000_000, 1_000_016)


@dataclass(frozen=True)
class Yardstick:
    """What a front is measured by: a fleet, which may have another accuracy than was trained on, and seeds."""

    system: System
    seeds: Sequence[int] = SEEDS


@dataclass(frozen=True)
class Measured:
    """A front with the networks its policies run, and what measuring it took."""

    front: Front
    stored: Stored
    rounds: int


def measure(
    algorithm: Algorithm,
    candidates: Candidates,
    policies: NeuralPolicy,
    delivery: Delivery,
    yardstick: Yardstick | None = None,
) -> Measured:
    """Play each chosen candidate on every seed; policies come in the order of their accuracy, the highest first."""
    yardstick = yardstick or Yardstick(algorithm.system)
    if len(delivery.chosen) == 0:
        raise InputError(
            f"{algorithm.name} has found no policy with finite rewards: its training diverged; train again with a "
            "lower learning_rate."
        )
    found = _played(yardstick, policies, delivery)
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
    stored = member(Stored(candidates.networks, candidates.normalisers), np.asarray(used))
    rounds = len(found) * len(yardstick.seeds) * yardstick.system.rounds
    return Measured(Front(records, algorithm.options.reference), stored, rounds)


def _played(yardstick: Yardstick, policies: NeuralPolicy, delivery: Delivery) -> list[tuple[int, dict[str, Any]]]:
    """Each chosen candidate, and the measured fields of its record."""
    rows: list[dict[str, Any]] = []
    for means in played(yardstick.system, policies, episode_keys(yardstick.seeds), delivery.chosen):
        rows += [measured(one) for one in each(means)]
    return list(zip(delivery.chosen.tolist(), rows, strict=True))


def _origin(algorithm: Algorithm, candidates: Candidates, candidate: int) -> dict[str, Any]:
    """Where a candidate comes from, as fields of its record."""
    objective = int(candidates.objective[candidate])
    return {
        # By way of text: 0.9 in single precision is to be read as 0.9, not as its nearest double.
        "preference": tuple(float(str(weight)) for weight in np.asarray(candidates.preferences[candidate])),
        "stage": algorithm.stages[int(candidates.stage[candidate])].name,
        "improved": OBJECTIVES[objective] if objective >= 0 else None,
    }
