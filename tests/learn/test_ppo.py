"""The learner's parts against plain calculations, and the whole against what it promises."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay import replayed

from tandem.feel import System, build_system
from tandem.learn import PPOConfig, ScalarisedSurrogate, TrainState, compute_gae, init_train_state, train_step
from tandem.learn.ppo.population import train_population
from tandem.learn.ppo.ppo import RatioScope, anneal_entropy, make_batch, ppo_loss, sample_preferences, share_credit
from tandem.learn.ppo.rollout import collect_trajectories, compute_advantages
from tandem.learn.ppo.surrogate import clipped_objective
from tandem.policy import NETWORKS, DeepSetActorCritic, MLPActorCritic, RunningStats
from tandem.policy.features import Features
from tandem.runs import simulate
from tandem.scenario import load_scenario
from tandem.tree import tree_index, tree_stack

KEY = jax.random.key(11)
EQUAL = jnp.full(3, 1 / 3)
LITTLE = PPOConfig(num_envs=2, update_epochs=2, num_minibatches=2)
STEP = eqx.filter_jit(train_step)


@pytest.fixture(scope="module")
def small() -> System:
    return build_system(load_scenario("paper", {"fleet.size": 4, "rounds": 20}))


def learner(system: System, settings: PPOConfig, preference: jax.Array = EQUAL, key: jax.Array = KEY) -> TrainState:
    return init_train_state(
        DeepSetActorCritic.init(system, key), system, ScalarisedSurrogate(), preference, key, settings
    )


def test_advantages_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    rewards, values, last = rng.normal(size=(12, 3)), rng.normal(size=(12, 3)), rng.normal(size=3)
    discount, trace = 0.9, 0.8
    expected = np.zeros((12, 3))
    for t in range(12):
        for later in range(t, 12):
            following = values[later + 1] if later < 11 else last
            error = rewards[later] + discount * following - values[later]
            expected[t] += (discount * trace) ** (later - t) * error
    found = compute_gae(*(jnp.asarray(a, float) for a in (rewards, values, last)), discount, trace)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_time_running_out_is_no_end() -> None:
    """With a perfect critic of an endless stream of rewards no decision has an advantage, the last one included."""
    rewards, value = jnp.ones((30, 3)), jnp.full(3, 1 / (1 - 0.9))
    found = compute_gae(rewards, jnp.tile(value, (30, 1)), value, 0.9, 0.95)
    np.testing.assert_allclose(found, 0.0, atol=1e-4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 2.0, 2.4), (0.5, 2.0, 1.0), (1.5, -2.0, -3.0), (0.5, -2.0, -1.6), (1.1, 1.0, 1.1)],
)
def test_the_clipped_objective_by_hand(ratio: float, advantage: float, expected: float) -> None:
    # eps = 0.2. A good decision made likelier counts up to 1.2; a bad one made rarer, down to 0.8; regrets count fully.
    assert float(clipped_objective(jnp.asarray(ratio), jnp.asarray(advantage), 0.2)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [DeepSetActorCritic, MLPActorCritic])
def test_every_critic_judges_its_own_rewards(kind: type, small: System) -> None:
    """The advantages of what was played: a device's by its own rewards and values, or the fleet's by their means."""
    network = kind.init(small, KEY)
    normaliser = init_train_state(network, small, ScalarisedSurrogate(), EQUAL, KEY, LITTLE).normaliser
    keys = jax.random.split(KEY, 2)
    played = eqx.filter_jit(collect_trajectories)(small, network, normaliser, jnp.tile(EQUAL, (2, 1)), keys)
    # Returns seen so far have mean (1, -2, -3) and spread (2, 1, 4): the critic's 0 means the mean.
    returns = RunningStats(jnp.asarray(10.0), jnp.asarray([1.0, -2.0, -3.0]), 10 * jnp.asarray([4.0, 1.0, 16.0]))
    judged = eqx.filter_jit(compute_advantages)(network, normaliser, returns, played, 0.9, 0.8)
    rewards = np.asarray(played.rewards)
    if kind is MLPActorCritic:
        rewards = rewards.mean(axis=2, keepdims=True)
    earned, _ = replayed(small, played, keys)
    np.testing.assert_allclose(np.asarray(played.rewards).mean(axis=2), earned, rtol=1e-4, atol=1e-5)

    @eqx.filter_jit
    def critic(inputs: Features) -> jax.Array:
        return network(normaliser.normalise(inputs), EQUAL).value

    def value(inputs: Features) -> np.ndarray:
        standard = critic(inputs)
        return np.asarray(standard) * [2.0, 1.0, 4.0] + [1.0, -2.0, -3.0]

    for episode in range(2):
        states = [jax.tree.map(lambda leaf, e=episode, t=t: leaf[e, t], played.features) for t in range(20)]
        states.append(jax.tree.map(lambda leaf, e=episode: leaf[e], played.last_features))
        values = [value(inputs) for inputs in states]
        later = np.zeros_like(values[0])
        for t in reversed(range(20)):
            later = rewards[episode, t] + 0.9 * values[t + 1] - values[t] + 0.9 * 0.8 * later
            np.testing.assert_allclose(judged.advantages[episode, t], later, rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(judged.targets[episode, t], later + values[t], rtol=2e-3, atol=2e-3)


def test_a_device_is_credited_with_its_own_share_and_some_of_the_rest() -> None:
    found = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4, 3)), float)
    fleet = found.mean(axis=1, keepdims=True)
    everything = share_credit(found, PPOConfig(shared_credit=1.0))
    np.testing.assert_allclose(everything, jnp.broadcast_to(fleet, found.shape), atol=1e-6)
    np.testing.assert_allclose(share_credit(found, PPOConfig(shared_credit=0.0)), found / 4, atol=1e-6)
    some = share_credit(found, PPOConfig(shared_credit=0.3))
    others = (np.asarray(found).sum(axis=1, keepdims=True) - np.asarray(found)) / 4
    np.testing.assert_allclose(some, found / 4 + 0.3 * others, atol=1e-6)
    np.testing.assert_allclose(share_credit(found, PPOConfig(shared_credit=0.3, ratio_scope="fleet")), fleet, atol=1e-6)


@pytest.mark.parametrize("ratio", ["device", "fleet"])
def test_without_a_change_of_policy_nothing_has_changed(ratio: RatioScope, small: System) -> None:
    """Right after playing, every ratio is 1: the surrogates are exactly 0, whatever the advantages."""
    settings = PPOConfig(num_envs=2, ratio_scope=ratio, ent_coef=0.0, vf_coef=0.0)
    network = DeepSetActorCritic.init(small, KEY)
    normaliser = init_train_state(network, small, ScalarisedSurrogate(), EQUAL, KEY, settings).normaliser
    played = eqx.filter_jit(collect_trajectories)(
        small, network, normaliser, jnp.tile(EQUAL, (2, 1)), jax.random.split(KEY, 2)
    )
    judged = eqx.filter_jit(compute_advantages)(network, normaliser, RunningStats.init(3), played, 0.99, 0.95)
    aim, experience = make_batch(
        ScalarisedSurrogate(), RunningStats.init(3).update(judged.targets), played, judged, settings
    )
    loss, (_, _, clipped) = eqx.filter_jit(ppo_loss)(network, aim, experience, settings)
    assert abs(float(loss)) < 1e-5
    assert float(clipped) == 0
    # The rounds of all episodes are samples, in order, each with the preference of its episode.
    assert experience.log_prob.shape == (40, 4)
    assert experience.advantages.shape == (40, 4 if ratio == "device" else 1, 1)
    np.testing.assert_array_equal(experience.raw_action.train[20:], played.raw_action.train[1])


def test_a_step_counts_its_rounds(small: System) -> None:
    assert PPOConfig(num_envs=3).rounds_per_step(small) == 60


def test_a_population_learns_as_its_members_would_alone(small: System) -> None:
    preferences = jnp.asarray([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    members = [learner(small, LITTLE, w, jax.random.key(n)) for n, w in enumerate(preferences)]
    together, report = eqx.filter_jit(train_population)(small, tree_stack(members), LITTLE)
    for index, one in enumerate(members):
        alone, report_alone = STEP(small, one, LITTLE)
        of_many = tree_index(together, index)
        np.testing.assert_allclose(report.by_episode[index], report_alone.by_episode, rtol=1e-4)
        np.testing.assert_array_equal(of_many.preference, one.preference)
        np.testing.assert_array_equal(jax.random.key_data(of_many.key), jax.random.key_data(alone.key))
        for many, single in zip(jax.tree.leaves(of_many.network), jax.tree.leaves(alone.network), strict=True):
            if eqx.is_array(many):
                np.testing.assert_allclose(many, single, rtol=2e-2, atol=2e-4)


def test_a_step_moves_everything_on(small: System) -> None:
    before = learner(small, LITTLE)
    after, report = STEP(small, before, LITTLE)
    assert int(after.steps) == 1
    assert float(after.returns.count) == 2 * 20 * 4  # a return of every device in every round
    assert float(after.normaliser.fleet.count) == 2 * 20
    assert np.any(jax.random.key_data(after.key) != jax.random.key_data(before.key))
    np.testing.assert_allclose(report.reward, report.by_episode.mean(axis=0), rtol=1e-5)
    assert float(report.violation_rate) == 0  # under the shield
    updates = [leaf for leaf in jax.tree.leaves(after.optimiser) if leaf.dtype == jnp.int32]
    assert {int(count) for count in updates} == {4}  # epochs times minibatches


def test_the_learning_rate_decays_to_a_twentieth(small: System) -> None:
    """With the same start and experience, the step of a nearly decayed optimiser is a twentieth of a fresh one's."""

    def moved(decay: float) -> float:
        settings = PPOConfig(
            learning_rate=1e-4, num_envs=2, update_epochs=1, num_minibatches=1, lr_decay=jnp.asarray(decay)
        )
        before = learner(small, settings)
        late = jax.tree.map(lambda leaf: leaf + 1000 if leaf.dtype == jnp.int32 else leaf, before.optimiser)
        before = eqx.tree_at(lambda one: one.optimiser, before, late)
        after = STEP(small, before, settings)[0]
        pairs = zip(jax.tree.leaves(before.network), jax.tree.leaves(after.network), strict=True)
        return float(sum(jnp.sum(jnp.abs(a - b)) for a, b in pairs if eqx.is_inexact_array(a)))

    assert moved(1 / 1000) == pytest.approx(0.05 * moved(0.0), rel=0.02)


