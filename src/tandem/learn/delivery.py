"""From candidates to a front: each is validated in its deterministic form; what is dominated or unsafe is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from tandem.feel.system import System
from tandem.feel.types import Array
from tandem.learn.algorithm import Candidates
from tandem.learn.population import member
from tandem.pareto import front
from tandem.policy.neural import NeuralPolicy
from tandem.policy.rollout import EpisodeMeans, mean_outcome

AT_ONCE = 64  # policies played in one call: more would leave progress waiting


@dataclass(frozen=True)
class Delivery:
    """Which candidates make the front, and how they were judged."""

    chosen: NDArray[np.intp]  # indices of candidates
    rewards: NDArray[np.float64]  # [candidates, 3], NaN where there was none
    violation_rate: NDArray[np.float64]  # [candidates]
    rounds: int  # environment rounds it took
    within_tolerance: bool  # false if no candidate is, and the front is of those that come nearest


def deliver(system: System, candidates: Candidates, policies: NeuralPolicy, keys: Array, tolerance: float) -> Delivery:
    """Play an episode for each key with each candidate, and choose."""
    valid = np.flatnonzero(np.asarray(candidates.valid))
    rewards = np.full((len(candidates.valid), 3), np.nan)
    violation_rate = np.full(len(candidates.valid), np.nan)
    for part, means in played(system, policies, valid, keys):
        rewards[part] = np.asarray(means.reward, np.float64).mean(axis=1)
        violation_rate[part] = np.asarray(means.violated_any, np.float64).mean(axis=1)
    # A small step of slack: shares of rounds are sums of single precision.
    safe = violation_rate <= tolerance + 1e-6
    within = bool(safe.any())
    eligible = np.flatnonzero(safe) if within else valid
    chosen = eligible[front(rewards[eligible])]
    rounds = len(valid) * len(keys) * system.rounds
    return Delivery(chosen, rewards, violation_rate, rounds, within)


def played(
    system: System, policies: NeuralPolicy, indices: NDArray[np.intp], keys: Array
) -> Iterator[tuple[NDArray[np.intp], EpisodeMeans]]:
    """Episodes of some of a stack of policies, a part of them at a time: indices, and means [policies, episodes]."""
    for begin in range(0, len(indices), AT_ONCE):
        part = indices[begin : begin + AT_ONCE]
        # The last part is filled up, so that every call runs the same program.
        filled = np.resize(part, min(AT_ONCE, len(indices)))
        means = _play(system, member(policies, filled), keys)
        count = len(part)
        yield part, jax.tree.map(lambda leaf: np.asarray(leaf)[:count], means)  # noqa: B023, it is used at once


@eqx.filter_jit
def _play(system: System, policies: NeuralPolicy, keys: Array) -> EpisodeMeans:
    means: EpisodeMeans = eqx.filter_vmap(lambda policy: mean_outcome(system, policy, keys))(policies)
    return means
