"""Proximal policy optimisation (PPO) with a vector critic: one training step of one policy.

A step simulates episodes with the current policy, estimates the advantage of every action for every objective, and
updates policy and critic for a few epochs. All functions are pure functions of a ``TrainState``, so that a population
is trained by ``vmap``.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from tandem.feel.environment import Environment
from tandem.feel.types import Array, Objectives, RandomKey, Scalar
from tandem.learn.config import PPOConfig
from tandem.learn.ppo.data_parallel import NO_SHARDING, DataParallel
from tandem.learn.ppo.optim import Weights, flatten_weights, init_optimiser, make_optimiser
from tandem.learn.ppo.rollout import AdvantageBatch, Batch, Trajectory, collect_trajectories, compute_advantages
from tandem.learn.ppo.surrogate import Surrogate, clipped_objective
from tandem.policy.features import extract_features
from tandem.policy.networks import ActorCritic, Preference
from tandem.policy.neural_policy import NeuralPolicy, ObservationNormaliser, Sampling
from tandem.policy.running_stats import RunningStats

MAX_LOG_RATIO = 20.0  # of probabilities, so that a ratio is never infinite


class TrainState(eqx.Module):
    """A policy in training, with everything needed to continue it exactly."""

    network: ActorCritic
    optimiser: optax.OptState
    normaliser: ObservationNormaliser
    returns: RunningStats  # of the discounted returns, which the critic predicts in normalised form
    surrogate: Surrogate
    preference: Preference
    key: RandomKey
    steps: Int[Array, ""]

    def policy(self, sampling: Sampling = "deterministic") -> NeuralPolicy:
        """Return the current policy."""
        return NeuralPolicy(self.network, self.normaliser, self.preference, sampling)


class TrainingMetrics(eqx.Module):
    """Metrics of training steps. Only PPO has the last three; they are 0 for other algorithms."""

    violation_rate: Scalar
    entropy: Scalar | float = 0.0  # of a device's action
    value_error: Scalar | float = 0.0
    clipped: Scalar | float = 0.0  # share of probability ratios outside the clipping range


class StepResult(eqx.Module):
    """Rewards and metrics of a training step; the episodes are those of the policy before the update."""

    reward: Objectives  # mean over episodes, rounds and devices
    reward_by_episode: Float[Array, "episodes 3"]
    metrics: TrainingMetrics


def init_train_state(
    network: ActorCritic,
    environment: Environment,
    surrogate: Surrogate,
    preference: Preference,
    key: RandomKey,
    config: PPOConfig,
) -> TrainState:
    """Create the state before the first step."""
    features = extract_features(environment, environment.reset(key))
    return TrainState(
        network=network,
        optimiser=init_optimiser(network, config),
        normaliser=ObservationNormaliser.init(features),
        returns=RunningStats.init(3),
        surrogate=surrogate,
        preference=preference,
        key=key,
        steps=jnp.zeros((), jnp.int32),
    )


def train_step(
    environment: Environment, state: TrainState, config: PPOConfig, parallel: DataParallel = NO_SHARDING
) -> tuple[TrainState, StepResult]:
    """Collect trajectories, compute their advantages, and update the policy."""
    config = anneal_entropy(config, state.steps)
    preference_key, rollout_key, shuffle_key, next_key = jax.random.split(state.key, 4)
    preferences = sample_preferences(state, config, preference_key)
    keys = jax.random.split(rollout_key, config.num_envs)
    trajectory = parallel.all_gather(
        collect_trajectories(
            environment,
            state.network,
            state.normaliser,
            *parallel.shard((preferences, keys)),
            config.violation_credit,
        )
    )
    normaliser = state.normaliser.update(trajectory.features)
    own_advantages = compute_advantages(
        state.network, normaliser, state.returns, parallel.shard(trajectory), config.gamma, config.gae_lambda
    )
    advantages = parallel.all_gather(own_advantages)
    returns = state.returns.update(advantages.targets)
    surrogate, batch = make_batch(state.surrogate, returns, trajectory, advantages, config)
    network, optimiser, (entropy, value_error, clipped) = _update(
        state, surrogate, batch, config, shuffle_key, parallel
    )
    result = StepResult(
        reward=jnp.mean(trajectory.rewards, axis=(0, 1, 2)),
        reward_by_episode=jnp.mean(trajectory.rewards, axis=(1, 2)),
        metrics=TrainingMetrics(jnp.mean(trajectory.violated), entropy, value_error, clipped),
    )
    next_state = TrainState(
        network, optimiser, normaliser, returns, state.surrogate, state.preference, next_key, state.steps + 1
    )
    return next_state, result


def anneal_entropy(config: PPOConfig, steps: Int[Array, ""]) -> PPOConfig:
    """Reduce the weight of the entropy to 0 with the learning rate, since entropy biases choices towards the middle."""
    updates = steps * config.update_epochs * config.num_minibatches
    ent_coef = config.ent_coef * jnp.maximum(1 - config.lr_decay * updates, 0.0)
    annealed: PPOConfig = eqx.tree_at(lambda one: one.ent_coef, config, ent_coef)
    return annealed


def sample_preferences(state: TrainState, config: PPOConfig, key: RandomKey) -> Float[Array, "episodes 3"]:
    """Return the preference of each episode: that of the state, or samples of a Dirichlet distribution."""
    if config.dirichlet_alpha is None:
        return jnp.tile(state.preference, (config.num_envs, 1))
    return jax.random.dirichlet(key, jnp.full(3, config.dirichlet_alpha), (config.num_envs,))


def make_batch(
    surrogate: Surrogate, returns: RunningStats, trajectory: Trajectory, advantages: AdvantageBatch, config: PPOConfig
) -> tuple[Surrogate, Batch]:
    """Return the surrogate of this step, and the samples of all episodes along one axis."""
    credited = share_credit(advantages.advantages, config)
    rounds = credited.shape[1]
    surrogate = surrogate.at_step(jnp.mean(trajectory.rewards, axis=(0, 1, 2)), credited)
    columns = surrogate.advantage_columns(credited, trajectory.preferences[:, None, None, :])
    preferences = jnp.repeat(trajectory.preferences[:, None], rounds, axis=1)
    targets = returns.normalise(advantages.targets)
    by_round = Batch(advantages.features, preferences, trajectory.raw_action, advantages.log_prob, columns, targets)
    return surrogate, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), by_round)


def share_credit(advantages: Float[Array, "*when critics 3"], config: PPOConfig) -> Float[Array, "*when deciders 3"]:
    """Return the advantages that each decider is credited with.

    The fleet as one decider has the mean. A device has its own share in full, and ``shared_credit`` of the others'.
    """
    fleet = jnp.mean(advantages, axis=-2, keepdims=True)
    if config.ratio_scope == "fleet" or advantages.shape[-2] == 1:
        return fleet
    own = advantages / advantages.shape[-2]
    return own + config.shared_credit * (fleet - own)


def ppo_loss(
    network: ActorCritic, surrogate: Surrogate, batch: Batch, config: PPOConfig, parallel: DataParallel = NO_SHARDING
) -> tuple[Scalar, Array]:
    """Return the loss of a minibatch, or of this device's part of it, and entropy, value error and clipped share.

    The mean over devices of the gradients of their parts is the gradient of the whole minibatch.
    """
    output = jax.vmap(network)(batch.features, batch.preference)
    masks = batch.features.action_mask
    log_prob = jax.vmap(lambda dist, raw_action, mask: dist.log_prob(raw_action, mask))(
        output.action_dist, batch.raw_action, masks
    )
    log_ratio = log_prob - batch.log_prob
    if config.ratio_scope == "fleet":
        log_ratio = jnp.sum(log_ratio, axis=-1, keepdims=True)
    ratio = jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))[..., None]
    # Minus the advantages of the old policy, so that an unchanged policy has changes of exactly 0.
    change = clipped_objective(ratio, batch.advantages, config.clip_eps) - batch.advantages
    objective = surrogate.objective(parallel.pmean(jnp.mean(jnp.sum(change, axis=1), axis=0)))
    entropy = jnp.mean(jax.vmap(lambda dist, mask: dist.entropy(mask))(output.action_dist, masks))
    value_error = jnp.mean((output.value - batch.target) ** 2)
    clipped = jnp.mean(jnp.abs(ratio - 1) > config.clip_eps)
    loss = -objective - config.ent_coef * entropy + config.vf_coef * value_error
    return loss, jnp.stack([entropy / masks.shape[-1], value_error, clipped])


def _update(
    state: TrainState, surrogate: Surrogate, batch: Batch, config: PPOConfig, key: RandomKey, parallel: DataParallel
) -> tuple[ActorCritic, optax.OptState, Array]:
    samples = batch.log_prob.shape[0]
    weights, to_network = flatten_weights(state.network)
    optimiser = make_optimiser(config)

    def update_minibatch(
        carry: tuple[Weights, optax.OptState], indices: Array
    ) -> tuple[tuple[Weights, optax.OptState], Array]:
        weights, optimiser_state = carry
        minibatch = jax.tree.map(lambda leaf: leaf[parallel.shard(indices)], batch)

        def loss(weights: Weights) -> tuple[Scalar, Array]:
            return ppo_loss(to_network(weights), surrogate, minibatch, config, parallel)

        gradient, metrics = jax.grad(loss, has_aux=True)(weights)
        change, optimiser_state = optimiser.update(parallel.pmean(gradient), optimiser_state)
        return (weights + change, optimiser_state), metrics

    epoch_keys = jax.random.split(key, config.update_epochs)
    orders = jax.vmap(lambda epoch_key: jax.random.permutation(epoch_key, samples))(epoch_keys)
    size = samples // config.num_minibatches
    indices = orders[:, : size * config.num_minibatches].reshape(-1, size)
    (weights, optimiser_state), metrics = jax.lax.scan(update_minibatch, (weights, state.optimiser), indices)
    return to_network(weights), optimiser_state, parallel.pmean(jnp.mean(metrics, axis=0))
