"""Networks treat devices alike, fit the fleets they say they fit, and are normalised the same everywhere."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tandem.feel import System, build_system, reset
from tandem.policy import NETWORKS, FleetNetwork, Moments, NeuralPolicy
from tandem.policy.inputs import CONSTANTS, Inputs, network_inputs
from tandem.runs import simulate
from tandem.scenario import load_scenario

KEY = jax.random.key(7)
EQUAL = jnp.full(3, 1 / 3)


def loud(network: eqx.Module) -> eqx.Module:
    """The network with opinions: fresh ones are nearly silent, and silence is symmetric by itself."""
    arrays, rest = eqx.partition(network, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda leaf: 3 * leaf + 0.1 * jax.random.normal(KEY, leaf.shape), arrays), rest)


def random_inputs(devices: int, features: int = 10, seed: int = 0) -> Inputs:
    rng = np.random.default_rng(seed)
    return Inputs(
        jnp.asarray(rng.normal(size=(devices, features)), float),
        jnp.asarray(rng.normal(size=(devices, CONSTANTS)), float),
        jnp.asarray(rng.normal(size=1), float),
        jnp.ones(devices, bool),
    )


def permuted(inputs: Inputs, order: np.ndarray) -> Inputs:
    return Inputs(inputs.devices[order], inputs.constants[order], inputs.fleet, inputs.may_train[order])


@pytest.mark.parametrize("conditioned", [False, True])
def test_permuting_devices_permutes_decisions(paper_system: System, conditioned: bool) -> None:
    network = loud(FleetNetwork.create(paper_system, KEY, conditioned=conditioned))
    inputs, order = random_inputs(10), np.random.default_rng(1).permutation(10)
    straight, shuffled = network(inputs, EQUAL), network(permuted(inputs, order), EQUAL)
    decisions = straight.decide.most_likely(inputs.may_train)
    again = shuffled.decide.most_likely(inputs.may_train)
    assert len(set(np.asarray(decisions.frequency_logit).tolist())) == 10
    np.testing.assert_array_equal(again.train, np.asarray(decisions.train)[order])
    np.testing.assert_allclose(
        again.frequency_logit, np.asarray(decisions.frequency_logit)[order], rtol=2e-5, atol=2e-6
    )
    np.testing.assert_allclose(shuffled.values, straight.values, rtol=2e-5, atol=2e-6)


def test_a_preference_moves_only_a_conditioned_network(paper_system: System) -> None:
    inputs = random_inputs(10)
    for conditioned in (False, True):
        network = loud(FleetNetwork.create(paper_system, KEY, conditioned=conditioned))
        one, other = (network(inputs, jnp.asarray(w)).values for w in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]))
        assert bool(jnp.any(one != other)) == conditioned


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("observation", ["paper", "full"])
def test_every_network_plays_an_episode(name: str, observation: str) -> None:
    system = build_system(load_scenario("paper", {"observation": observation, "rounds": 20}))
    policy = NeuralPolicy.untrained(NETWORKS[name].create(system, KEY), system, reset(system, KEY), sampling=True)
    result = simulate(system, policy, range(4))
    assert result.violation_rate.max() == 0  # whatever a network says, the shield holds
    assert result.trainers.min() > 0
    assert np.all(np.isfinite(result.objectives))


def test_one_set_of_weights_serves_any_fleet(paper_system: System) -> None:
    network = loud(FleetNetwork.create(paper_system, KEY))
    policy = NeuralPolicy.untrained(network, paper_system, reset(paper_system, KEY))
    for size in (1, 30, 1000):
        larger = build_system(load_scenario("paper", {"fleet.size": size, "rounds": 5}))
        result = simulate(larger, policy, [0])
        assert np.all(np.isfinite(result.objectives))
        assert result.violation_rate.max() == 0


def test_moments_are_those_of_everything_seen() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal([5, -300, 0.01], [2, 40, 0.001], (size, 3)) for size in (7, 1, 100, 33)]
    moments = Moments.unseen(3)
    for batch in batches:
        moments = moments.with_seen(jnp.asarray(batch, float))
    everything = np.concatenate(batches)
    standard = (everything - everything.mean(axis=0)) / everything.std(axis=0)
    found = moments.standardised(jnp.asarray(everything, float))
    np.testing.assert_allclose(found, np.clip(standard, -10, 10), atol=2e-3)


def test_before_anything_was_seen_values_pass() -> None:
    values = jnp.asarray([1.0, -2.0, 100.0])
    np.testing.assert_array_equal(Moments.unseen(3).standardised(values), [1.0, -2.0, 10.0])


def test_what_never_varied_says_nothing() -> None:
    moments = Moments.unseen(2).with_seen(jnp.asarray([[4.0, 1.0], [4.0, 3.0]]))
    np.testing.assert_allclose(moments.standardised(jnp.asarray([9.0, 3.0])), [0.0, 1.0])


def test_inputs_tell_devices_apart(paper_system: System) -> None:
    constants = np.asarray(network_inputs(paper_system, reset(paper_system, KEY)).constants)
    assert constants.shape == (10, CONSTANTS)
    assert np.all(np.isfinite(constants))
    assert len(np.unique(constants.round(4), axis=0)) == 10
