"""Decisions are drawn as the distribution says, and their probabilities are what SciPy and counting make of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policy.distributions import LOG_SCALE_LIMITS, NUM_PARAMETERS, ActionDistribution, LogitNormal, RawAction

KEY = jax.random.key(3)
ALL = jnp.ones((4, 2), bool)


def fleet(seed: int = 0, devices: int = 4) -> ActionDistribution:
    return ActionDistribution.from_parameters(jax.random.normal(jax.random.key(seed), (devices, NUM_PARAMETERS)))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(location=st.floats(-4, 4), log_scale=st.floats(-2, 1), x=st.floats(-6, 6))
def test_density_is_that_of_a_squashed_normal(location: float, log_scale: float, x: float) -> None:
    choice = 1 / (1 + np.exp(-x))
    # The density of a at sigmoid(x): the normal's at logit(a), times d logit(a) / da = 1 / (a (1 - a)).
    expected = scipy.stats.norm.logpdf(x, location, np.exp(log_scale)) - np.log(choice) - np.log(1 - choice)
    found = LogitNormal(jnp.asarray([location]), jnp.asarray([log_scale])).log_prob(jnp.asarray([x]))
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("location", "log_scale"), [(0.0, 0.0), (2.0, -1.0), (-1.0, 0.5), (3.0, 0.4), (0.0, -3.0)])
def test_entropy_is_the_integral(location: float, log_scale: float) -> None:
    distribution = LogitNormal(jnp.asarray([location]), jnp.asarray([log_scale]))

    def integrand(x: float) -> float:
        density = scipy.stats.norm.pdf(x, location, np.exp(log_scale))
        return -density * float(distribution.log_prob(jnp.asarray([x]))[0])

    wide = 8 * np.exp(log_scale)
    expected, _ = scipy.integrate.quad(integrand, location - wide, location + wide, limit=100)
    assert float(distribution.entropy()[0]) == pytest.approx(expected, abs=2e-3)
    assert float(distribution.entropy()[0]) <= 1e-6  # the uniform distribution has the most, which is 0


def test_modes_come_as_often_as_their_logits_say() -> None:
    distribution = fleet()
    keys = jax.random.split(KEY, 20_000)
    draws = jax.vmap(lambda key: distribution.sample(key, ALL))(keys)
    np.testing.assert_allclose(np.mean(draws.train, axis=0), jax.nn.sigmoid(distribution.mode_logit), atol=0.015)
    # The mean of -log p over draws is the entropy; the fleet's log p is the sum over devices.
    surprise = -jax.vmap(lambda draw: distribution.log_prob(draw, ALL))(draws)
    assert surprise.shape == (20_000, 4)
    assert float(jnp.mean(jnp.sum(surprise, axis=1))) == pytest.approx(float(distribution.entropy(ALL)), abs=0.05)


def may_train(flags: list[bool]) -> jax.Array:
    """The mask of devices that may all serve, and of which these may train."""
    return jnp.stack([jnp.ones(len(flags), bool), jnp.asarray(flags)], axis=-1)


def test_a_device_that_must_train_trains_and_that_is_certain() -> None:
    distribution, mask = fleet(), jnp.asarray([[True, True], [False, True], [True, True], [False, True]])
    draws = jax.vmap(lambda key: distribution.sample(key, mask))(jax.random.split(KEY, 500))
    assert np.all(np.asarray(draws.train)[:, [1, 3]])
    assert not np.all(np.asarray(draws.train)[:, [0, 2]])
    assert np.all(np.asarray(distribution.mode(mask).train)[[1, 3]])
    # Its mode has no probability to learn; its power has, as that of any trainer.
    draw = jax.tree.map(lambda leaf: leaf[0], draws)
    expected = distribution.power.log_prob(draw.power_logit) + distribution.frequency.log_prob(draw.frequency_logit)
    np.testing.assert_allclose(distribution.log_prob(draw, mask)[jnp.asarray([1, 3])], expected[jnp.asarray([1, 3])])
    surprise = -jax.vmap(lambda one: distribution.log_prob(one, mask))(
        jax.vmap(lambda key: distribution.sample(key, mask))(jax.random.split(KEY, 20_000))
    )
    assert float(jnp.mean(jnp.sum(surprise, axis=1))) == pytest.approx(float(distribution.entropy(mask)), abs=0.05)


def test_who_may_not_train_serves_and_that_is_certain() -> None:
    distribution, mask = fleet(), may_train([True, False, True, False])
    keys = jax.random.split(KEY, 500)
    draws = jax.vmap(lambda key: distribution.sample(key, mask))(keys)
    assert not np.any(np.asarray(draws.train)[:, [1, 3]])
    assert not np.any(np.asarray(distribution.mode(mask).train)[[1, 3]])
    # Its mode is no decision: changing its logit changes no probability and no entropy.
    other = ActionDistribution(
        distribution.mode_logit + jnp.asarray([0.0, 9.0, 0.0, -9.0]), distribution.power, distribution.frequency
    )
    draw = jax.tree.map(lambda leaf: leaf[0], draws)
    np.testing.assert_array_equal(other.log_prob(draw, mask), distribution.log_prob(draw, mask))
    assert float(other.entropy(mask)) == pytest.approx(float(distribution.entropy(mask)), abs=1e-5)


def test_power_is_a_decision_of_trainers_alone() -> None:
    distribution = fleet()
    train = jnp.asarray([True, False, True, False])
    one = RawAction(train, jnp.asarray([0.1, 0.2, 0.3, 0.4]), jnp.zeros(4))
    other = RawAction(train, jnp.asarray([0.1, 5.0, 0.3, -5.0]), jnp.zeros(4))
    np.testing.assert_array_equal(distribution.log_prob(one, ALL), distribution.log_prob(other, ALL))
    assert np.array_equal(one.action().power, other.action().power)
    assert np.all(np.asarray(one.action().power)[[1, 3]] == 0)


def test_a_device_s_probability_is_its_own() -> None:
    """By hand for each device, and untouched by what the others are told or decide."""
    distribution, mask = fleet(), may_train([True, True, True, False])
    draw = RawAction(
        jnp.asarray([True, False, True, False]), jnp.asarray([0.3, 0.0, -1.0, 0.0]), jnp.asarray([0.5, -0.5, 2.0, 0.0])
    )
    found = np.asarray(distribution.log_prob(draw, mask))
    for device in range(4):
        chance = 1 / (1 + np.exp(-float(distribution.mode_logit[device])))
        expected = float(distribution.frequency.log_prob(draw.frequency_logit)[device])
        if mask[device].all():
            expected += np.log(chance if draw.train[device] else 1 - chance)
        if draw.train[device]:
            expected += float(distribution.power.log_prob(draw.power_logit)[device])
        assert found[device] == pytest.approx(expected, abs=1e-5)
    others = RawAction(
        draw.train.at[0].set(False), draw.power_logit.at[0].set(9.0), draw.frequency_logit.at[0].set(9.0)
    )
    np.testing.assert_array_equal(distribution.log_prob(others, mask)[1:], found[1:])


def test_extreme_parameters_stay_finite() -> None:
    parameters = jnp.asarray(
        np.random.default_rng(0).choice([-1e6, -50.0, 0.0, 50.0, 1e6], (64, NUM_PARAMETERS)), float
    )
    distribution = ActionDistribution.from_parameters(parameters)
    everyone = jnp.ones((64, 2), bool)
    draw = distribution.sample(KEY, everyone)
    gradient = jax.grad(lambda p: ActionDistribution.from_parameters(p).log_prob(draw, everyone).sum())(parameters)
    for value in (distribution.log_prob(draw, everyone), distribution.entropy(everyone), gradient):
        assert np.all(np.isfinite(np.asarray(value)))
    low, high = LOG_SCALE_LIMITS
    assert np.all(
        (np.asarray(distribution.power.log_scale) >= low) & (np.asarray(distribution.power.log_scale) <= high)
    )
    action = draw.action()
    assert np.all((np.asarray(action.frequency) >= 0) & (np.asarray(action.frequency) <= 1))
