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
from tandem.learn.ppo.data_parallel import NO_SHARDING, DataParallel
from tandem.learn.ppo.rollout import AdvantageBatch, Batch, Trajectory, collect_trajectories, compute_advantages
from tandem.learn.ppo.surrogate import Surrogate, clipped_objective
from tandem.policy.features import extract_features
from tandem.policy.networks import ActorCritic, Preference
from tandem.policy.neural_policy import NeuralPolicy, ObservationNormaliser, Sampling
from tandem.policy.running_stats import RunningStats

# Whose probability ratio is clipped: each device's, or the paper's, of the whole fleet's decision.
RatioScope = Literal["device", "fleet"]
MIN_LR_FRACTION = 0.05  # of the learning rate, where it decays


class PPOConfig(eqx.Module):
    """How to learn. Numbers that may be swept are leaves; what shapes the program is static."""

    learning_rate: Scalar | float = 1e-3
    gamma: Scalar | float = 0.99  # gamma
    gae_lambda: Scalar | float = 0.95  # lambda of the advantage estimate
    clip_eps: Scalar | float = 0.2  # epsilon
    ent_coef: Scalar | float = 1e-3  # weight of a device's entropy
    vf_coef: Scalar | float = 0.5
    max_grad_norm: Scalar | float = 0.5
    shared_credit: Scalar | float = 1.0  # share of what others gained that a device's decision is credited with
    lr_decay: Scalar | float = 0.0  # share of the learning rate that is lost with every update
    dirichlet_alpha: Scalar | float | None = (
        None  # of the Dirichlet distribution that each episode's preference is from
    )
    num_envs: int = eqx.field(static=True, default=8)  # in each step
    update_epochs: int = eqx.field(static=True, default=4)
    num_minibatches: int = eqx.field(static=True, default=4)
    ratio_scope: RatioScope = eqx.field(static=True, default="device")

    def rounds_per_step(self, system: System) -> int:
        """Environment rounds that one training step of one policy costs."""
        return self.num_envs * system.rounds


class TrainState(eqx.Module):
    """A policy on its way: everything needed to go on exactly where it stands."""

    network: ActorCritic
    optimiser: optax.OptState
    normaliser: ObservationNormaliser
    returns: RunningStats  # of the discounted returns, which the critic predicts in standardised form
    surrogate: Surrogate
    preference: Preference
    key: RandomKey
    steps: Int[Array, ""]

    def policy(self, sampling: Sampling = "deterministic") -> NeuralPolicy:
        """The policy as it is now."""
        return NeuralPolicy(self.network, self.normaliser, self.preference, sampling)


class StepMetrics(eqx.Module):
    """What a training step was like."""

    by_episode: Float[Array, "episodes 3"]  # mean rewards of each
    reward: Objectives
    violation_rate: Scalar
    entropy: Scalar  # by device
    value_error: Scalar
    clipped: Scalar  # share of ratios that left the trust region


def init_train_state(
    network: ActorCritic, system: System, aim: Surrogate, preference: Preference, key: RandomKey, settings: PPOConfig
) -> TrainState:
    """A learner that has not played yet."""
    inputs = extract_features(system, reset(system, key))
    return TrainState(
        network=network,
        optimiser=init_optimiser(network, settings),
        normaliser=ObservationNormaliser.init(inputs),
        returns=RunningStats.init(3),
        surrogate=aim,
        preference=preference,
        key=key,
        steps=jnp.zeros((), jnp.int32),
    )


def init_optimiser(network: ActorCritic, settings: PPOConfig) -> optax.OptState:
    """The state of an optimiser that has not made a step."""
    vector, _ = ravel_pytree(eqx.filter(network, eqx.is_inexact_array))
    return _adam(settings).init(vector)


def train_step(
    system: System, learner: TrainState, settings: PPOConfig, team: DataParallel = NO_SHARDING
) -> tuple[TrainState, StepMetrics]:
    """Play, judge, improve; as one of a team, the same step as its others."""
    settings = anneal_entropy(settings, learner.steps)
    preference_key, play_key, shuffle_key, next_key = jax.random.split(learner.key, 4)
    preferences = sample_preferences(learner, settings, preference_key)
    keys = jax.random.split(play_key, settings.num_envs)
    played = team.all_gather(
        collect_trajectories(system, learner.network, learner.normaliser, *team.shard((preferences, keys)))
    )
    normaliser = learner.normaliser.update(played.features)
    own = compute_advantages(
        learner.network, normaliser, learner.returns, team.shard(played), settings.gamma, settings.gae_lambda
    )
    judged = team.all_gather(own)
    returns = learner.returns.update(judged.targets)
    aim, experience = make_batch(learner.surrogate, returns, played, judged, settings)
    network, optimiser, seen = _update(learner, aim, experience, settings, shuffle_key, team)
    entropy, value_error, clipped = seen
    report = StepMetrics(
        by_episode=jnp.mean(played.rewards, axis=(1, 2)),
        reward=jnp.mean(played.rewards, axis=(0, 1, 2)),
        violation_rate=jnp.mean(played.violated),
        entropy=entropy,
        value_error=value_error,
        clipped=clipped,
    )
    after = TrainState(
        network, optimiser, normaliser, returns, learner.surrogate, learner.preference, next_key, learner.steps + 1
    )
    return after, report


