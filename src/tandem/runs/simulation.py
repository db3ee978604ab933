"""A policy played on a scenario over seeds: what it achieved, and the rounds behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.special
from numpy.typing import NDArray

from tandem.feel.constraints import CONSTRAINTS
from tandem.feel.state import FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.objectives import OBJECTIVE_KEYS, to_user_units
from tandem.policy.base import Policy
from tandem.policy.rollout import EpisodeMeans, episode_means, rollout, rollout_means

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Simulation:
    """The means of a policy's episodes, a row a seed."""

    seeds: tuple[int, ...]
    objectives: Values  # [seeds, 3] accuracy, latency (s), energy (J)
    reward: Values  # [seeds, 3] as learners see it: maximised, penalties included
    violation_rate: Values  # [seeds] share of rounds that broke any constraint
    violation_rates: Values  # [seeds, 8] by constraint
    arrived_requests: Values  # [seeds] over the episode, all devices
    dropped_requests: Values
    discarded_samples: Values
    trainers: Values  # [seeds] mean devices training in a round
    round_s: Values  # [seeds] mean length of a round

    def summary(self) -> dict[str, Any]:
        """One JSON document: means over seeds, and the objectives of each seed."""
        rates = dict(zip(CONSTRAINTS, self.violation_rates.mean(axis=0).tolist(), strict=True))
        return {
            "seeds": list(self.seeds),
            "objectives": dict(zip(OBJECTIVE_KEYS, self.objectives.mean(axis=0).tolist(), strict=True)),
            "objectives_half_width_95": dict(zip(OBJECTIVE_KEYS, half_width(self.objectives), strict=True)),
            "objectives_by_seed": [dict(zip(OBJECTIVE_KEYS, row.tolist(), strict=True)) for row in self.objectives],
            "reward": self.reward.mean(axis=0).tolist(),
            "violation_rate": {"all": float(self.violation_rate.mean()), **rates},
            "arrived_requests": float(self.arrived_requests.mean()),
            "dropped_requests": float(self.dropped_requests.mean()),
            "discarded_samples": float(self.discarded_samples.mean()),
            "trainers_per_round": float(self.trainers.mean()),
            "round_s": float(self.round_s.mean()),
        }


def half_width(by_seed: Values) -> list[float | None]:
    """Half the width of the 95 % confidence interval of the mean over seeds (Student's t); None for a single seed."""
    count = len(by_seed)
    if count < 2:
        return [None] * by_seed.shape[1]
    quantile = float(scipy.special.stdtrit(count - 1, 0.975))
    return [float(width) for width in quantile * by_seed.std(axis=0, ddof=1) / np.sqrt(count)]


def simulate(system: System, policy: Policy, seeds: Sequence[int] = (0,)) -> Simulation:
    """Play one episode for each seed. The result for a seed does not depend on the others."""
    return _simulation(seeds, rollout_means(system, policy, episode_keys(seeds)))


def summarise(seeds: Sequence[int], played: Sequence[tuple[FleetState, RoundOutcome]]) -> Simulation:
    """The same of episodes that were kept whole, one a seed: real models take their time, and need not play twice."""
    means = [episode_means(outcome) for _, outcome in played]
    return _simulation(seeds, jax.tree.map(lambda *leaves: np.stack(leaves), *means))


def _simulation(seeds: Sequence[int], outcome: EpisodeMeans) -> Simulation:
    def values(leaf: Any) -> Values:
        return np.asarray(leaf, np.float64)

    return Simulation(
        seeds=tuple(seeds),
        objectives=to_user_units(values(outcome.objectives)),
        reward=values(outcome.reward),
        violation_rate=values(outcome.violated_any),
        violation_rates=values(outcome.violated),
        arrived_requests=values(outcome.arrived),
        dropped_requests=values(outcome.dropped),
        discarded_samples=values(outcome.discarded),
        trainers=values(outcome.trainers),
        round_s=values(outcome.duration_s),
    )


def simulate_histories(
    system: System, policy: Policy, seeds: Sequence[int]
) -> Iterator[tuple[FleetState, RoundOutcome]]:
    """Every round of every seed, a seed at a time: states before each round and outcomes, [rounds, ...] in NumPy."""
    for seed in seeds:
        states, outcomes = rollout(system, policy, episode_keys([seed]))
        plain = eqx.tree_at(lambda state: state.key, states, jax.random.key_data(states.key))
        yield jax.device_get(jax.tree.map(lambda leaf: leaf[0], (plain, outcomes)))


def episode_keys(seeds: Sequence[int]) -> Any:
    """The random key of each seed's episode."""
    return jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
