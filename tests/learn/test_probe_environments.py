"""Learners in environments with known answers: each probe fails for one kind of mistake."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_config import make_ppo_config

from tandem.feel import Action, Environment, Observation
from tandem.feel.constraints import CONSTRAINTS
from tandem.feel.observation import MINIMAL_FEATURES, NUM_CONSTANTS
from tandem.learn import ALGORITHMS, Checkpoint, ValidationResult, init_checkpoint, train, validate
from tandem.learn.config import PPOConfig
from tandem.learn.ppo.ppo import TrainState, init_train_state, train_step
from tandem.learn.ppo.rollout import denormalise_values
from tandem.learn.ppo.surrogate import BarrierSurrogate, ScalarisedSurrogate
from tandem.policy import DeepSetActorCritic
from tandem.policy.features import extract_features

KEY = jax.random.key(2)
EQUAL = (1 / 3, 1 / 3, 1 / 3)


class ProbeState(eqx.Module):
    round: jax.Array
    away: jax.Array  # bool: the device trained in the previous round
    measured: None = None


class NoViolations(eqx.Module):
    def any(self) -> jax.Array:
        return jnp.zeros((), bool)

    def by_constraint(self) -> jax.Array:
        return jnp.zeros(len(CONSTRAINTS), bool)


class ProbeOutcome(eqx.Module):
    """The fields of a round's outcome that rollouts and learners read."""

    executed: Action
    objectives: jax.Array
    violations: NoViolations = NoViolations()
    dropped: float = 0.0
    arrived: float = 0.0
    converted: float = 0.0
    discarded: float = 0.0
    duration_s: float = 0.0

    @property
    def reward(self) -> jax.Array:
        return self.objectives


