"""The parts of PPO against plain calculations, and the promises of a whole step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_config import make_ppo_config
from replay import replay

from tandem.feel import Environment, build_system
from tandem.learn.config import PPOConfig, RatioScope
from tandem.learn.ppo.gae import compute_gae
from tandem.learn.ppo.population import train_population
from tandem.learn.ppo.ppo import (
    TrainState,
    anneal_entropy,
    init_train_state,
    make_batch,
    ppo_loss,
    sample_preferences,
    share_credit,
    train_step,
)
from tandem.learn.ppo.rollout import Trajectory, collect_trajectories, compute_advantages
from tandem.learn.ppo.surrogate import ScalarisedSurrogate, clipped_objective
from tandem.policy import NETWORKS, DeepSetActorCritic, MLPActorCritic, RunningStats
from tandem.policy.features import Features
from tandem.runs import simulate
from tandem.scenario import load_scenario
from tandem.tree import tree_index, tree_stack

KEY = jax.random.key(11)
EQUAL = jnp.full(3, 1 / 3)
ROUNDS, DEVICES = 20, 4
# Two episodes, and four updates in a step. One compiled program serves all tests that only change numbers.
SMALL = {"num_envs": 2, "update_epochs": 2, "num_minibatches": 2}
STEP = eqx.filter_jit(train_step)
COLLECT = eqx.filter_jit(collect_trajectories)
ADVANTAGES = eqx.filter_jit(compute_advantages)


@pytest.fixture(scope="module")
def small() -> Environment:
    return Environment(build_system(load_scenario("paper", {"fleet.size": DEVICES, "rounds": ROUNDS})))


@eqx.filter_jit
def start(
    environment: Environment, config: PPOConfig, preference: jax.Array = EQUAL, key: jax.Array = KEY
) -> TrainState:
    network = DeepSetActorCritic.init(environment, key)
    return init_train_state(network, environment, ScalarisedSurrogate(), preference, key, config)


def rollout(environment: Environment, state: TrainState) -> tuple[Trajectory, jax.Array]:
    keys = jax.random.split(KEY, 2)
    return COLLECT(environment, state.network, state.normaliser, jnp.tile(EQUAL, (2, 1)), keys), keys


def test_gae_equals_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    rewards, values, last = rng.normal(size=(12, 3)), rng.normal(size=(12, 3)), rng.normal(size=3)
    gamma, gae_lambda = 0.9, 0.8
    expected = np.zeros((12, 3))
    for t in range(12):
        for later in range(t, 12):
            following = values[later + 1] if later < 11 else last
            error = rewards[later] + gamma * following - values[later]
            expected[t] += (gamma * gae_lambda) ** (later - t) * error
    advantages = compute_gae(*(jnp.asarray(a, float) for a in (rewards, values, last)), gamma, gae_lambda)
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)


def test_truncation_is_not_termination() -> None:
    """With a perfect critic of an endless stream of rewards no action has an advantage, the last one included."""
    rewards, value = jnp.ones((30, 3)), jnp.full(3, 1 / (1 - 0.9))
    advantages = compute_gae(rewards, jnp.tile(value, (30, 1)), value, 0.9, 0.95)
    np.testing.assert_allclose(advantages, 0.0, atol=1e-4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 2.0, 2.4), (0.5, 2.0, 1.0), (1.5, -2.0, -3.0), (0.5, -2.0, -1.6), (1.1, 1.0, 1.1)],
)
def test_clipped_objective_worked_examples(ratio: float, advantage: float, expected: float) -> None:
    # eps = 0.2. A better action made more likely counts up to 1.2, a worse one made less likely down to 0.8; changes in
    # the wrong direction count in full.
    assert float(clipped_objective(jnp.asarray(ratio), jnp.asarray(advantage), 0.2)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [DeepSetActorCritic, pytest.param(MLPActorCritic, marks=pytest.mark.slow)])
def test_advantages_of_each_critic_equal_a_plain_loop(kind: type, small: Environment) -> None:
    """Those of a device by its own rewards and values, or those of the fleet by the means over devices."""
    network = kind.init(small, KEY)
    state = init_train_state(network, small, ScalarisedSurrogate(), EQUAL, KEY, make_ppo_config(**SMALL))
    trajectory, keys = rollout(small, state)
    # Returns so far have mean (1, -2, -3) and standard deviation (2, 1, 4): the critic's 0 is the mean.
    returns = RunningStats(jnp.asarray(10.0), jnp.asarray([1.0, -2.0, -3.0]), 10 * jnp.asarray([4.0, 1.0, 16.0]))
    batch = ADVANTAGES(network, state.normaliser, returns, trajectory, 0.9, 0.8)
    rewards = np.asarray(trajectory.rewards)
    earned, _ = replay(small.system, trajectory, keys)
    np.testing.assert_allclose(rewards.mean(axis=2), earned, rtol=1e-4, atol=1e-5)
    if kind is MLPActorCritic:
        rewards = rewards.mean(axis=2, keepdims=True)

    @eqx.filter_jit
    def critic(features: Features) -> jax.Array:
        return jax.vmap(jax.vmap(lambda one: network(state.normaliser.normalise(one), EQUAL).value))(features)

    last = jax.tree.map(lambda leaf: leaf[:, None], trajectory.last_features)
    features = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), trajectory.features, last)
    values = np.asarray(critic(features)) * [2.0, 1.0, 4.0] + [1.0, -2.0, -3.0]
    for episode in range(2):
        later = np.zeros_like(values[0, 0])
        for t in reversed(range(ROUNDS)):
            error = rewards[episode, t] + 0.9 * values[episode, t + 1] - values[episode, t]
            later = error + 0.9 * 0.8 * later
            np.testing.assert_allclose(batch.advantages[episode, t], later, rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(batch.targets[episode, t], later + values[episode, t], rtol=2e-3, atol=2e-3)


def test_shared_credit_of_a_device() -> None:
    advantages = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4, 3)), float)
    fleet = advantages.mean(axis=1, keepdims=True)
    full = share_credit(advantages, make_ppo_config(shared_credit=1.0))
    np.testing.assert_allclose(full, jnp.broadcast_to(fleet, advantages.shape), atol=1e-6)
    np.testing.assert_allclose(share_credit(advantages, make_ppo_config(shared_credit=0.0)), advantages / 4, atol=1e-6)
    some = share_credit(advantages, make_ppo_config(shared_credit=0.3))
    others = (np.asarray(advantages).sum(axis=1, keepdims=True) - np.asarray(advantages)) / 4
    np.testing.assert_allclose(some, advantages / 4 + 0.3 * others, atol=1e-6)
    whole = share_credit(advantages, make_ppo_config(shared_credit=0.3, ratio_scope="fleet"))
    np.testing.assert_allclose(whole, fleet, atol=1e-6)


@pytest.mark.parametrize("ratio", ["device", "fleet"])
def test_an_unchanged_policy_has_no_surrogate_change(ratio: RatioScope, small: Environment) -> None:
    """Before the first update every ratio is 1: the surrogate is exactly 0, whatever the advantages."""
    config = make_ppo_config(num_envs=2, ratio_scope=ratio, ent_coef=0.0, vf_coef=0.0)
    state = start(small, make_ppo_config(**SMALL))
    trajectory, _ = rollout(small, state)
    advantages = ADVANTAGES(state.network, state.normaliser, RunningStats.init(3), trajectory, 0.99, 0.95)
    returns = RunningStats.init(3).update(advantages.targets)
    surrogate, batch = make_batch(ScalarisedSurrogate(), returns, trajectory, advantages, config)
    loss, (_, _, clipped) = eqx.filter_jit(ppo_loss)(state.network, surrogate, batch, config)
    assert abs(float(loss)) < 1e-5
    assert float(clipped) == 0
    # The rounds of all episodes are samples, in order, each with the preference of its episode.
    assert batch.log_prob.shape == (2 * ROUNDS, DEVICES)
    assert batch.advantages.shape == (2 * ROUNDS, DEVICES if ratio == "device" else 1, 1)
    np.testing.assert_array_equal(batch.raw_action.train[ROUNDS:], trajectory.raw_action.train[1])


@pytest.mark.slow
def test_a_population_learns_as_its_members_would_separately(small: Environment) -> None:
    config = make_ppo_config(**SMALL)
    preferences = jnp.asarray([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    members = [start(small, config, preference, jax.random.key(n)) for n, preference in enumerate(preferences)]
    population, results = eqx.filter_jit(train_population)(small, tree_stack(members), config)
    for index, member in enumerate(members):
        single, result = STEP(small, member, config)
        of_many = tree_index(population, index)
        np.testing.assert_allclose(results.reward_by_episode[index], result.reward_by_episode, rtol=1e-4)
        np.testing.assert_array_equal(of_many.preference, member.preference)
        np.testing.assert_array_equal(jax.random.key_data(of_many.key), jax.random.key_data(single.key))
        for many, one in zip(jax.tree.leaves(of_many.network), jax.tree.leaves(single.network), strict=True):
            if eqx.is_array(many):
                np.testing.assert_allclose(many, one, rtol=2e-2, atol=2e-4)


def test_a_step_updates_every_part_of_the_state(small: Environment) -> None:
    config = make_ppo_config(**SMALL)
    assert config.rounds_per_step(small) == 2 * ROUNDS
    before = start(small, config)
    after, result = STEP(small, before, config)
    assert int(after.steps) == 1
    assert float(after.returns.count) == 2 * ROUNDS * DEVICES  # a return of every device in every round
    assert float(after.normaliser.fleet.count) == 2 * ROUNDS
    assert np.any(jax.random.key_data(after.key) != jax.random.key_data(before.key))
    np.testing.assert_allclose(result.reward, result.reward_by_episode.mean(axis=0), rtol=1e-5)
    assert float(result.metrics.violation_rate) == 0  # under the shield
    updates = [leaf for leaf in jax.tree.leaves(after.optimiser) if leaf.dtype == jnp.int32]
    assert {int(count) for count in updates} == {4}  # epochs times minibatches


def test_the_learning_rate_decays_to_a_twentieth(small: Environment) -> None:
    """From the same state, the step of an optimiser at the end of its decay is a twentieth of one without decay."""

    def distance(decay: float) -> float:
        config = make_ppo_config(**SMALL, learning_rate=1e-4, lr_decay=decay)
        before = start(small, config)
        late = jax.tree.map(lambda leaf: leaf + 1000 if leaf.dtype == jnp.int32 else leaf, before.optimiser)
        before = eqx.tree_at(lambda state: state.optimiser, before, late)
        after = STEP(small, before, config)[0]
        pairs = zip(jax.tree.leaves(before.network), jax.tree.leaves(after.network), strict=True)
        return float(sum(jnp.sum(jnp.abs(a - b)) for a, b in pairs if eqx.is_inexact_array(a)))

    assert distance(1 / 1000) == pytest.approx(0.05 * distance(0.0), rel=0.05)


def test_entropy_weight_decays_with_the_learning_rate() -> None:
    config = make_ppo_config(ent_coef=0.1, lr_decay=1 / 100, update_epochs=2, num_minibatches=5)
    weights = [float(anneal_entropy(config, jnp.asarray(steps)).ent_coef) for steps in (0, 5, 10, 20)]
    assert weights == pytest.approx([0.1, 0.05, 0.0, 0.0], abs=1e-6)
    constant = anneal_entropy(make_ppo_config(ent_coef=0.1), jnp.asarray(10**6))
    assert float(constant.ent_coef) == pytest.approx(0.1)


def test_preferences_are_sampled_from_a_dirichlet_distribution_or_fixed(small: Environment) -> None:
    state = start(small, make_ppo_config(**SMALL), jnp.asarray([0.2, 0.3, 0.5]))
    config = make_ppo_config(num_envs=400, dirichlet_alpha=0.7)
    preferences = np.asarray(sample_preferences(state, config, KEY))
    np.testing.assert_allclose(preferences.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(preferences.mean(axis=0), 1 / 3, atol=0.06)
    # The variance of a component of a symmetric Dirichlet distribution of three.
    np.testing.assert_allclose(preferences.var(axis=0), (2 / 9) / (3 * 0.7 + 1), rtol=0.2)
    fixed = sample_preferences(state, make_ppo_config(**SMALL), KEY)
    np.testing.assert_array_equal(fixed, np.float32([[0.2, 0.3, 0.5]] * 2))


def test_a_step_is_a_function_of_its_key(small: Environment) -> None:
    config = make_ppo_config(**SMALL)
    once, again = (STEP(small, start(small, config), config)[0] for _ in range(2))
    for one, other in zip(jax.tree.leaves(once.network), jax.tree.leaves(again.network), strict=True):
        np.testing.assert_array_equal(one, other)
    other_key = STEP(small, start(small, config, key=jax.random.key(5)), config)[0]
    assert any(
        np.any(np.asarray(a) != np.asarray(b))
        for a, b in zip(jax.tree.leaves(once.network), jax.tree.leaves(other_key.network), strict=True)
        if eqx.is_inexact_array(a)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_learning_follows_the_preference(name: str, small: Environment) -> None:
    """A few dozen steps for energy alone must save energy; for accuracy alone, gain accuracy."""
    config = make_ppo_config(learning_rate=2e-3, clip_eps=0.1, ent_coef=0.03, shared_credit=0.3, num_envs=8)
    network = NETWORKS[name].init(small, KEY)

    def init(preference: jax.Array) -> TrainState:
        return init_train_state(network, small, ScalarisedSurrogate(), preference, KEY, config)

    reached = {}
    for objective, preference in (("accuracy", [0.98, 0.01, 0.01]), ("energy", [0.01, 0.01, 0.98])):
        state = init(jnp.asarray(preference))
        for _ in range(60):
            state, result = STEP(small, state, config)
            assert float(result.metrics.violation_rate) == 0
        reached[objective] = simulate(small.system, state.policy(), range(16)).objectives.mean(axis=0)
    before = simulate(small.system, init(EQUAL).policy(sampling="stochastic"), range(16)).objectives.mean(axis=0)
    assert reached["energy"][2] < 0.5 * before[2]  # C3 makes every device train, so it cannot fall to nothing
    assert reached["accuracy"][0] > before[0]
    assert reached["accuracy"][0] > reached["energy"][0] + 0.02
    assert reached["accuracy"][2] > 1.25 * reached["energy"][2]  # and neither followed the other's preference
