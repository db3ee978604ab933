"""Proximal policy optimisation with a vector critic: one training step of one policy.

A step plays some episodes with the current policy, estimates the advantage of every decision for every objective, and
improves policy and critic on them for a few epochs. Everything is a pure function of a ``Learner``, so a population of
learners is a ``vmap``.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from tandem.feel.env import reset, step
from tandem.feel.state import FleetState
from tandem.feel.system import System
from tandem.feel.types import Array, Objectives, RandomKey, Scalar
from tandem.learn.gae import advantages
from tandem.policy.distribution import Draw
from tandem.policy.inputs import Inputs, network_inputs
from tandem.policy.moments import Moments
from tandem.policy.networks import Network, Preference
from tandem.policy.neural import NeuralPolicy, Normaliser


class Settings(eqx.Module):
    """How to learn. Numbers that may be swept are leaves; what shapes the program is static."""

    learning_rate: Scalar | float = 3e-4
    discount: Scalar | float = 0.99  # gamma
    trace: Scalar | float = 0.95  # lambda of the advantage estimate
    clip: Scalar | float = 0.2  # epsilon
    entropy: Scalar | float = 1e-3
    value_weight: Scalar | float = 0.5
    gradient_limit: Scalar | float = 0.5
    episodes: int = eqx.field(static=True, default=8)  # in each step
    epochs: int = eqx.field(static=True, default=4)
    minibatches: int = eqx.field(static=True, default=4)

    def rounds_per_step(self, system: System) -> int:
        """Environment rounds that one training step of one policy costs."""
        return self.episodes * system.rounds


class Learner(eqx.Module):
    """A policy on its way: everything needed to go on exactly where it stands."""

    network: Network
    optimiser: optax.OptState
    normaliser: Normaliser
    returns: Moments  # of the discounted returns, which the critic predicts in standardised form
    preference: Preference
    key: RandomKey
    steps: Int[Array, ""]

    def policy(self, sampling: bool = False) -> NeuralPolicy:
        """The policy as it is now."""
        return NeuralPolicy(self.network, self.normaliser, self.preference, sampling)


class Experience(eqx.Module):
    """What was seen and done, [samples, ...]."""

    inputs: Inputs  # standardised
    draw: Draw
    log_probability: Float[Array, " samples"]
    advantage: Float[Array, " samples"]  # weighted by the preference
    target: Float[Array, "samples 3"]  # standardised returns


class Report(eqx.Module):
    """What a training step was like."""

    objectives: Objectives  # of the episodes played, mean over rounds
    reward: Objectives
    violation_rate: Scalar
    entropy: Scalar  # by device
    value_error: Scalar
    clipped: Scalar  # share of samples whose ratio left the trust region


def start(network: Network, system: System, preference: Preference, key: RandomKey, settings: Settings) -> Learner:
    """A learner that has not played yet."""
    inputs = network_inputs(system, reset(system, key))
    weights = eqx.filter(network, eqx.is_inexact_array)
    return Learner(
        network=network,
        optimiser=_adam(settings).init(weights),
        normaliser=Normaliser.unseen(inputs),
        returns=Moments.unseen(3),
        preference=preference,
        key=key,
        steps=jnp.zeros((), jnp.int32),
    )


def train_step(system: System, learner: Learner, settings: Settings) -> tuple[Learner, Report]:
    """Play, estimate, improve."""
    play_key, shuffle_key, next_key = jax.random.split(learner.key, 3)
    played = _play(system, learner, settings, play_key)
    normaliser = learner.normaliser.with_seen(played.inputs)
    learner = eqx.tree_at(lambda one: one.normaliser, learner, normaliser)
    experience, returns = _experience(learner, played, settings)
    network, optimiser, entropy, value_error, clipped = _improve(learner, experience, settings, shuffle_key)
    report = Report(
        objectives=jnp.mean(played.objectives, axis=(0, 1)),
        reward=jnp.mean(played.rewards, axis=(0, 1)),
        violation_rate=jnp.mean(played.violated),
        entropy=entropy / system.size,
        value_error=value_error,
        clipped=clipped,
    )
    return (
        Learner(network, optimiser, normaliser, returns, learner.preference, next_key, learner.steps + 1),
        report,
    )


class Played(eqx.Module):
    """Episodes as they went, [episodes, rounds, ...]."""

    inputs: Inputs  # raw
    last_inputs: Inputs  # [episodes, ...], after the last round
    draw: Draw
    rewards: Float[Array, "episodes rounds 3"]
    objectives: Float[Array, "episodes rounds 3"]
    violated: Float[Array, "episodes rounds"]


def _play(system: System, learner: Learner, settings: Settings, key: RandomKey) -> Played:
    policy = learner.policy()

    def one_round(carry: tuple[FleetState, RandomKey], _: None) -> tuple[tuple[FleetState, RandomKey], Any]:
        state, draw_key = carry
        inputs = network_inputs(system, state)
        draw = policy.judge(inputs).decide.sample(jax.random.fold_in(draw_key, state.round), inputs.may_train)
        after, outcome = step(system, state, draw.action())
        seen = (inputs, draw, outcome.reward, outcome.objectives, outcome.violations.any().astype(float))
        return (after, draw_key), seen

    def episode(episode_key: RandomKey) -> Played:
        fleet_key, draw_key = jax.random.split(episode_key)
        (last, _), seen = jax.lax.scan(one_round, (reset(system, fleet_key), draw_key), None, length=system.rounds)
        inputs, draw, rewards, objectives, violated = seen
        return Played(inputs, network_inputs(system, last), draw, rewards, objectives, violated)

    return jax.vmap(episode)(jax.random.split(key, settings.episodes))


def _experience(learner: Learner, played: Played, settings: Settings) -> tuple[Experience, Moments]:
    """Advantages and targets of what was played, judged with the normalisation the update will use."""
    policy = learner.policy()
    inputs = jax.vmap(jax.vmap(policy.normaliser.standardised))(played.inputs)
    last_inputs = jax.vmap(policy.normaliser.standardised)(played.last_inputs)
    judged = jax.vmap(jax.vmap(lambda one: policy.network(one, policy.preference)))(inputs)
    last = jax.vmap(lambda one: policy.network(one, policy.preference).values)(last_inputs)
    values, last_value = _expected(learner.returns, judged.values), _expected(learner.returns, last)
    estimate = jax.vmap(advantages, in_axes=(0, 0, 0, None, None))(
        played.rewards, values, last_value, settings.discount, settings.trace
    )
    targets = estimate + values
    returns = learner.returns.with_seen(targets)
    # Each objective's advantages on the same scale before they are weighed: or joules would outvote accuracy.
    spread = jnp.std(estimate, axis=(0, 1)) + 1e-8
    scalar = jnp.sum(learner.preference * (estimate - jnp.mean(estimate, axis=(0, 1))) / spread, axis=-1)
    scalar = (scalar - jnp.mean(scalar)) / (jnp.std(scalar) + 1e-8)
    probability = jax.vmap(jax.vmap(lambda how, draw, mask: how.log_probability(draw, mask)))(
        judged.decide, played.draw, inputs.may_train
    )
    flat = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]),
        Experience(inputs, played.draw, probability, scalar, returns.standardised(targets)),
    )
    return flat, returns


def _expected(returns: Moments, standard: Array) -> Array:
    """The critic's standardised prediction as a return."""
    spread = jnp.sqrt(jnp.where(returns.count > 0, returns.squares / jnp.maximum(returns.count, 1.0), 1.0))
    return returns.mean + standard * spread