def test_the_weight_of_entropy_falls_with_the_learning_rate() -> None:
    settings = PPOConfig(ent_coef=0.1, lr_decay=1 / 100, update_epochs=2, num_minibatches=5)
    left = [float(anneal_entropy(settings, jnp.asarray(steps)).ent_coef) for steps in (0, 5, 10, 20)]
    assert left == pytest.approx([0.1, 0.05, 0.0, 0.0], abs=1e-6)
    assert float(anneal_entropy(PPOConfig(ent_coef=0.1), jnp.asarray(10**6)).ent_coef) == pytest.approx(0.1)


def test_each_episode_of_a_conditioned_learner_draws_its_preference(small: System) -> None:
    drawn = PPOConfig(num_envs=400, dirichlet_alpha=0.7)
    preferences = np.asarray(sample_preferences(learner(small, drawn), drawn, KEY))
    np.testing.assert_allclose(preferences.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(preferences.mean(axis=0), 1 / 3, atol=0.06)
    # The variance of a component of a symmetric Dirichlet distribution of three.
    np.testing.assert_allclose(preferences.var(axis=0), (2 / 9) / (3 * 0.7 + 1), rtol=0.2)
    fixed = sample_preferences(learner(small, LITTLE, jnp.asarray([0.2, 0.3, 0.5])), LITTLE, KEY)
    np.testing.assert_array_equal(fixed, np.float32([[0.2, 0.3, 0.5]] * 2))


def test_the_same_key_learns_the_same(small: System) -> None:
    once, again = (STEP(small, learner(small, LITTLE), LITTLE)[0] for _ in range(2))
    for one, other in zip(jax.tree.leaves(once.network), jax.tree.leaves(again.network), strict=True):
        np.testing.assert_array_equal(one, other)
    other_key = STEP(small, learner(small, LITTLE, key=jax.random.key(5)), LITTLE)[0]
    assert any(
        np.any(np.asarray(a) != np.asarray(b))
        for a, b in zip(jax.tree.leaves(once.network), jax.tree.leaves(other_key.network), strict=True)
        if eqx.is_inexact_array(a)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_learning_follows_the_preference(name: str, small: System) -> None:
    """A few dozen steps for energy alone must save energy; for accuracy alone, gain accuracy."""
    settings = PPOConfig(learning_rate=2e-3, clip_eps=0.1, ent_coef=0.03, shared_credit=0.3, num_envs=8)
    reached = {}
    for goal, preference in (("accuracy", [0.98, 0.01, 0.01]), ("energy", [0.01, 0.01, 0.98])):
        now = init_train_state(
            NETWORKS[name].init(small, KEY), small, ScalarisedSurrogate(), jnp.asarray(preference), KEY, settings
        )
        for _ in range(60):
            now, report = STEP(small, now, settings)
            assert float(report.violation_rate) == 0
        reached[goal] = simulate(small, now.policy(), range(16)).objectives.mean(axis=0)
    fresh = init_train_state(
        NETWORKS[name].init(small, KEY), small, ScalarisedSurrogate(), EQUAL, KEY, settings
    ).policy(sampling="stochastic")
    before = simulate(small, fresh, range(16)).objectives.mean(axis=0)
    assert reached["energy"][2] < 0.3 * before[2]
    assert reached["accuracy"][0] > before[0]
    assert reached["accuracy"][0] > reached["energy"][0] + 0.02
    assert reached["accuracy"][2] > 2 * reached["energy"][2]  # and neither did what the other was asked for
