"""From a policy to what an update needs of it: episodes are played, then judged by the critic."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.env import reset, step
from tandem.feel.rewards import device_objectives
from tandem.feel.state import FleetState
from tandem.feel.system import System
from tandem.feel.types import Array, RandomKey, Scalar
from tandem.learn.ppo.gae import compute_gae
from tandem.policy.distributions import RawAction
from tandem.policy.features import Features, extract_features
from tandem.policy.networks import ActorCritic
from tandem.policy.neural_policy import ObservationNormaliser
from tandem.policy.running_stats import RunningStats


class Trajectory(eqx.Module):
    """Episodes as they went, [episodes, rounds, ...]."""

    features: Features  # raw
    last_features: Features  # [episodes, ...], after the last round
    preferences: Float[Array, "episodes 3"]
    raw_action: RawAction
    rewards: Float[Array, "episodes rounds devices 3"]  # of each device; the fleet's is the mean
    violated: Float[Array, "episodes rounds"]


class Batch(eqx.Module):
    """Decisions and what came of them, [samples, ...]; an update reads it in minibatches."""

    features: Features  # standardised
    preference: Float[Array, "samples 3"]
    raw_action: RawAction
    log_prob: Float[Array, "samples devices"]
    advantages: Float[Array, "samples deciders columns"]  # advantages, as the aim wants them
    target: Float[Array, "samples critics 3"]  # standardised returns


def collect_trajectories(
    system: System,
    network: ActorCritic,
    normaliser: ObservationNormaliser,
    preferences: Float[Array, "episodes 3"],
    keys: RandomKey,
) -> Trajectory:
    """Play an episode for each preference and key, drawing decisions."""

    def episode(preference: Array, episode_key: RandomKey) -> Trajectory:
        fleet_key, draw_key = jax.random.split(episode_key)

        def one_round(state: FleetState, _: None) -> tuple[FleetState, Any]:
            inputs = extract_features(system, state)
            judged = network(normaliser.normalise(inputs), preference)
            draw = judged.action_dist.sample(jax.random.fold_in(draw_key, state.round), inputs.action_mask)
            after, outcome = step(system, state, draw.action())
            violated = outcome.violations.any()
            rewards = jnp.where(violated, system.penalty, device_objectives(outcome))
            return after, (inputs, draw, rewards, violated.astype(float))

        last, seen = jax.lax.scan(one_round, reset(system, fleet_key), None, length=system.rounds)
        inputs, draw, rewards, violated = seen
        return Trajectory(inputs, extract_features(system, last), preference, draw, rewards, violated)

    return jax.vmap(episode)(preferences, keys)


class AdvantageBatch(eqx.Module):
    """Episodes with what the critic makes of them, [episodes, rounds, ...]."""

    features: Features  # standardised
    log_prob: Float[Array, "episodes rounds devices"]
    advantages: Float[Array, "episodes rounds critics 3"]
    targets: Float[Array, "episodes rounds critics 3"]  # returns


def compute_advantages(
    network: ActorCritic,
    normaliser: ObservationNormaliser,
    returns: RunningStats,
    played: Trajectory,
    discount: Scalar | float,
    trace: Scalar | float,
) -> AdvantageBatch:
    """Probabilities and advantages of what was played, under the normalisation that the update will use."""
    raw = jax.tree.map(
        lambda seen, last: jnp.concatenate([seen, last[:, None]], 1), played.features, played.last_features
    )
    standardised = normaliser.normalise(raw)
    judged = jax.vmap(jax.vmap(network, in_axes=(0, None)))(standardised, played.preferences)
    inputs, decide = jax.tree.map(lambda leaf: leaf[:, :-1], (standardised, judged.action_dist))
    values = denormalise_values(returns, judged.value)
    values, last_values = values[:, :-1], values[:, -1]
    critics = values.shape[2]
    rewards = played.rewards if critics > 1 else jnp.mean(played.rewards, axis=2, keepdims=True)
    by_critic = jax.vmap(compute_gae, in_axes=(1, 1, 0, None, None), out_axes=1)
    found = jax.vmap(by_critic, in_axes=(0, 0, 0, None, None))(rewards, values, last_values, discount, trace)
    probability = jax.vmap(jax.vmap(lambda how, draw, mask: how.log_prob(draw, mask)))(
        decide, played.raw_action, inputs.action_mask
    )
    return AdvantageBatch(inputs, probability, found, found + values)


def denormalise_values(returns: RunningStats, standard: Array) -> Array:
    """The critic's standardised prediction as a return."""
    spread = jnp.sqrt(jnp.where(returns.count > 0, returns.squares / jnp.maximum(returns.count, 1.0), 1.0))
    return returns.mean + standard * spread
