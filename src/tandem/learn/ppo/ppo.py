"""Proximal policy optimisation with a vector critic: one training step of one policy.

A step plays some episodes with the current policy, estimates the advantage of every decision for every objective, and
improves policy and critic on them for a few epochs. Everything is a pure function of a ``Learner``, so a population of
learners is a ``vmap``.
"""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Int

from tandem.feel.env import reset
from tandem.feel.system import System
from tandem.feel.types import Array, Objectives, RandomKey, Scalar
from tandem.learn.ppo.data_parallel import ALONE, Team
from tandem.learn.ppo.rollout import Experience, Judged, Played, judge, play
from tandem.learn.ppo.surrogate import Aim, clipped_objective
from tandem.policy.features import network_inputs
from tandem.policy.networks import Network, Preference
from tandem.policy.neural_policy import NeuralPolicy, Normaliser, Sampling
from tandem.policy.running_stats import Moments

# Whose probability ratio is clipped: each device's, or the paper's, of the whole fleet's decision.
Ratio = Literal["device", "fleet"]
LOWEST_RATE = 0.05  # of the learning rate, where it decays


class Settings(eqx.Module):
    """How to learn. Numbers that may be swept are leaves; what shapes the program is static."""

    learning_rate: Scalar | float = 1e-3
    discount: Scalar | float = 0.99  # gamma
    trace: Scalar | float = 0.95  # lambda of the advantage estimate
    clip: Scalar | float = 0.2  # epsilon
    entropy: Scalar | float = 1e-3  # weight of a device's entropy
    value_weight: Scalar | float = 0.5
    gradient_limit: Scalar | float = 0.5
    credit: Scalar | float = 1.0  # share of what others gained that a device's decision is credited with
    decay: Scalar | float = 0.0  # share of the learning rate that is lost with every update
    concentration: Scalar | float | None = None  # of the Dirichlet distribution that each episode's preference is from
    episodes: int = eqx.field(static=True, default=8)  # in each step
    epochs: int = eqx.field(static=True, default=4)
    minibatches: int = eqx.field(static=True, default=4)
    ratio: Ratio = eqx.field(static=True, default="device")

    def rounds_per_step(self, system: System) -> int:
        """Environment rounds that one training step of one policy costs."""
        return self.episodes * system.rounds


class Learner(eqx.Module):
    """A policy on its way: everything needed to go on exactly where it stands."""

    network: Network
    optimiser: optax.OptState
    normaliser: Normaliser
    returns: Moments  # of the discounted returns, which the critic predicts in standardised form
    aim: Aim
    preference: Preference
    key: RandomKey
    steps: Int[Array, ""]

    def policy(self, sampling: Sampling = "nothing") -> NeuralPolicy:
        """The policy as it is now."""
        return NeuralPolicy(self.network, self.normaliser, self.preference, sampling)


class Report(eqx.Module):
    """What a training step was like."""

    by_episode: Float[Array, "episodes 3"]  # mean rewards of each
    reward: Objectives
    violation_rate: Scalar
    entropy: Scalar  # by device
    value_error: Scalar
    clipped: Scalar  # share of ratios that left the trust region


def start(
    network: Network, system: System, aim: Aim, preference: Preference, key: RandomKey, settings: Settings
) -> Learner:
    """A learner that has not played yet."""
    inputs = network_inputs(system, reset(system, key))
    return Learner(
        network=network,
        optimiser=fresh_optimiser(network, settings),
        normaliser=Normaliser.unseen(inputs),
        returns=Moments.unseen(3),
        aim=aim,
        preference=preference,
        key=key,
        steps=jnp.zeros((), jnp.int32),
    )


def fresh_optimiser(network: Network, settings: Settings) -> optax.OptState:
    """The state of an optimiser that has not made a step."""
    vector, _ = ravel_pytree(eqx.filter(network, eqx.is_inexact_array))
    return _adam(settings).init(vector)


def train_step(system: System, learner: Learner, settings: Settings, team: Team = ALONE) -> tuple[Learner, Report]:
    """Play, judge, improve; as one of a team, the same step as its others."""
    settings = _with_entropy_left(settings, learner.steps)
    preference_key, play_key, shuffle_key, next_key = jax.random.split(learner.key, 4)
    preferences = _preferences(learner, settings, preference_key)
    keys = jax.random.split(play_key, settings.episodes)
    played = team.together(play(system, learner.network, learner.normaliser, *team.own((preferences, keys))))
    normaliser = learner.normaliser.with_seen(played.inputs)
    own = judge(learner.network, normaliser, learner.returns, team.own(played), settings.discount, settings.trace)
    judged = team.together(own)
    returns = learner.returns.with_seen(judged.targets)
    aim, experience = _experience(learner.aim, returns, played, judged, settings)
    network, optimiser, seen = _improve(learner, aim, experience, settings, shuffle_key, team)
    entropy, value_error, clipped = seen
    report = Report(
        by_episode=jnp.mean(played.rewards, axis=(1, 2)),
        reward=jnp.mean(played.rewards, axis=(0, 1, 2)),
        violation_rate=jnp.mean(played.violated),
        entropy=entropy,
        value_error=value_error,
        clipped=clipped,
    )
    after = Learner(
        network, optimiser, normaliser, returns, learner.aim, learner.preference, next_key, learner.steps + 1
    )
    return after, report