def clipped_objective(ratio: Array, advantage: Array, clip: Scalar | float) -> Array:
    """min(r A, clip(r, 1 - eps, 1 + eps) A)."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def _loss(network: Network, batch: Experience, preference: Preference, settings: Settings) -> tuple[Scalar, Array]:
    judged = jax.vmap(lambda one: network(one, preference))(batch.inputs)
    probability = jax.vmap(lambda how, draw, mask: how.log_probability(draw, mask))(
        judged.decide, batch.draw, batch.inputs.may_train
    )
    ratio = jnp.exp(jnp.clip(probability - batch.log_probability, -20.0, 20.0))
    gain = jnp.mean(clipped_objective(ratio, batch.advantage, settings.clip))
    entropy = jnp.mean(jax.vmap(lambda how, mask: how.entropy(mask))(judged.decide, batch.inputs.may_train))
    value_error = jnp.mean((judged.values - batch.target) ** 2)
    clipped = jnp.mean(jnp.abs(ratio - 1) > settings.clip)
    loss = -gain - settings.entropy * entropy + settings.value_weight * value_error
    return loss, jnp.stack([entropy, value_error, clipped])


def _improve(
    learner: Learner, experience: Experience, settings: Settings, key: RandomKey
) -> tuple[Network, optax.OptState, Scalar, Scalar, Scalar]:
    samples = experience.advantage.shape[0]
    weights, shape = eqx.partition(learner.network, eqx.is_inexact_array)
    adam = _adam(settings)

    def minibatch(carry: tuple[Network, optax.OptState], chosen: Array) -> tuple[tuple[Network, optax.OptState], Array]:
        weights, state = carry
        batch = jax.tree.map(lambda leaf: leaf[chosen], experience)
        gradient, seen = jax.grad(
            lambda w: _loss(eqx.combine(w, shape), batch, learner.preference, settings), has_aux=True
        )(weights)
        change, state = adam.update(gradient, state, weights)
        return (eqx.apply_updates(weights, change), state), seen

    orders = jax.vmap(lambda one: jax.random.permutation(one, samples))(jax.random.split(key, settings.epochs))
    batches = orders.reshape(settings.epochs * settings.minibatches, samples // settings.minibatches)
    (weights, state), seen = jax.lax.scan(minibatch, (weights, learner.optimiser), batches)
    entropy, value_error, clipped = jnp.mean(seen, axis=0)
    return eqx.combine(weights, shape), state, entropy, value_error, clipped


def _adam(settings: Settings) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(settings.gradient_limit), optax.adam(settings.learning_rate, eps=1e-5))
