"""Playing a policy through whole episodes, many at once."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.feel.env import reset, step
from tandem.feel.state import FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import Array, RandomKey
from tandem.policy.base import Policy


@eqx.filter_jit
def rollout(system: System, policy: Policy, keys: Array) -> tuple[FleetState, RoundOutcome]:
    """Play an episode for each key. Returns the states before each round and the outcomes, [episodes, rounds, ...]."""
    return jax.vmap(lambda key: _episode(system, policy, key))(keys)


@eqx.filter_jit
def rollout_means(system: System, policy: Policy, keys: Array) -> EpisodeMeans:
    """Play an episode for each key and keep only its means, [episodes, ...]; needs no memory for rounds."""
    return jax.vmap(lambda key: _episode_means(system, policy, key))(keys)


class EpisodeMeans(eqx.Module):
    """An episode in a few numbers."""

    objectives: Array  # [3] accuracy, -latency (s), -energy (J), mean over rounds and devices
    reward: Array  # [3] the same with penalties
    violated: Array  # [8] share of rounds that broke each constraint
    violated_any: Array  # share of rounds that broke any
    dropped: Array  # requests dropped in the episode, all devices
    arrived: Array  # requests arrived in the episode, all devices
    discarded: Array  # samples discarded
    trainers: Array  # devices training in a round
    duration_s: Array  # length of a round


@jax.jit
def episode_means(outcome: RoundOutcome) -> EpisodeMeans:
    """The means of an episode of which every round was kept, [rounds, ...]."""
    rounds = jax.vmap(_summary)(outcome)
    totals: EpisodeMeans = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), rounds)
    return _per_round(totals, rounds.duration_s.shape[0])


def _summary(outcome: RoundOutcome) -> EpisodeMeans:
    return EpisodeMeans(
        objectives=outcome.objectives,
        reward=outcome.reward,
        violated=outcome.violations.by_constraint().astype(float),
        violated_any=outcome.violations.any().astype(float),
        dropped=jnp.sum(outcome.dropped),
        arrived=jnp.sum(outcome.arrived),
        discarded=jnp.sum(outcome.discarded),
        trainers=jnp.sum(outcome.executed.train).astype(float),
        duration_s=outcome.duration_s,
    )


def _rollout(
    system: System, policy: Policy, state: FleetState, policy_key: RandomKey
) -> tuple[FleetState, RoundOutcome]:
    action = policy(system, state, jax.random.fold_in(policy_key, state.round))
    return step(system, state, action)


def _episode(system: System, policy: Policy, key: RandomKey) -> tuple[FleetState, RoundOutcome]:
    fleet_key, policy_key = jax.random.split(key)

    def one_round(state: FleetState, _: None) -> tuple[FleetState, tuple[FleetState, RoundOutcome]]:
        after, outcome = _rollout(system, policy, state, policy_key)
        # Without the ground truth's models: kept for every round they would fill the memory.
        return after, (dataclasses.replace(state, measured=None), outcome)

    _, history = jax.lax.scan(one_round, reset(system, fleet_key), None, length=system.rounds)
    return history


def _episode_means(system: System, policy: Policy, key: RandomKey) -> EpisodeMeans:
    fleet_key, policy_key = jax.random.split(key)

    def one_round(carry: tuple[FleetState, EpisodeMeans], _: None) -> tuple[tuple[FleetState, EpisodeMeans], None]:
        state, totals = carry
        after, outcome = _rollout(system, policy, state, policy_key)
        return (after, jax.tree.map(jnp.add, totals, _summary(outcome))), None

    zero = EpisodeMeans(jnp.zeros(3), jnp.zeros(3), jnp.zeros(8), *(jnp.zeros(()) for _ in range(6)))
    (_, totals), _ = jax.lax.scan(one_round, (reset(system, fleet_key), zero), None, length=system.rounds)
    return _per_round(totals, system.rounds)


def _per_round(totals: EpisodeMeans, rounds: int) -> EpisodeMeans:
    """What is told of a round on average, and what of the whole episode."""
    per_round: EpisodeMeans = jax.tree.map(lambda total: total / rounds, totals)
    counts = (totals.dropped, totals.arrived, totals.discarded)
    means: EpisodeMeans = eqx.tree_at(lambda m: (m.dropped, m.arrived, m.discarded), per_round, counts)
    return means