def _with_entropy_left(settings: Settings, steps: Int[Array, ""]) -> Settings:
    """The weight of entropy falls with the learning rate, to 0: it draws choices to the middle."""
    updates = steps * settings.epochs * settings.minibatches
    left = settings.entropy * jnp.maximum(1 - settings.decay * updates, 0.0)
    lessened: Settings = eqx.tree_at(lambda one: one.entropy, settings, left)
    return lessened


def _preferences(learner: Learner, settings: Settings, key: RandomKey) -> Float[Array, "episodes 3"]:
    if settings.concentration is None:
        return jnp.tile(learner.preference, (settings.episodes, 1))
    return jax.random.dirichlet(key, jnp.full(3, settings.concentration), (settings.episodes,))


def _experience(
    aim: Aim, returns: Moments, played: Played, judged: Judged, settings: Settings
) -> tuple[Aim, Experience]:
    credited = _credited(judged.advantages, settings)
    rounds = credited.shape[1]
    aim = aim.prepared(jnp.mean(played.rewards, axis=(0, 1, 2)), credited)
    columns = aim.columns(credited, played.preferences[:, None, None, :])
    preferences = jnp.repeat(played.preferences[:, None], rounds, axis=1)
    targets = returns.standardised(judged.targets)
    by_round = Experience(judged.inputs, preferences, played.draw, judged.log_probability, columns, targets)
    return aim, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), by_round)


def _credited(found: Float[Array, "*when critics 3"], settings: Settings) -> Float[Array, "*when deciders 3"]:
    """The advantages of each decider's part: of the fleet as a whole, or of a device with its own share in full."""
    fleet = jnp.mean(found, axis=-2, keepdims=True)
    if settings.ratio == "fleet" or found.shape[-2] == 1:
        return fleet
    own = found / found.shape[-2]
    return own + settings.credit * (fleet - own)


def _loss(
    network: Network, aim: Aim, batch: Experience, settings: Settings, team: Team = ALONE
) -> tuple[Scalar, Array]:
    """Of this device's part of a minibatch: the mean over the team of its gradient is the gradient of the whole."""
    judged = jax.vmap(network)(batch.inputs, batch.preference)
    masks = batch.inputs.may_train
    probability = jax.vmap(lambda how, draw, mask: how.log_probability(draw, mask))(judged.decide, batch.draw, masks)
    difference = probability - batch.log_probability
    if settings.ratio == "fleet":
        difference = jnp.sum(difference, axis=-1, keepdims=True)
    ratio = jnp.exp(jnp.clip(difference, -20.0, 20.0))[..., None]
    # Less what the old policy is credited with, so that no change is exactly no change.
    change = clipped_objective(ratio, batch.columns, settings.clip) - batch.columns
    gain = aim.gain(team.mean(jnp.mean(jnp.sum(change, axis=1), axis=0)))
    entropy = jnp.mean(jax.vmap(lambda how, mask: how.entropy(mask))(judged.decide, masks))
    value_error = jnp.mean((judged.values - batch.target) ** 2)
    clipped = jnp.mean(jnp.abs(ratio - 1) > settings.clip)
    loss = -gain - settings.entropy * entropy + settings.value_weight * value_error
    return loss, jnp.stack([entropy / masks.shape[-1], value_error, clipped])


def _improve(
    learner: Learner, aim: Aim, experience: Experience, settings: Settings, key: RandomKey, team: Team
) -> tuple[Network, optax.OptState, Array]:
    samples = experience.log_probability.shape[0]
    weights, shape = eqx.partition(learner.network, eqx.is_inexact_array)
    # One vector instead of many small arrays: it compiles faster, and a team exchanges it in one go.
    vector, unflatten = ravel_pytree(weights)
    adam = _adam(settings)

    def minibatch(carry: tuple[Array, optax.OptState], chosen: Array) -> tuple[tuple[Array, optax.OptState], Array]:
        vector, state = carry
        batch = jax.tree.map(lambda leaf: leaf[team.own(chosen)], experience)

        def loss(vector: Array) -> tuple[Scalar, Array]:
            return _loss(eqx.combine(unflatten(vector), shape), aim, batch, settings, team)

        gradient, seen = jax.grad(loss, has_aux=True)(vector)
        change, state = adam.update(team.mean(gradient), state)
        return (vector + change, state), seen

    orders = jax.vmap(lambda one: jax.random.permutation(one, samples))(jax.random.split(key, settings.epochs))
    size = samples // settings.minibatches
    batches = orders[:, : size * settings.minibatches].reshape(-1, size)
    (vector, state), seen = jax.lax.scan(minibatch, (vector, learner.optimiser), batches)
    return eqx.combine(unflatten(vector), shape), state, team.mean(jnp.mean(seen, axis=0))


def _adam(settings: Settings) -> optax.GradientTransformation:
    def rate(updates: Array) -> Array:
        return settings.learning_rate * jnp.maximum(1 - settings.decay * updates, LOWEST_RATE)

    return optax.chain(optax.clip_by_global_norm(settings.gradient_limit), optax.adam(rate, eps=1e-5))
