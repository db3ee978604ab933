"""The learner's parts against plain calculations, and the whole against what it promises."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tandem.feel import System, build_system
from tandem.learn import Learner, Settings, advantages, start, train_step
from tandem.learn.ppo import Experience, _loss, clipped_objective
from tandem.policy import NETWORKS, FleetNetwork
from tandem.policy.inputs import CONSTANTS, Inputs
from tandem.runs import simulate
from tandem.scenario import load_scenario

KEY = jax.random.key(11)
EQUAL = jnp.full(3, 1 / 3)


@pytest.fixture(scope="module")
def small() -> System:
    return build_system(load_scenario("paper", {"fleet.size": 4, "rounds": 20}))


def learner(system: System, settings: Settings, preference: jax.Array = EQUAL, key: jax.Array = KEY) -> Learner:
    return start(FleetNetwork.create(system, key), system, preference, key, settings)


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
    found = advantages(*(jnp.asarray(a, float) for a in (rewards, values, last)), discount, trace)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_time_running_out_is_no_end() -> None:
    """With a perfect critic of an endless stream of rewards no decision has an advantage, the last one included."""
    rewards, value = jnp.ones((30, 3)), jnp.full(3, 1 / (1 - 0.9))
    found = advantages(rewards, jnp.tile(value, (30, 1)), value, 0.9, 0.95)
    np.testing.assert_allclose(found, 0.0, atol=1e-4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 2.0, 2.4), (0.5, 2.0, 1.0), (1.5, -2.0, -3.0), (0.5, -2.0, -1.6), (1.1, 1.0, 1.1)],
)
def test_the_clipped_objective_by_hand(ratio: float, advantage: float, expected: float) -> None:
    # eps = 0.2. A good decision made likelier counts up to 1.2; a bad one made rarer, down to 0.8; regrets count fully.
    assert float(clipped_objective(jnp.asarray(ratio), jnp.asarray(advantage), 0.2)) == pytest.approx(expected)


def test_the_gradient_of_the_loss_agrees_with_differences(small: System) -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        samples, devices = 6, 4
        network = FleetNetwork.create(build_system(load_scenario("paper", {"fleet.size": 4})), KEY)
        network = jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if eqx.is_inexact_array(leaf) else leaf, network)
        inputs = Inputs(
            jnp.asarray(rng.normal(size=(samples, devices, 10))),
            jnp.asarray(rng.normal(size=(samples, devices, CONSTANTS))),
            jnp.asarray(rng.normal(size=(samples, 1))),
            jnp.asarray(rng.random((samples, devices)) < 0.8),
        )
        judged = jax.vmap(lambda one: network(one, EQUAL))(inputs)
        draws = jax.vmap(lambda how, key, mask: how.sample(key, mask))(
            judged.decide, jax.random.split(KEY, samples), inputs.may_train
        )
        old = jax.vmap(lambda how, draw, mask: how.log_probability(draw, mask))(judged.decide, draws, inputs.may_train)
        # Old probabilities a little off, so that the ratios are not all 1, some of them clipped.
        old = old + jnp.asarray([0.0, 0.1, -0.1, 0.5, -0.5, 0.05])
        advantage, target = jnp.asarray(rng.normal(size=samples)), jnp.asarray(rng.normal(size=(samples, 3)))
        batch = Experience(inputs, draws, old, advantage, target)
        weights, shape = eqx.partition(network, eqx.is_inexact_array)
        flat, unflatten = jax.flatten_util.ravel_pytree(weights)

        def loss(vector: jax.Array) -> jax.Array:
            return _loss(eqx.combine(unflatten(vector), shape), batch, EQUAL, Settings(entropy=0.01))[0]

        gradient = jax.grad(loss)(flat)
        for _ in range(5):
            direction = jnp.asarray(rng.normal(size=flat.shape)) / np.sqrt(flat.size)
            difference = (loss(flat + 1e-5 * direction) - loss(flat - 1e-5 * direction)) / 2e-5
            assert float(gradient @ direction) == pytest.approx(float(difference), rel=1e-4, abs=1e-8)


def test_a_step_counts_its_rounds(small: System) -> None:
    assert Settings(episodes=3).rounds_per_step(small) == 60


def test_a_population_learns_as_its_members_would_alone(small: System) -> None:
    settings = Settings(episodes=2, epochs=2, minibatches=2)
    preferences = jnp.asarray([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    members = [learner(small, settings, w, jax.random.key(n)) for n, w in enumerate(preferences)]
    parts = [eqx.partition(member, eqx.is_array) for member in members]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(arrays for arrays, _ in parts))

    def one(arrays: Learner) -> Learner:
        return eqx.filter(train_step(small, eqx.combine(arrays, parts[0][1]), settings)[0], eqx.is_array)

    stepped = jax.jit(jax.vmap(one))(together)
    alone = eqx.filter_jit(train_step)(small, members[1], settings)[0]
    for many, single in zip(
        jax.tree.leaves(stepped.network), jax.tree.leaves(eqx.filter(alone.network, eqx.is_array)), strict=True
    ):
        np.testing.assert_allclose(many[1], single, rtol=2e-2, atol=2e-4)


def test_the_same_key_learns_the_same(small: System) -> None:
    settings = Settings(episodes=2, epochs=2, minibatches=2)
    step = eqx.filter_jit(train_step)
    once, again = (step(small, learner(small, settings), settings)[0] for _ in range(2))
    for one, other in zip(jax.tree.leaves(once.network), jax.tree.leaves(again.network), strict=True):
        np.testing.assert_array_equal(one, other)
    other_key = step(small, learner(small, settings, key=jax.random.key(5)), settings)[0]
    assert any(
        np.any(np.asarray(a) != np.asarray(b))
        for a, b in zip(jax.tree.leaves(once.network), jax.tree.leaves(other_key.network), strict=True)
        if eqx.is_inexact_array(a)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_learning_follows_the_preference(name: str, small: System) -> None:
    """A few dozen steps for energy alone must save energy; for accuracy alone, gain accuracy."""
    settings = Settings(learning_rate=2e-3, episodes=8, epochs=4, minibatches=4)
    step = eqx.filter_jit(train_step)
    reached = {}
    for goal, preference in (("accuracy", [0.98, 0.01, 0.01]), ("energy", [0.01, 0.01, 0.98])):
        now = start(NETWORKS[name].create(small, KEY), small, jnp.asarray(preference), KEY, settings)
        for _ in range(40):
            now, report = step(small, now, settings)
            assert float(report.violation_rate) == 0
        reached[goal] = simulate(small, now.policy(), range(16)).objectives.mean(axis=0)
    fresh = start(NETWORKS[name].create(small, KEY), small, EQUAL, KEY, settings).policy(sampling=True)
    before = simulate(small, fresh, range(16)).objectives.mean(axis=0)
    assert reached["energy"][2] < 0.3 * before[2]
    assert reached["accuracy"][0] > before[0]
    assert reached["accuracy"][0] > 1.1 * reached["energy"][0]
