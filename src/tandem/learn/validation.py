"""From candidates to a front: each is validated in its deterministic form; what is dominated or unsafe is left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.feel.system import System
from tandem.feel.types import Array
from tandem.learn.algorithm import Candidates
from tandem.pareto import nondominated_indices
from tandem.policy.evaluate import evaluate_policies
from tandem.policy.neural_policy import NeuralPolicy


@dataclass(frozen=True)
class ValidationResult:
    """Which candidates make the front, and how they were judged."""

    chosen: NDArray[np.intp]  # indices of candidates
    rewards: NDArray[np.float64]  # [candidates, 3], NaN where there was none
    violation_rate: NDArray[np.float64]  # [candidates]
    rounds: int  # environment rounds it took
    within_tolerance: bool  # false if no candidate is, and the front is of those that come nearest


def validate_candidates(
    system: System, candidates: Candidates, policies: NeuralPolicy, keys: Array, tolerance: float
) -> ValidationResult:
    """Play an episode for each key with each candidate, and choose."""
    valid = np.flatnonzero(np.asarray(candidates.valid))
    rewards = np.full((len(candidates.valid), 3), np.nan)
    violation_rate = np.full(len(candidates.valid), np.nan)
    means = list(evaluate_policies(system, policies, keys, valid))
    rewards[valid] = np.concatenate([part.reward.mean(axis=1) for part in means])
    violation_rate[valid] = np.concatenate([part.violated_any.mean(axis=1) for part in means])
    rounds = len(valid) * len(keys) * system.rounds
    chosen, within = select_front(rewards, violation_rate, tolerance)
    return ValidationResult(chosen, rewards, violation_rate, rounds, within)


def select_front(
    rewards: NDArray[np.float64], violation_rate: NDArray[np.float64], tolerance: float
) -> tuple[NDArray[np.intp], bool]:
    """The candidates that make the front, NaN being none; and whether any is within the tolerance."""
    safe = within_tolerance(violation_rate, tolerance)
    within = bool(safe.any())
    eligible = np.flatnonzero(safe if within else ~np.isnan(violation_rate))
    return eligible[nondominated_indices(rewards[eligible])], within


def within_tolerance(violation_rate: ArrayLike, tolerance: float) -> NDArray[np.bool_]:
    """Which rates are no larger than is tolerated; shares of rounds are sums of single precision, hence the slack."""
    return np.asarray(violation_rate, np.float64) <= tolerance + 1e-6
