"""Networks treat devices alike, fit the fleets they say they fit, and are normalised the same everywhere."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marks import slow_after
from tandem.feel import Environment, System, build_system
from tandem.feel.observation import NUM_CONSTANTS
from tandem.policy import NETWORKS, ActionDistribution, DeepSetActorCritic, NeuralPolicy, RunningStats
from tandem.policy.features import Features, extract_features
from tandem.policy.networks import ActorCriticOutput, MLPActorCritic, RandomModeActorCritic, summable
from tandem.runs import simulate
from tandem.scenario import load_scenario

KEY = jax.random.key(7)
EQUAL = jnp.full(3, 1 / 3)


@pytest.fixture(scope="module")
def paper(paper_system: System) -> Environment:
    return Environment(paper_system)


def loud(network: eqx.Module) -> eqx.Module:
    """The network with opinions: fresh ones are nearly silent, and silence is symmetric by itself."""
    arrays, rest = eqx.partition(network, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda leaf: 3 * leaf + 0.1 * jax.random.normal(KEY, leaf.shape), arrays), rest)


def random_inputs(devices: int, states: tuple[int, ...] = (), features: int = 10, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=(*states, *shape)), float)

    able = jnp.ones((*states, devices, 2), bool)
    return Features(normal(devices, features), normal(devices, NUM_CONSTANTS), normal(1), able)


def permuted(inputs: Features, order: np.ndarray) -> Features:
    return Features(
        inputs.devices[..., order, :],
        inputs.constants[..., order, :],
        inputs.fleet,
        inputs.action_mask[..., order, :],
    )


def by_device(judged: ActorCriticOutput, action_mask: jax.Array) -> dict[str, np.ndarray]:
    """Everything a network says of single devices, devices last."""
    draw = judged.action_dist.mode(action_mask)
    return {
        "train": np.asarray(draw.train),
        "mode_logit": np.asarray(judged.action_dist.mode_logit),
        "power_logit": np.asarray(draw.power_logit),
        "power_scale": np.asarray(judged.action_dist.power.log_scale),
        "frequency_logit": np.asarray(draw.frequency_logit),
        "frequency_scale": np.asarray(judged.action_dist.frequency.log_scale),
        "values": np.moveaxis(np.asarray(judged.value), -1, 0),
    }


def one_state(network: DeepSetActorCritic, inputs: Features) -> ActorCriticOutput:
    return network(inputs, EQUAL)


def many_states(network: DeepSetActorCritic, inputs: Features) -> ActorCriticOutput:
    return jax.vmap(lambda one: network(one, EQUAL))(inputs)


def many_networks(network: DeepSetActorCritic, inputs: Features) -> ActorCriticOutput:
    weights, shape = eqx.partition(network, eqx.is_inexact_array)
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf, -leaf]), weights)
    return jax.vmap(lambda one: many_states(eqx.combine(one, shape), inputs))(several)


# How a network is run: in a shell, by a scheduler, in an update, and in the update of a population.
WAYS = {
    "plain": (one_state, ()),
    "compiled": (eqx.filter_jit(one_state), ()),
    "batched": (eqx.filter_jit(many_states), (64,)),
    "population": (eqx.filter_jit(many_networks), (40,)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", slow_after(3, [1, 10, 17, 2, 3, 30, 1000]))
def test_permuting_devices_permutes_decisions_bit_for_bit(paper: Environment, size: int, way: str) -> None:
    run, states = WAYS[way]
    network = loud(DeepSetActorCritic.init(paper, KEY, conditioned=size % 2 == 0))
    inputs = random_inputs(size, states)
    straight = by_device(run(network, inputs), inputs.action_mask)
    assert len(np.unique(straight["frequency_logit"])) > 0.9 * straight["frequency_logit"].size
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(size)
        shuffled = by_device(run(network, permuted(inputs, order)), inputs.action_mask)
        for name, values in straight.items():
            np.testing.assert_array_equal(shuffled[name], values[..., order], err_msg=name)


@pytest.mark.parametrize("size", [1, 2, 10, 1000, 100_000])
def test_what_is_summable_adds_up_alike_in_any_order(size: int) -> None:
    rng = np.random.default_rng(size)
    codes = jnp.asarray(np.tanh(rng.normal(0, 2, (size, 8))), float)
    rounded = summable(codes)
    # The exact sum, in double precision, is what every order of single additions gives.
    exact = np.asarray(rounded, np.float64).sum(axis=0)
    for seed in range(3):
        shuffled = rounded[np.random.default_rng(seed).permutation(size)]
        np.testing.assert_array_equal(np.asarray(jnp.sum(shuffled, axis=0), np.float64), exact)
        np.testing.assert_array_equal(np.cumsum(np.asarray(shuffled), axis=0, dtype=np.float32)[-1], exact)
    # Rounding leaves the mean where it was, and derivatives are those of the plain mean.
    np.testing.assert_allclose(jnp.mean(rounded, axis=0), jnp.mean(codes, axis=0), atol=6e-5)
    weights = jnp.asarray(rng.normal(size=8), float)
    gradient = jax.grad(lambda free: jnp.mean(summable(free), axis=0) @ weights)(codes)
    np.testing.assert_allclose(gradient, jnp.tile(weights / size, (size, 1)), rtol=1e-6)


def test_the_context_is_worked_out_once_and_means_the_same(paper: Environment) -> None:
    """A device's decision is its head's on its code followed by the context, as Equinox computes it."""
    network = loud(DeepSetActorCritic.init(paper, KEY, conditioned=True))
    inputs = random_inputs(10)
    wish = jnp.asarray([0.5, 0.2, 0.3])
    own = [inputs.devices, inputs.constants, jnp.tile(wish, (10, 1))]
    codes = jax.vmap(network.encoder)(jnp.concatenate(own, axis=-1))
    pooled = jnp.concatenate([codes.mean(axis=0), codes.max(axis=0), inputs.fleet, wish])
    context = network.context(pooled)
    situations = [jnp.concatenate([code, context]) for code in codes]
    expected = ActionDistribution.from_parameters(jnp.stack([network.head(situation) for situation in situations]))
    found = network(inputs, wish)
    for one, other in zip(jax.tree.leaves(found.action_dist), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    values = jnp.stack([network.critic(situation) for situation in situations])
    np.testing.assert_allclose(found.value, values, rtol=1e-4, atol=1e-4)


def test_a_preference_moves_only_a_conditioned_network(paper: Environment) -> None:
    inputs = random_inputs(10)
    for conditioned in (False, True):
        network = loud(DeepSetActorCritic.init(paper, KEY, conditioned=conditioned))
        one, other = (network(inputs, jnp.asarray(w)).value for w in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]))
        assert bool(jnp.any(one != other)) == conditioned


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("observation", slow_after(1, ["full", "minimal"]))
def test_every_network_plays_an_episode(name: str, observation: str) -> None:
    environment = Environment(build_system(load_scenario("paper", {"observation": observation, "rounds": 20})))
    network, state = NETWORKS[name].init(environment, KEY), environment.reset(KEY)
    policy = NeuralPolicy.init(network, environment, state, sampling="stochastic")
    result = simulate(environment.system, policy, range(4))
    assert result.violation_rate.max() == 0  # whatever a network says, the shield holds
    assert result.trainers.min() > 0
    assert np.all(np.isfinite(result.objectives))


def test_what_is_left_to_chance_is_what_the_policy_says(paper: Environment) -> None:
    state = eqx.tree_at(lambda s: s.data, paper.reset(KEY), 0.5 * paper.system.data_limit)
    network = loud(DeepSetActorCritic.init(paper, KEY))
    normal = NeuralPolicy.init(network, paper, state)
    chosen = {}
    for sampling in ("deterministic", "sample-modes", "stochastic"):
        policy = NeuralPolicy(network, normal.normaliser, normal.preference, sampling)
        keys = jax.random.split(KEY, 50)
        chosen[sampling] = jax.vmap(lambda key, policy=policy: policy(paper, state, key))(keys)
    likeliest = chosen["deterministic"]
    assert np.all(np.ptp(np.asarray(likeliest.frequency), axis=0) == 0)
    assert np.all(np.asarray(likeliest.train) == np.asarray(likeliest.train)[0])
    assert np.any(np.asarray(chosen["sample-modes"].train) != np.asarray(likeliest.train))
    np.testing.assert_array_equal(chosen["sample-modes"].frequency, likeliest.frequency)
    np.testing.assert_array_equal(chosen["sample-modes"].train, chosen["stochastic"].train)
    assert np.all(np.ptp(np.asarray(chosen["stochastic"].frequency), axis=0) > 0)


@pytest.mark.parametrize("choices", [MLPActorCritic, DeepSetActorCritic])
def test_coins_are_fair_whatever_the_network_thinks(choices: type, paper: Environment) -> None:
    inputs = random_inputs(10)
    inner = loud(choices.init(paper, KEY))
    judged, opinion = RandomModeActorCritic(inner)(inputs, EQUAL), inner(inputs, EQUAL)
    assert np.all(np.asarray(judged.action_dist.mode_logit) == 0)
    assert np.all(np.asarray(opinion.action_dist.mode_logit) != 0)
    np.testing.assert_array_equal(judged.action_dist.frequency.location, opinion.action_dist.frequency.location)
    np.testing.assert_array_equal(judged.value, opinion.value)


def test_one_set_of_weights_serves_any_fleet(paper: Environment) -> None:
    network = loud(DeepSetActorCritic.init(paper, KEY))
    policy = NeuralPolicy.init(network, paper, paper.reset(KEY))
    for size in (1, 30, 1000):
        update_bits = 1.6e6 * min(1.0, 20 / size)  # small enough that the uplink can carry those of all devices
        fields = {"fleet.size": size, "rounds": 5, "training.update_bits": update_bits}
        result = simulate(build_system(load_scenario("paper", fields)), policy, [0])
        assert np.all(np.isfinite(result.objectives))
        assert result.violation_rate.max() == 0
        assert result.discarded_samples.max() == 0


@pytest.mark.parametrize(
    ("trained_on", "shielded", "chooses"), [(10, True, True), (30, True, False), (10, False, False)]
)
def test_in_a_larger_fleet_than_it_knows_a_policy_gives_the_places_itself(
    trained_on: int, shielded: bool, chooses: bool
) -> None:
    """More want to train than the uplink has room for: those go first that the policy is surest of."""
    environment = Environment(build_system(load_scenario("paper", {"fleet.size": 30, "shield.enabled": shielded})))
    system = environment.system
    network = loud(DeepSetActorCritic.init(environment, KEY))
    # So little data that no device must train yet, and that computing leaves all the time for uploads.
    state = eqx.tree_at(lambda s: s.data, environment.reset(KEY), 0.05 * system.data_limit)
    may_serve, may_train = np.asarray(environment.action_mask(state)).T
    assert np.all(may_serve)
    untrained = NeuralPolicy.init(network, environment, state)
    inputs = extract_features(environment, state)
    # A network that would have two thirds of the fleet train.
    shift = -jnp.quantile(untrained.forward(inputs).action_dist.mode_logit, 1 / 3)
    network = eqx.tree_at(lambda n: n.head.layers[-1].bias, network, replace_fn=lambda bias: bias.at[0].add(shift))
    policy = NeuralPolicy(network, untrained.normaliser, untrained.preference, largest_fleet=trained_on)
    logits = np.asarray(policy.forward(inputs).action_dist.mode_logit)
    eager = np.flatnonzero((logits > 0) & may_train)
    room = int(np.min(np.asarray(system.worst_case.max_trainers)[eager]))
    assert len(eager) > room > 0
    action = policy(environment, state, KEY)
    expected = sorted(eager, key=lambda device: -logits[device])[:room] if chooses else eager
    assert set(np.flatnonzero(action.train)) == set(expected)
    assert np.all(np.asarray(action.power)[~np.asarray(action.train)] == 0)


def test_moments_are_those_of_everything_seen() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal([5, -300, 0.01], [2, 40, 0.001], (size, 3)) for size in (7, 1, 100, 33)]
    moments = RunningStats.init(3)
    for batch in batches:
        moments = moments.update(jnp.asarray(batch, float))
    everything = np.concatenate(batches)
    standard = (everything - everything.mean(axis=0)) / everything.std(axis=0)
    found = moments.normalise(jnp.asarray(everything, float))
    np.testing.assert_allclose(found, np.clip(standard, -10, 10), atol=2e-3)


def test_before_anything_was_seen_values_pass() -> None:
    values = jnp.asarray([1.0, -2.0, 100.0])
    np.testing.assert_array_equal(RunningStats.init(3).normalise(values), [1.0, -2.0, 10.0])


def test_what_never_varied_says_nothing() -> None:
    moments = RunningStats.init(2).update(jnp.asarray([[4.0, 1.0], [4.0, 3.0]]))
    np.testing.assert_allclose(moments.normalise(jnp.asarray([9.0, 3.0])), [0.0, 1.0])


def test_inputs_tell_devices_apart(paper: Environment) -> None:
    constants = np.asarray(extract_features(paper, paper.reset(KEY)).constants)
    assert constants.shape == (10, NUM_CONSTANTS)
    assert np.all(np.isfinite(constants))
    assert len(np.unique(constants.round(4), axis=0)) == 10
