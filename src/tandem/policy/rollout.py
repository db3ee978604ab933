"""Rollouts of a policy over whole episodes, many in parallel."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.feel.environment import Environment
from tandem.feel.state import FleetState, RoundOutcome
from tandem.feel.types import Array, RandomKey
from tandem.policy.base import Policy


@eqx.filter_jit
def rollout(environment: Environment, policy: Policy, keys: Array) -> tuple[FleetState, RoundOutcome]:
    """Simulate an episode for each key.

    Returns the states before each round and the outcomes, [episodes, rounds, ...].
    """
    return jax.vmap(lambda key: _episode(environment, policy, key))(keys)


@eqx.filter_jit
def rollout_means(environment: Environment, policy: Policy, keys: Array) -> EpisodeMeans:
    """Simulate an episode for each key and keep only its means, [episodes, ...]; needs no memory for single rounds."""
    return jax.vmap(lambda key: _episode_means(environment, policy, key))(keys)


class EpisodeMeans(eqx.Module):
    """The means of an episode over its rounds, and the totals of requests and samples."""

    objectives: Array  # [3] accuracy, -latency (s), -energy (J), mean over rounds and devices
    reward: Array  # [3] the same with penalties
    violated: Array  # [8] share of rounds that violated each constraint
    violated_any: Array  # share of rounds that violated any constraint
    dropped: Array  # requests dropped in the episode, all devices
    arrived: Array  # requests arrived in the episode, all devices
    converted: Array  # samples made of served requests in the episode, all devices
    discarded: Array  # samples discarded in the episode, all devices
    trainers: Array  # devices that train in a round
    duration_s: Array  # length of a round


@jax.jit
def episode_means(outcome: RoundOutcome) -> EpisodeMeans:
    """Return the means of an episode from the outcomes of all its rounds, [rounds, ...]."""
    rounds = jax.vmap(_summarise_round)(outcome)
    totals: EpisodeMeans = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), rounds)
    return _divide_by_rounds(totals, rounds.duration_s.shape[0])


def _summarise_round(outcome: RoundOutcome) -> EpisodeMeans:
    return EpisodeMeans(
        objectives=outcome.objectives,
        reward=outcome.reward,
        violated=outcome.violations.by_constraint().astype(float),
        violated_any=outcome.violations.any().astype(float),
        dropped=jnp.sum(outcome.dropped),
        arrived=jnp.sum(outcome.arrived),
        converted=jnp.sum(outcome.converted),
        discarded=jnp.sum(outcome.discarded),
        trainers=jnp.sum(outcome.executed.train).astype(float),
        duration_s=outcome.duration_s,
    )


def _step(
    environment: Environment, policy: Policy, state: FleetState, policy_key: RandomKey
) -> tuple[FleetState, RoundOutcome]:
    action = policy(environment, state, jax.random.fold_in(policy_key, state.round))
    return environment.step(state, action)


def _episode(environment: Environment, policy: Policy, key: RandomKey) -> tuple[FleetState, RoundOutcome]:
    reset_key, policy_key = jax.random.split(key)

    def one_round(state: FleetState, _: None) -> tuple[FleetState, tuple[FleetState, RoundOutcome]]:
        next_state, outcome = _step(environment, policy, state, policy_key)
        # Without the models of a measured accuracy: kept for every round they would fill the memory.
        return next_state, (dataclasses.replace(state, measured=None), outcome)

    _, history = jax.lax.scan(one_round, environment.reset(reset_key), None, length=environment.rounds)
    return history


def _episode_means(environment: Environment, policy: Policy, key: RandomKey) -> EpisodeMeans:
    reset_key, policy_key = jax.random.split(key)

    def one_round(carry: tuple[FleetState, EpisodeMeans], _: None) -> tuple[tuple[FleetState, EpisodeMeans], None]:
        state, totals = carry
        next_state, outcome = _step(environment, policy, state, policy_key)
        return (next_state, jax.tree.map(jnp.add, totals, _summarise_round(outcome))), None

    zero = EpisodeMeans(jnp.zeros(3), jnp.zeros(3), jnp.zeros(8), *(jnp.zeros(()) for _ in range(7)))
    start = (environment.reset(reset_key), zero)
    (_, totals), _ = jax.lax.scan(one_round, start, None, length=environment.rounds)
    return _divide_by_rounds(totals, environment.rounds)


def _divide_by_rounds(totals: EpisodeMeans, rounds: int) -> EpisodeMeans:
    """Convert totals into means over rounds; requests and samples remain totals of the episode."""
    per_round: EpisodeMeans = jax.tree.map(lambda total: total / rounds, totals)
    counts = (totals.dropped, totals.arrived, totals.converted, totals.discarded)
    means: EpisodeMeans = eqx.tree_at(lambda m: (m.dropped, m.arrived, m.converted, m.discarded), per_round, counts)
    return means
