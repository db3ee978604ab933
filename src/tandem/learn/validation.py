"""Validation: candidates are evaluated in their deployed form; those that are dominated or unsafe are left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.feel.environment import Environment
from tandem.feel.types import Array
from tandem.learn.algorithm import Candidates
from tandem.pareto import nondominated_indices
from tandem.policy.evaluate import evaluate_policies
from tandem.policy.neural_policy import NeuralPolicy

ROUNDING = 1e-6  # violation rates are sums in single precision


@dataclass(frozen=True)
class ValidationResult:
    """The validated candidates, and those of them that form the front."""

    candidates: Candidates
    policies: NeuralPolicy  # stacked, one for each candidate
    chosen: NDArray[np.intp]  # indices of the candidates of the front
    rewards: NDArray[np.float64]  # [candidates, 3], NaN for invalid ones
    violation_rate: NDArray[np.float64]  # [candidates]
    rounds: int  # environment rounds of the validation
    within_tolerance: bool  # False if no candidate is; then the one with the lowest violation rate is chosen


def validate_candidates(
    environment: Environment, candidates: Candidates, policies: NeuralPolicy, keys: Array, tolerance: float
) -> ValidationResult:
    """Simulate an episode for each key with each valid candidate, and choose the front."""
    valid = np.flatnonzero(np.asarray(candidates.valid))
    rewards = np.full((len(candidates.valid), 3), np.nan)
    violation_rate = np.full(len(candidates.valid), np.nan)
    means = list(evaluate_policies(environment, policies, keys, valid))
    rewards[valid] = np.concatenate([part.reward.mean(axis=1) for part in means])
    violation_rate[valid] = np.concatenate([part.violated_any.mean(axis=1) for part in means])
    rounds = len(valid) * len(keys) * environment.rounds
    chosen, within = select_front(rewards, violation_rate, tolerance)
    return ValidationResult(candidates, policies, chosen, rewards, violation_rate, rounds, within)


def select_front(
    rewards: NDArray[np.float64], violation_rate: NDArray[np.float64], tolerance: float
) -> tuple[NDArray[np.intp], bool]:
    """Return the candidates of the front, and whether any is within the tolerance. NaN marks invalid candidates.

    Only candidates within the tolerance form a front. If there is none, the one with the lowest violation rate is
    returned, so that a run always has a policy; of several, the one with the highest sum of rewards, then the first.
    """
    finite = np.isfinite(rewards).all(axis=1) & np.isfinite(violation_rate)
    safe = np.flatnonzero(finite & within_tolerance(violation_rate, tolerance))
    if len(safe):
        return safe[nondominated_indices(rewards[safe])], True
    valid = np.flatnonzero(finite)
    by_rate = np.lexsort((-rewards[valid].sum(axis=1), np.round(violation_rate[valid] / ROUNDING)))
    return valid[by_rate[:1]], False


def within_tolerance(violation_rate: ArrayLike, tolerance: float) -> NDArray[np.bool_]:
    """Return which violation rates are within the tolerance, up to rounding."""
    return np.asarray(violation_rate, np.float64) <= tolerance + ROUNDING