def anneal_entropy(settings: PPOConfig, steps: Int[Array, ""]) -> PPOConfig:
    """The weight of entropy falls with the learning rate, to 0: it draws choices to the middle."""
    updates = steps * settings.update_epochs * settings.num_minibatches
    left = settings.ent_coef * jnp.maximum(1 - settings.lr_decay * updates, 0.0)
    lessened: PPOConfig = eqx.tree_at(lambda one: one.ent_coef, settings, left)
    return lessened


def sample_preferences(learner: TrainState, settings: PPOConfig, key: RandomKey) -> Float[Array, "episodes 3"]:
    """The preference of each episode: the learner's own, or a sample of a Dirichlet distribution."""
    if settings.dirichlet_alpha is None:
        return jnp.tile(learner.preference, (settings.num_envs, 1))
    return jax.random.dirichlet(key, jnp.full(3, settings.dirichlet_alpha), (settings.num_envs,))


def make_batch(
    aim: Surrogate, returns: RunningStats, played: Trajectory, judged: AdvantageBatch, settings: PPOConfig
) -> tuple[Surrogate, Batch]:
    """The surrogate of this step, and the samples of all episodes in one row."""
    credited = share_credit(judged.advantages, settings)
    rounds = credited.shape[1]
    aim = aim.at_step(jnp.mean(played.rewards, axis=(0, 1, 2)), credited)
    columns = aim.advantage_columns(credited, played.preferences[:, None, None, :])
    preferences = jnp.repeat(played.preferences[:, None], rounds, axis=1)
    targets = returns.normalise(judged.targets)
    by_round = Batch(judged.features, preferences, played.raw_action, judged.log_prob, columns, targets)
    return aim, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), by_round)


def share_credit(found: Float[Array, "*when critics 3"], settings: PPOConfig) -> Float[Array, "*when deciders 3"]:
    """The advantages of each decider's part: of the fleet as a whole, or of a device with its own share in full."""
    fleet = jnp.mean(found, axis=-2, keepdims=True)
    if settings.ratio_scope == "fleet" or found.shape[-2] == 1:
        return fleet
    own = found / found.shape[-2]
    return own + settings.shared_credit * (fleet - own)


def ppo_loss(
    network: ActorCritic, aim: Surrogate, batch: Batch, settings: PPOConfig, team: DataParallel = NO_SHARDING
) -> tuple[Scalar, Array]:
    """Of this device's part of a minibatch: the mean over the team of its gradient is the gradient of the whole."""
    judged = jax.vmap(network)(batch.features, batch.preference)
    masks = batch.features.action_mask
    probability = jax.vmap(lambda how, draw, mask: how.log_prob(draw, mask))(
        judged.action_dist, batch.raw_action, masks
    )
    difference = probability - batch.log_prob
    if settings.ratio_scope == "fleet":
        difference = jnp.sum(difference, axis=-1, keepdims=True)
    ratio = jnp.exp(jnp.clip(difference, -20.0, 20.0))[..., None]
    # Less what the old policy is credited with, so that no change is exactly no change.
    change = clipped_objective(ratio, batch.advantages, settings.clip_eps) - batch.advantages
    gain = aim.objective(team.pmean(jnp.mean(jnp.sum(change, axis=1), axis=0)))
    entropy = jnp.mean(jax.vmap(lambda how, mask: how.entropy(mask))(judged.action_dist, masks))
    value_error = jnp.mean((judged.value - batch.target) ** 2)
    clipped = jnp.mean(jnp.abs(ratio - 1) > settings.clip_eps)
    loss = -gain - settings.ent_coef * entropy + settings.vf_coef * value_error
    return loss, jnp.stack([entropy / masks.shape[-1], value_error, clipped])


def _update(
    learner: TrainState, aim: Surrogate, experience: Batch, settings: PPOConfig, key: RandomKey, team: DataParallel
) -> tuple[ActorCritic, optax.OptState, Array]:
    samples = experience.log_prob.shape[0]
    weights, shape = eqx.partition(learner.network, eqx.is_inexact_array)
    # One vector instead of many small arrays: it compiles faster, and a team exchanges it in one go.
    vector, unflatten = ravel_pytree(weights)
    adam = _adam(settings)

    def minibatch(carry: tuple[Array, optax.OptState], chosen: Array) -> tuple[tuple[Array, optax.OptState], Array]:
        vector, state = carry
        batch = jax.tree.map(lambda leaf: leaf[team.shard(chosen)], experience)

        def loss(vector: Array) -> tuple[Scalar, Array]:
            return ppo_loss(eqx.combine(unflatten(vector), shape), aim, batch, settings, team)

        gradient, seen = jax.grad(loss, has_aux=True)(vector)
        change, state = adam.update(team.pmean(gradient), state)
        return (vector + change, state), seen

    orders = jax.vmap(lambda one: jax.random.permutation(one, samples))(jax.random.split(key, settings.update_epochs))
    size = samples // settings.num_minibatches
    batches = orders[:, : size * settings.num_minibatches].reshape(-1, size)
    (vector, state), seen = jax.lax.scan(minibatch, (vector, learner.optimiser), batches)
    return eqx.combine(unflatten(vector), shape), state, team.pmean(jnp.mean(seen, axis=0))


def _adam(settings: PPOConfig) -> optax.GradientTransformation:
    def rate(updates: Array) -> Array:
        return settings.learning_rate * jnp.maximum(1 - settings.lr_decay * updates, MIN_LR_FRACTION)

    return optax.chain(optax.clip_by_global_norm(settings.max_grad_norm), optax.adam(rate, eps=1e-5))
