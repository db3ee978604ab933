"""Trajectories of a policy, and their advantages."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.environment import Environment
from tandem.feel.rewards import ViolationCredit
from tandem.feel.state import FleetState
from tandem.feel.types import Array, RandomKey, Scalar
from tandem.learn.ppo.gae import compute_gae
from tandem.policy.distributions import RawAction
from tandem.policy.features import Features, extract_features
from tandem.policy.networks import ActorCritic
from tandem.policy.neural_policy import ObservationNormaliser
from tandem.policy.running_stats import RunningStats


class Trajectory(eqx.Module):
    """Whole episodes, [episodes, rounds, ...]."""

    features: Features  # not normalised
    last_features: Features  # [episodes, ...], after the last round
    preferences: Float[Array, "episodes 3"]
    raw_action: RawAction
    rewards: Float[Array, "episodes rounds devices 3"]  # of each device; the mean over devices is that of the fleet
    violated: Float[Array, "episodes rounds"]


class AdvantageBatch(eqx.Module):
    """The policy's probabilities and the critic's estimates for trajectories, [episodes, rounds, ...]."""

    features: Features  # normalised
    log_prob: Float[Array, "episodes rounds devices"]
    advantages: Float[Array, "episodes rounds critics 3"]
    targets: Float[Array, "episodes rounds critics 3"]  # returns


class Batch(eqx.Module):
    """Samples of an update, which reads them in minibatches, [samples, ...]."""

    features: Features  # normalised
    preference: Float[Array, "samples 3"]
    raw_action: RawAction
    log_prob: Float[Array, "samples devices"]
    advantages: Float[Array, "samples deciders columns"]  # columns as the surrogate defines them
    target: Float[Array, "samples critics 3"]  # normalised returns


def collect_trajectories(
    environment: Environment,
    network: ActorCritic,
    normaliser: ObservationNormaliser,
    preferences: Float[Array, "episodes 3"],
    keys: RandomKey,
    violation_credit: ViolationCredit = "fleet",
) -> Trajectory:
    """Simulate an episode for each preference and key, with sampled actions."""

    def episode(preference: Array, episode_key: RandomKey) -> Trajectory:
        reset_key, action_key = jax.random.split(episode_key)

        def one_round(state: FleetState, _: None) -> tuple[FleetState, Any]:
            features = extract_features(environment, state)
            action_dist = network(normaliser.normalise(features), preference).action_dist
            raw_action = action_dist.sample(jax.random.fold_in(action_key, state.round), features.action_mask)
            next_state, outcome = environment.step(state, raw_action.action())
            violated = outcome.violations.any().astype(float)
            rewards = environment.device_rewards(outcome, violation_credit)
            return next_state, (features, raw_action, rewards, violated)

        start = environment.reset(reset_key)
        last_state, history = jax.lax.scan(one_round, start, None, length=environment.rounds)
        features, raw_action, rewards, violated = history
        last_features = extract_features(environment, last_state)
        return Trajectory(features, last_features, preference, raw_action, rewards, violated)

    return jax.vmap(episode)(preferences, keys)


def compute_advantages(
    network: ActorCritic,
    normaliser: ObservationNormaliser,
    returns: RunningStats,
    trajectory: Trajectory,
    gamma: Scalar | float,
    gae_lambda: Scalar | float,
) -> AdvantageBatch:
    """Compute probabilities and advantages of trajectories, with the normalisation that the update uses."""
    features = jax.tree.map(
        lambda all_rounds, last: jnp.concatenate([all_rounds, last[:, None]], 1),
        trajectory.features,
        trajectory.last_features,
    )
    features = normaliser.normalise(features)
    output = jax.vmap(jax.vmap(network, in_axes=(0, None)))(features, trajectory.preferences)
    features, action_dist = jax.tree.map(lambda leaf: leaf[:, :-1], (features, output.action_dist))
    values = denormalise_values(returns, output.value)
    values, last_values = values[:, :-1], values[:, -1]
    critics = values.shape[2]
    rewards = trajectory.rewards if critics > 1 else jnp.mean(trajectory.rewards, axis=2, keepdims=True)
    by_critic = jax.vmap(compute_gae, in_axes=(1, 1, 0, None, None), out_axes=1)
    advantages = jax.vmap(by_critic, in_axes=(0, 0, 0, None, None))(rewards, values, last_values, gamma, gae_lambda)
    log_prob = jax.vmap(jax.vmap(lambda dist, raw_action, mask: dist.log_prob(raw_action, mask)))(
        action_dist, trajectory.raw_action, features.action_mask
    )
    return AdvantageBatch(features, log_prob, advantages, advantages + values)


def denormalise_values(returns: RunningStats, normalised: Array) -> Array:
    """Convert the critic's normalised predictions into returns."""
    deviation = jnp.sqrt(jnp.where(returns.count > 0, returns.squares / jnp.maximum(returns.count, 1.0), 1.0))
    return returns.mean + normalised * deviation