class Probe(Environment):
    """An environment of one device. Its state is the mode of the previous round; ``objectives`` defines the rest."""

    system: None = None
    rounds: int = eqx.field(static=True, default=8)
    size: int = eqx.field(static=True, default=1)
    device_features: tuple[str, ...] = eqx.field(static=True, default=MINIMAL_FEATURES)
    measured_accuracy: None = None

    @abstractmethod
    def objectives(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        """The three objectives of an action."""

    def reset(self, key: jax.Array) -> ProbeState:
        return ProbeState(jnp.zeros((), jnp.int32), jax.random.bernoulli(key))

    def step(self, state: ProbeState, action: Action) -> tuple[ProbeState, ProbeOutcome]:
        values = self.objectives(state.away, action.train[0], action.frequency[0])
        objectives = jnp.stack([jnp.asarray(value, float) for value in values])
        return ProbeState(state.round + 1, action.train[0]), ProbeOutcome(action, objectives)

    def observe(self, state: ProbeState) -> Observation:
        return Observation(jnp.zeros((1, len(MINIMAL_FEATURES))).at[0, 0].set(state.away), jnp.zeros(1))

    def device_constants(self) -> jax.Array:
        return jnp.zeros((1, NUM_CONSTANTS))

    def action_mask(self, state: ProbeState) -> jax.Array:
        return jnp.ones((1, 2), bool)

    def device_rewards(self, outcome: ProbeOutcome, violation_credit: str = "fleet") -> jax.Array:
        return outcome.objectives[None]


@eqx.filter_jit
def run_steps(probe: Probe, state: TrainState, config: PPOConfig, count: int) -> TrainState:
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one(arrays: TrainState, _: None) -> tuple[TrainState, None]:
        return eqx.filter(train_step(probe, eqx.combine(arrays, rest), config)[0], eqx.is_array), None

    return eqx.combine(jax.lax.scan(one, arrays, None, length=count)[0], rest)


def start(probe: Probe, preference: tuple[float, ...], config: PPOConfig, surrogate: Any = None) -> TrainState:
    network = DeepSetActorCritic.init(probe, KEY, width=16)
    surrogate = surrogate or ScalarisedSurrogate()
    return init_train_state(network, probe, surrogate, jnp.asarray(preference), KEY, config)


def learn(
    probe: Probe, preference: tuple[float, ...], steps: int = 60, gamma: float = 0.9, gae_lambda: float = 0.95
) -> TrainState:
    # With a learning rate three times as high, rounding would decide whether what is learned by step 10 is still there
    # at step 60: nothing is left to be gained then, and advantages are the noise of values, scaled up.
    config = make_ppo_config(
        learning_rate=3e-3, num_envs=16, gamma=jnp.asarray(gamma), gae_lambda=jnp.asarray(gae_lambda)
    )
    return run_steps(probe, start(probe, preference, config), config, steps)


@eqx.filter_jit
def forward(probe: Probe, state: TrainState, away: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The probability to train, the median frequency, and the values."""
    output = state.policy().forward(extract_features(probe, ProbeState(jnp.zeros((), jnp.int32), away)))
    values = denormalise_values(state.returns, output.value)[0]
    dist = output.action_dist
    return jax.nn.sigmoid(dist.mode_logit[0]), jax.nn.sigmoid(dist.frequency.location[0]), values


def decisions(probe: Probe, state: TrainState) -> tuple[list[float], list[float]]:
    """The probability to train and the median frequency, at home and away."""
    probability, frequency, _ = zip(*(forward(probe, state, jnp.asarray(away)) for away in (False, True)), strict=True)
    return [float(value) for value in probability], [float(value) for value in frequency]


class RewardOfAction(Probe):
    """Training is best for the first objective, a high frequency for the second, a frequency of 0.3 for the third."""

    def objectives(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        return train, frequency, -jnp.abs(frequency - 0.3)


def test_learns_the_action_that_is_rewarded_at_once() -> None:
    probe = RewardOfAction()
    assert min(decisions(probe, learn(probe, (0.98, 0.01, 0.01)))[0]) > 0.9
    assert min(decisions(probe, learn(probe, (0.01, 0.98, 0.01)))[1]) > 0.9


@pytest.mark.slow
def test_learns_a_frequency_inside_its_range() -> None:
    probe = RewardOfAction()
    assert decisions(probe, learn(probe, (0.01, 0.01, 0.98), 150))[1] == pytest.approx([0.3, 0.3], abs=0.1)


class ConstantReward(Probe):
    """The same reward for every action."""

    def objectives(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        return 1.0, -2.0, 0.0


def test_value_of_a_constant_reward_is_that_of_an_endless_episode() -> None:
    """r / (1 - gamma): if truncation were treated as termination, eight rounds would be worth far less."""
    probe = ConstantReward()
    state = learn(probe, EQUAL, 150, gae_lambda=1.0)
    for away in (False, True):
        value = forward(probe, state, jnp.asarray(away))[2]
        np.testing.assert_allclose(value, [10.0, -20.0, 0.0], rtol=0.05, atol=0.1)


class DelayedReward(Probe):
    """Training costs a little at once, and is rewarded in the next round."""

    def objectives(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        return jnp.where(away, 1.0, 0.0) - jnp.where(train, 0.2, 0.0), 0.0, 0.0


def test_a_delayed_reward_is_credited_to_its_cause() -> None:
    probe = DelayedReward()
    assert min(decisions(probe, learn(probe, (0.98, 0.01, 0.01)))[0]) > 0.9
    assert max(decisions(probe, learn(probe, (0.98, 0.01, 0.01), gamma=0.0))[0]) < 0.1


def test_samples_beyond_the_last_full_minibatch_are_dropped() -> None:
    probe = RewardOfAction()
    # Eight samples: two in each minibatch, two dropped.
    config = make_ppo_config(num_envs=1, update_epochs=2, num_minibatches=3)
    before = start(probe, EQUAL, config)
    after = run_steps(probe, before, config, 1)
    pairs = list(zip(jax.tree.leaves(before.network), jax.tree.leaves(after.network), strict=True))
    assert all(np.all(np.isfinite(b)) for _, b in pairs if eqx.is_array(b))
    assert any(np.any(a != b) for a, b in pairs if eqx.is_array(b))
    assert {int(leaf) for leaf in jax.tree.leaves(after.optimiser) if leaf.dtype == jnp.int32} == {6}


THRESHOLDS: list[np.ndarray] = []


class RecordingSurrogate(BarrierSurrogate):
    """Records its thresholds at every evaluation of its objective."""

    def at_step(self, reward: jax.Array, advantages: jax.Array) -> BarrierSurrogate:
        return RecordingSurrogate(**vars(super().at_step(reward, advantages)))

    def objective(self, changes: jax.Array) -> jax.Array:
        jax.debug.callback(lambda values: THRESHOLDS.append(np.array(values)), self.thresholds())
        return super().objective(changes)


def test_thresholds_are_fixed_throughout_a_step() -> None:
    """They are those of the policy before the step, or of the selected one; minibatches do not change them."""
    probe = RewardOfAction()
    config = make_ppo_config(num_envs=2, update_epochs=2, num_minibatches=4, learning_rate=1e-2)
    low, selected = np.array([-0.5, -1.0, -2.0]), np.array([0.3, 0.4, -0.2])
    step = eqx.filter_jit(train_step)
    for anchored in (0.0, 1.0):
        surrogate = RecordingSurrogate(
            target=jnp.asarray([1.0, 0.0, 0.0]),
            low=jnp.asarray(low),
            span=jnp.full(3, 2.0),
            selected=jnp.asarray(selected),
            beta=0.9,
            mu=80.0,
            anchored=jnp.asarray(anchored),
        )
        state = start(probe, EQUAL, config, surrogate)
        rewards = []
        for _ in range(2):
            THRESHOLDS.clear()
            state, result = step(probe, state, config)
            jax.effects_barrier()
            assert len(THRESHOLDS) == 8  # every minibatch of every epoch
            before = selected if anchored else np.asarray(result.reward)
            np.testing.assert_allclose(THRESHOLDS, [0.9 * (before - low) / 2.0] * 8, rtol=1e-5)
            rewards.append(np.asarray(result.reward))
        assert np.all(rewards[0] != rewards[1])


class HomeAwayTravel(Probe):
    """A front with three corners: staying home gives (1, 0, 0), staying away (0, 1, 0), travelling always (0, 0, 0.8).

    A round at home gives the first objective, a round away the second, a change of place the third. Every mixture lies
    on or below the plane through these three points.
    """

    def objectives(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        stays = away == train
        return jnp.where(stays & ~away, 1.0, 0.0), jnp.where(stays & away, 1.0, 0.0), jnp.where(stays, 0.0, 0.8)


CORNERS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.8]])
# An episode begins in a random place, so reaching the right one may cost one of its 16 rounds.
NEAR_A_CORNER = 1.5 / 16


def run(name: str, probe: Probe, **options: Any) -> tuple[Any, Checkpoint, ValidationResult]:
    kind = ALGORITHMS[name]
    shared = {"gamma": 0.9, "learning_rate": 3e-3, "num_envs": 8, "validation_episodes": 8}
    algorithm = kind(probe, kind.config_type(**{**shared, **options}))
    *_, (checkpoint, _) = train(algorithm, init_checkpoint(algorithm, 0))
    return algorithm, checkpoint, validate(algorithm, checkpoint, 0)


def distance_to_corners(points: np.ndarray) -> float:
    """The distance from the corner that is farthest from all points."""
    return float(np.abs(CORNERS[:, None] - points[None]).max(axis=2).min(axis=1).max())


@pytest.mark.slow
def test_s_ppo_finds_the_corner_of_each_preference() -> None:
    probe = HomeAwayTravel(rounds=16)
    _, checkpoint, result = run("s-ppo", probe, budget=40_000, num_preferences=3, archive_size=10)
    assert distance_to_corners(result.rewards[result.chosen]) < NEAR_A_CORNER
    preferences = np.asarray(checkpoint.state.train_states.preference)
    assert np.argmax(preferences, axis=1).tolist() == np.argmax(CORNERS, axis=1).tolist()
    last_population = np.asarray(result.candidates.owner) >= 10
    assert np.abs(result.rewards[last_population] - CORNERS).max() < NEAR_A_CORNER


@pytest.mark.slow
def test_the_front_of_c_moppo_contains_the_corners() -> None:
    probe = HomeAwayTravel(rounds=16)
    _, checkpoint, result = run(
        "c-moppo",
        probe,
        budget=70_000,
        num_preferences=3,
        archive_size=30,
        num_extended=1,
        extension_steps=20,
        initialisation=0.6,
    )
    assert checkpoint.stage >= 2  # it was extended more than once
    assert distance_to_corners(result.rewards[result.chosen]) < NEAR_A_CORNER
    archive = checkpoint.state.policy_archive.archive
    points = np.asarray(archive.points)[np.asarray(archive.valid)]
    assert np.all(points @ (1 / CORNERS.max(axis=0)) < 1 + 1e-4)  # nothing lies above the plane of the front
    assert distance_to_corners(points) < NEAR_A_CORNER


@pytest.mark.slow
def test_one_conditioned_network_follows_every_preference() -> None:
    probe = HomeAwayTravel(rounds=16)
    _, _, result = run("pc-ppo", probe, budget=60_000, preference_divisions=6, width=32, num_envs=16)
    assert distance_to_corners(result.rewards[result.chosen]) < NEAR_A_CORNER
    preferences, rewards = np.asarray(result.candidates.preferences), result.rewards
    for objective in range(3):
        asked = preferences[:, objective] > 0.8
        assert np.all(np.abs(rewards[asked] - CORNERS[objective]).max(axis=1) < NEAR_A_CORNER)
        # More weight on an objective never means less of it, along any line towards its corner.
        for share in (0.0, 0.5, 1.0):
            others = [(1 - share), share]
            line = sorted(
                (weights[objective], reward[objective])
                for weights, reward in zip(preferences, rewards, strict=True)
                if np.allclose(np.delete(weights, objective), (1 - weights[objective]) * np.array(others), atol=1e-6)
            )
            reached = np.array([reward for _, reward in line])
            assert len(reached) >= 4
            assert np.all(np.diff(reached) > -NEAR_A_CORNER)
