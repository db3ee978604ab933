"""The loss of an update against a plain calculation, and its gradient against differences, in double precision."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tandem.feel import build_system
from tandem.learn import BarrierSurrogate, PPOConfig, ScalarisedSurrogate, Surrogate
from tandem.learn.ppo.ppo import RatioScope, ppo_loss
from tandem.learn.ppo.rollout import Batch
from tandem.policy import DeepSetActorCritic, RawAction
from tandem.policy.features import NUM_CONSTANTS, Features
from tandem.scenario import load_scenario

KEY = jax.random.key(11)
LEVEL = (5.0, 0.6, -1.0)  # mean rewards: far from its wall, to be improved, beyond its wall


@pytest.fixture(autouse=True, scope="module")
def double_precision() -> Iterator[None]:
    jax.clear_caches()  # JAX may remember a constant in the other precision
    with jax.enable_x64(True):
        yield
    jax.clear_caches()


def constrained(objective: int = 1, mu: float = 5.0, beta: float = 0.9) -> BarrierSurrogate:
    """To improve one objective where every return of the front lies between 0 and 1."""
    return BarrierSurrogate(
        target=jax.nn.one_hot(objective, 3),
        low=jnp.zeros(3),
        span=jnp.ones(3),
        selected=jnp.full(3, 0.5),
        beta=jnp.asarray(beta),
        mu=jnp.asarray(mu),
        anchored=jnp.zeros(()),
    )


def batch_of(network: DeepSetActorCritic, aim: Surrogate, ratio: RatioScope) -> tuple[Surrogate, Batch]:
    """Six decisions of four devices, with old probabilities a little off: some ratios are not 1, some are clipped."""
    rng = np.random.default_rng(3)
    samples, devices = 6, 4
    inputs = Features(
        jnp.asarray(rng.normal(size=(samples, devices, 10))),
        jnp.asarray(rng.normal(size=(samples, devices, NUM_CONSTANTS))),
        jnp.asarray(rng.normal(size=(samples, 1))),
        jnp.asarray(rng.random((samples, devices)) < 0.8),
    )
    preference = jnp.asarray(rng.dirichlet(np.ones(3), samples))
    judged = jax.vmap(network)(inputs, preference)
    draws = jax.vmap(lambda how, key, mask: how.sample(key, mask))(
        judged.action_dist, jax.random.split(KEY, samples), inputs.action_mask
    )
    old = jax.vmap(lambda how, draw, mask: how.log_prob(draw, mask))(judged.action_dist, draws, inputs.action_mask)
    old = old + jnp.asarray([0.0, 0.1, -0.1, 0.5, -0.5, 0.05])[:, None] + 0.02 * jnp.arange(4)
    found = jnp.asarray(rng.normal(size=(samples, devices, 3)))
    if ratio == "fleet":
        found = found.mean(axis=1, keepdims=True)
    aim = aim.at_step(jnp.asarray(LEVEL), found)
    columns = aim.advantage_columns(found, preference[:, None, :])
    target = jnp.asarray(rng.normal(size=(samples, devices, 3)))
    return aim, Batch(inputs, preference, draws, old, columns, target)


@eqx.filter_jit
def single(
    network: DeepSetActorCritic, inputs: Features, preference: jax.Array, draw: RawAction
) -> tuple[jax.Array, ...]:
    """Of one state: log probabilities by device, entropy, values."""
    judged = network(inputs, preference)
    return (
        judged.action_dist.log_prob(draw, inputs.action_mask),
        judged.action_dist.entropy(inputs.action_mask),
        judged.value,
    )


def by_hand(network: DeepSetActorCritic, aim: Surrogate, batch: Batch, settings: PPOConfig) -> float:
    """The loss, sample by sample and device by device, in plain Python."""
    samples = len(batch.log_prob)
    changes = np.zeros(batch.advantages.shape[-1])
    entropy = error = 0.0
    for s in range(samples):
        inputs, draw = (jax.tree.map(lambda leaf, s=s: leaf[s], part) for part in (batch.features, batch.raw_action))
        probability, uncertainty, values = single(network, inputs, batch.preference[s], draw)
        logs = np.asarray(probability - batch.log_prob[s])
        ratios = [np.exp(logs.sum())] if settings.ratio_scope == "fleet" else list(np.exp(logs))
        for decider, ratio in enumerate(ratios):
            for column, value in enumerate(np.asarray(batch.advantages[s, decider])):
                bounded = min(max(ratio, 1 - settings.clip_eps), 1 + settings.clip_eps)
                changes[column] += (min(ratio * value, bounded * value) - value) / samples
        entropy += float(uncertainty) / samples
        error += float(np.mean((np.asarray(values) - np.asarray(batch.target[s])) ** 2)) / samples
    if isinstance(aim, ScalarisedSurrogate):
        gain = changes[0]
    else:
        assert isinstance(aim, BarrierSurrogate)
        level = np.asarray(LEVEL)
        slack = level + changes - 0.9 * level
        assert slack[2] < 1e-3 < slack[0]  # one held return inside, one beyond its wall
        barriers = [np.log(x) if x > 1e-3 else np.log(1e-3) + (x - 1e-3) / 1e-3 for x in (slack[0], slack[2])]
        gain = (changes[1] + sum(barriers) / 5.0) / np.std(np.asarray(batch.advantages)[..., 1])
    return float(-gain - settings.ent_coef * entropy + settings.vf_coef * error)


@pytest.mark.parametrize("ratio", ["device", "fleet"])
@pytest.mark.parametrize("aim", [ScalarisedSurrogate, constrained])
def test_the_loss_by_hand_and_its_gradient_by_differences(aim: Any, ratio: RatioScope) -> None:
    rng = np.random.default_rng(5)
    network = DeepSetActorCritic.init(build_system(load_scenario("paper", {"fleet.size": 4})), KEY, conditioned=True)
    network = jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if eqx.is_inexact_array(leaf) else leaf, network)
    settings = PPOConfig(ent_coef=0.01, ratio_scope=ratio)
    prepared, batch = batch_of(network, aim(), ratio)
    weights, shape = eqx.partition(network, eqx.is_inexact_array)
    flat, unflatten = jax.flatten_util.ravel_pytree(weights)

    @jax.jit
    def loss(vector: jax.Array) -> jax.Array:
        return ppo_loss(eqx.combine(unflatten(vector), shape), prepared, batch, settings)[0]

    assert float(loss(flat)) == pytest.approx(by_hand(network, prepared, batch, settings), rel=1e-7)
    gradient = jax.grad(loss)(flat)
    for _ in range(5):
        direction = jnp.asarray(rng.normal(size=flat.shape)) / np.sqrt(flat.size)
        difference = (loss(flat + 1e-5 * direction) - loss(flat - 1e-5 * direction)) / 2e-5
        assert float(gradient @ direction) == pytest.approx(float(difference), rel=1e-4, abs=1e-8)
