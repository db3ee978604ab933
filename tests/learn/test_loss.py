"""The loss of an update against a plain calculation, and its gradient against differences, in double precision."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_config import make_ppo_config

from tandem.feel import Environment, build_system
from tandem.feel.observation import NUM_CONSTANTS
from tandem.learn.config import PPOConfig, RatioScope
from tandem.learn.ppo.ppo import ppo_loss
from tandem.learn.ppo.rollout import Batch
from tandem.learn.ppo.surrogate import BarrierSurrogate, ScalarisedSurrogate, Surrogate
from tandem.policy import DeepSetActorCritic, RawAction
from tandem.policy.features import Features
from tandem.scenario import load_scenario

KEY = jax.random.key(11)
REWARD = (5.0, 0.6, -1.0)  # mean rewards: far above its threshold, to be improved, below its threshold


@pytest.fixture(autouse=True, scope="module")
def double_precision() -> Iterator[None]:
    jax.clear_caches()  # JAX may remember a constant in the other precision
    with jax.enable_x64(True):
        yield
    jax.clear_caches()


def barrier(objective: int = 1, mu: float = 5.0, beta: float = 0.9) -> BarrierSurrogate:
    """A surrogate that improves one objective, with all returns of the front between 0 and 1."""
    return BarrierSurrogate(
        target=jax.nn.one_hot(objective, 3),
        low=jnp.zeros(3),
        span=jnp.ones(3),
        selected=jnp.full(3, 0.5),
        beta=jnp.asarray(beta),
        mu=jnp.asarray(mu),
        anchored=jnp.zeros(()),
    )


def make_batch(network: DeepSetActorCritic, surrogate: Surrogate, ratio: RatioScope) -> tuple[Surrogate, Batch]:
    """Six actions of four devices, with changed probabilities: some ratios are not 1, some are clipped."""
    rng = np.random.default_rng(3)
    samples, devices = 6, 4
    features = Features(
        jnp.asarray(rng.normal(size=(samples, devices, 10))),
        jnp.asarray(rng.normal(size=(samples, devices, NUM_CONSTANTS))),
        jnp.asarray(rng.normal(size=(samples, 1))),
        jnp.asarray(rng.random((samples, devices)) < 0.8),
    )
    preference = jnp.asarray(rng.dirichlet(np.ones(3), samples))
    keys = jax.random.split(KEY, samples)
    raw_action, log_prob = eqx.filter_jit(jax.vmap(sample_action, in_axes=(None, 0, 0, 0)))(
        network, features, preference, keys
    )
    log_prob = log_prob + jnp.asarray([0.0, 0.1, -0.1, 0.5, -0.5, 0.05])[:, None] + 0.02 * jnp.arange(4)
    advantages = jnp.asarray(rng.normal(size=(samples, devices, 3)))
    if ratio == "fleet":
        advantages = advantages.mean(axis=1, keepdims=True)
    surrogate = surrogate.at_step(jnp.asarray(REWARD), advantages)
    columns = surrogate.advantage_columns(advantages, preference[:, None, :])
    target = jnp.asarray(rng.normal(size=(samples, devices, 3)))
    return surrogate, Batch(features, preference, raw_action, log_prob, columns, target)


def sample_action(
    network: DeepSetActorCritic, features: Features, preference: jax.Array, key: jax.Array
) -> tuple[RawAction, jax.Array]:
    dist = network(features, preference).action_dist
    raw_action = dist.sample(key, features.action_mask)
    return raw_action, dist.log_prob(raw_action, features.action_mask)


@eqx.filter_jit
def forward(
    network: DeepSetActorCritic, features: Features, preference: jax.Array, raw_action: RawAction
) -> tuple[jax.Array, ...]:
    """Log probability of each device, entropy and values of one state."""
    output = network(features, preference)
    dist, mask = output.action_dist, features.action_mask
    return dist.log_prob(raw_action, mask), dist.entropy(mask), output.value


def plain_loss(network: DeepSetActorCritic, surrogate: Surrogate, batch: Batch, config: PPOConfig) -> float:
    """The loss in plain Python, sample by sample and device by device."""
    samples = len(batch.log_prob)
    changes = np.zeros(batch.advantages.shape[-1])
    entropy = error = 0.0
    for s in range(samples):
        features, action = (
            jax.tree.map(lambda leaf, s=s: leaf[s], part) for part in (batch.features, batch.raw_action)
        )
        log_prob, sample_entropy, values = forward(network, features, batch.preference[s], action)
        logs = np.asarray(log_prob - batch.log_prob[s])
        ratios = [np.exp(logs.sum())] if config.ratio_scope == "fleet" else list(np.exp(logs))
        for decider, ratio in enumerate(ratios):
            for column, value in enumerate(np.asarray(batch.advantages[s, decider])):
                bounded = min(max(ratio, 1 - config.clip_eps), 1 + config.clip_eps)
                changes[column] += (min(ratio * value, bounded * value) - value) / samples
        entropy += float(sample_entropy) / samples
        error += float(np.mean((np.asarray(values) - np.asarray(batch.target[s])) ** 2)) / samples
    if isinstance(surrogate, ScalarisedSurrogate):
        objective = changes[0]
    else:
        assert isinstance(surrogate, BarrierSurrogate)
        reward = np.asarray(REWARD)
        slack = reward + changes - 0.9 * reward
        assert slack[2] < 1e-3 < slack[0]  # one constrained return above its threshold, one below
        barriers = [np.log(x) if x > 1e-3 else np.log(1e-3) + (x - 1e-3) / 1e-3 for x in (slack[0], slack[2])]
        objective = (changes[1] + sum(barriers) / 5.0) / np.std(np.asarray(batch.advantages)[..., 1])
    return float(-objective - config.ent_coef * entropy + config.vf_coef * error)


@pytest.mark.parametrize("ratio", ["device", "fleet"])
@pytest.mark.parametrize("make_surrogate", [ScalarisedSurrogate, barrier])
def test_loss_equals_plain_python_and_gradient_equals_finite_differences(
    make_surrogate: Any, ratio: RatioScope
) -> None:
    rng = np.random.default_rng(5)
    environment = Environment(build_system(load_scenario("paper", {"fleet.size": 4})))
    network = DeepSetActorCritic.init(environment, KEY, conditioned=True, width=16)
    network = jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if eqx.is_inexact_array(leaf) else leaf, network)
    config = make_ppo_config(ent_coef=0.01, ratio_scope=ratio)
    surrogate, batch = make_batch(network, make_surrogate(), ratio)
    weights, shape = eqx.partition(network, eqx.is_inexact_array)
    flat, unflatten = jax.flatten_util.ravel_pytree(weights)

    @jax.jit
    def loss(vector: jax.Array) -> jax.Array:
        return ppo_loss(eqx.combine(unflatten(vector), shape), surrogate, batch, config)[0]

    assert float(loss(flat)) == pytest.approx(plain_loss(network, surrogate, batch, config), rel=1e-7)
    gradient = jax.grad(loss)(flat)
    for _ in range(5):
        direction = jnp.asarray(rng.normal(size=flat.shape)) / np.sqrt(flat.size)
        difference = (loss(flat + 1e-5 * direction) - loss(flat - 1e-5 * direction)) / 2e-5
        assert float(gradient @ direction) == pytest.approx(float(difference), rel=1e-4, abs=1e-8)
