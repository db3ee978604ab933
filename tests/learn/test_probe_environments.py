"""Learners on problems with known answers: each probe fails for one kind of mistake.

A toy takes the fleet's place wherever a learner or a policy meets it: one device, observed as the paper would.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tandem.learn.ppo.ppo
import tandem.learn.ppo.rollout
import tandem.policy.networks
import tandem.policy.neural_policy
import tandem.policy.rollout
from tandem.feel.constraints import CONSTRAINTS
from tandem.feel.observation import MINIMAL_FEATURES
from tandem.feel.state import Action
from tandem.learn import (
    ALGORITHMS,
    BarrierSurrogate,
    Checkpoint,
    PPOConfig,
    ScalarisedSurrogate,
    TrainState,
    init_checkpoint,
    init_train_state,
    train,
    train_step,
    validate,
)
from tandem.learn.ppo.rollout import denormalise_values
from tandem.policy import DeepSetActorCritic
from tandem.policy.features import NUM_CONSTANTS, Features

KEY = jax.random.key(2)
EQUAL = (1 / 3, 1 / 3, 1 / 3)


class ToyState(eqx.Module):
    round: jax.Array
    away: jax.Array  # bool: the device trained in the round before


class NoViolations(eqx.Module):
    def any(self) -> jax.Array:
        return jnp.zeros((), bool)

    def by_constraint(self) -> jax.Array:
        return jnp.zeros(len(CONSTRAINTS), bool)


class ToyOutcome(eqx.Module):
    """What is read of a round's outcome."""

    executed: Action
    objectives: jax.Array
    violations: NoViolations = NoViolations()
    dropped: float = 0.0
    arrived: float = 0.0
    discarded: float = 0.0
    duration_s: float = 0.0

    @property
    def reward(self) -> jax.Array:
        return self.objectives


class Toy(eqx.Module):
    """A problem of one device: where it was a round ago is its state, ``reward`` says the rest."""

    rounds: int = eqx.field(static=True, default=8)
    size: int = eqx.field(static=True, default=1)
    measured_accuracy: None = None

    @property
    def penalty(self) -> jax.Array:
        return jnp.full(3, -100.0)

    @abstractmethod
    def reward(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        """Three objectives of a decision."""

    def reset(self, key: jax.Array) -> ToyState:
        return ToyState(jnp.zeros((), jnp.int32), jax.random.bernoulli(key))

    def step(self, state: ToyState, action: Action) -> tuple[ToyState, ToyOutcome]:
        found = self.reward(state.away, action.train[0], action.frequency[0])
        objectives = jnp.stack([jnp.asarray(value, float) for value in found])
        return ToyState(state.round + 1, action.train[0]), ToyOutcome(action, objectives)

    def inputs(self, state: ToyState) -> Features:
        devices = jnp.zeros((1, len(MINIMAL_FEATURES))).at[0, 0].set(state.away)
        return Features(devices, jnp.zeros((1, NUM_CONSTANTS)), jnp.zeros(1), jnp.ones(1, bool))


@pytest.fixture(autouse=True)
def toys_for_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    replacements = {
        "reset": lambda toy, key: toy.reset(key),
        "step": lambda toy, state, action: toy.step(state, action),
        "extract_features": lambda toy, state: toy.inputs(state),
        "device_objectives": lambda outcome: outcome.objectives[None],
        "device_features": lambda toy: MINIMAL_FEATURES,
    }
    learning = (tandem.learn.ppo.rollout, tandem.learn.ppo.ppo)
    policy = (tandem.policy.neural_policy, tandem.policy.rollout)
    for module in (*learning, *policy, tandem.policy.networks):
        for name, replacement in replacements.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, replacement)


@eqx.filter_jit
def steps(toy: Toy, learner: TrainState, settings: PPOConfig, count: int) -> TrainState:
    arrays, rest = eqx.partition(learner, eqx.is_array)

    def one(arrays: TrainState, _: None) -> tuple[TrainState, None]:
        return eqx.filter(train_step(toy, eqx.combine(arrays, rest), settings)[0], eqx.is_array), None

    return eqx.combine(jax.lax.scan(one, arrays, None, length=count)[0], rest)


def learned(
    toy: Toy, preference: tuple[float, ...], steps_made: int = 60, discount: float = 0.9, trace: float = 0.95
) -> TrainState:
    # Three times faster, and rounding decides whether what is found by step 10 is still there at step 60: nothing is
    # left to be gained then, advantages are the noise of values, and they are scaled up.
    settings = PPOConfig(learning_rate=3e-3, num_envs=16, gamma=jnp.asarray(discount), gae_lambda=jnp.asarray(trace))
    network = DeepSetActorCritic.init(toy, KEY, width=16)
    learner = init_train_state(network, toy, ScalarisedSurrogate(), jnp.asarray(preference), KEY, settings)
    return steps(toy, learner, settings, steps_made)


def decided(toy: Toy, learner: TrainState, away: bool) -> tuple[float, float]:
    """The chance to train, and the median frequency."""
    judged = learner.policy().forward(toy.inputs(ToyState(jnp.zeros((), jnp.int32), jnp.asarray(away))))
    return float(jax.nn.sigmoid(judged.action_dist.mode_logit[0])), float(
        jax.nn.sigmoid(judged.action_dist.frequency.location[0])
    )


class OnlyTheActionCounts(Toy):
    """Train for the first objective, a high clock for the second, a clock of 0.3 for the third."""

    def reward(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        return train, frequency, -jnp.abs(frequency - 0.3)


def test_a_reward_for_the_action_alone_is_found() -> None:
    toy = OnlyTheActionCounts()
    trains = learned(toy, (0.98, 0.01, 0.01))
    assert min(decided(toy, trains, away)[0] for away in (False, True)) > 0.9
    fast = learned(toy, (0.01, 0.98, 0.01))
    assert min(decided(toy, fast, away)[1] for away in (False, True)) > 0.9
    exact = learned(toy, (0.01, 0.01, 0.98), 150)
    assert [decided(toy, exact, away)[1] for away in (False, True)] == pytest.approx([0.3, 0.3], abs=0.1)


class Constant(Toy):
    """Whatever is done."""

    def reward(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        return 1.0, -2.0, 0.0


def test_the_value_of_a_constant_reward_is_that_of_an_endless_stream() -> None:
    """r / (1 - gamma): an episode of eight rounds that counted as an end would be worth far less."""
    toy = Constant()
    learner = learned(toy, EQUAL, 150, trace=1.0)
    for away in (False, True):
        judged = learner.policy().forward(toy.inputs(ToyState(jnp.zeros((), jnp.int32), jnp.asarray(away))))
        value = denormalise_values(learner.returns, judged.value)[0]
        np.testing.assert_allclose(value, [10.0, -20.0, 0.0], rtol=0.05, atol=0.1)


class OneRoundLater(Toy):
    """Who trains is paid in the round after, and pays a little at once."""

    def reward(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        paid = jnp.where(away, 1.0, 0.0) - jnp.where(train, 0.2, 0.0)
        return paid, 0.0, 0.0


def test_a_reward_that_comes_later_is_credited_to_its_cause() -> None:
    toy = OneRoundLater()
    patient = learned(toy, (0.98, 0.01, 0.01))
    assert min(decided(toy, patient, away)[0] for away in (False, True)) > 0.9
    hasty = learned(toy, (0.98, 0.01, 0.01), discount=0.0)
    assert max(decided(toy, hasty, away)[0] for away in (False, True)) < 0.1


def test_samples_that_no_minibatch_has_room_for_are_left_out() -> None:
    toy = OnlyTheActionCounts()
    settings = PPOConfig(
        num_envs=1, update_epochs=2, num_minibatches=3
    )  # eight samples: two in each minibatch, two over
    network = DeepSetActorCritic.init(toy, KEY, width=16)
    before = init_train_state(network, toy, ScalarisedSurrogate(), jnp.asarray(EQUAL), KEY, settings)
    after = steps(toy, before, settings, 1)
    pairs = list(zip(jax.tree.leaves(before.network), jax.tree.leaves(after.network), strict=True))
    assert all(np.all(np.isfinite(b)) for _, b in pairs if eqx.is_array(b))
    assert any(np.any(a != b) for a, b in pairs if eqx.is_array(b))
    assert {int(leaf) for leaf in jax.tree.leaves(after.optimiser) if leaf.dtype == jnp.int32} == {6}


FLOORS: list[np.ndarray] = []


class Watched(BarrierSurrogate):
    """Tells its thresholds whenever its gain is asked for."""

    def at_step(self, level: jax.Array, advantages: jax.Array) -> BarrierSurrogate:
        return Watched(**vars(super().at_step(level, advantages)))

    def objective(self, changes: jax.Array) -> jax.Array:
        jax.debug.callback(lambda floor: FLOORS.append(np.array(floor)), self.thresholds())
        return super().objective(changes)


def test_thresholds_stay_where_they_are_throughout_a_step() -> None:
    """Those of the policy before the step, or of the one selected; minibatches do not move them."""
    toy = OnlyTheActionCounts()
    settings = PPOConfig(num_envs=2, update_epochs=2, num_minibatches=4, learning_rate=1e-2)
    low, selected = np.array([-0.5, -1.0, -2.0]), np.array([0.3, 0.4, -0.2])
    step = eqx.filter_jit(train_step)
    for anchored in (0.0, 1.0):
        aim = Watched(
            target=jnp.asarray([1.0, 0.0, 0.0]),
            low=jnp.asarray(low),
            span=jnp.full(3, 2.0),
            selected=jnp.asarray(selected),
            beta=0.9,
            mu=80.0,
            anchored=jnp.asarray(anchored),
        )
        now = init_train_state(DeepSetActorCritic.init(toy, KEY, width=16), toy, aim, jnp.asarray(EQUAL), KEY, settings)
        levels = []
        for _ in range(2):
            FLOORS.clear()
            now, report = step(toy, now, settings)
            jax.effects_barrier()
            assert len(FLOORS) == 8  # every minibatch of every epoch
            before = selected if anchored else np.asarray(report.reward)  # the rewards of the policy as it was
            np.testing.assert_allclose(FLOORS, [0.9 * (before - low) / 2.0] * 8, rtol=1e-5)
            levels.append(np.asarray(report.reward))
        assert np.all(levels[0] != levels[1])


class HomeAwayTravel(Toy):
    """Staying home, staying away and travelling for ever: (1, 0, 0), (0, 1, 0) and (0, 0, 0.8), each best for someone.

    A round at home earns the first objective, one away the second, a change of place the third. Whoever mixes has a
    point on or below the plane through these three, so they are the front's corners.
    """

    def reward(self, away: jax.Array, train: jax.Array, frequency: jax.Array) -> tuple[Any, Any, Any]:
        stays = away == train
        return jnp.where(stays & ~away, 1.0, 0.0), jnp.where(stays & away, 1.0, 0.0), jnp.where(stays, 0.0, 0.8)


CORNERS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.8]])
# An episode begins in either place by chance, so getting where one wants to be may cost one of its rounds.
NEAR_A_CORNER = 1.5 / 16


def run(name: str, toy: Toy, **options: Any) -> tuple[Any, Checkpoint, np.ndarray]:
    kind = ALGORITHMS[name]
    shared = {"gamma": 0.9, "learning_rate": 3e-3, "num_envs": 8, "validation_episodes": 8}
    algorithm = kind(toy, kind.config_type(**{**shared, **options}))
    *_, (now, _) = train(algorithm, init_checkpoint(algorithm, 0))
    delivery = validate(algorithm, now, 0)
    return algorithm, now, delivery.rewards[delivery.chosen]


def farthest(corners: np.ndarray, points: np.ndarray) -> float:
    """The distance of the corner that is farthest from all points."""
    return float(np.abs(corners[:, None] - points[None]).max(axis=2).min(axis=1).max())


def test_separate_learners_find_the_corner_of_their_preference() -> None:
    toy = HomeAwayTravel(rounds=16)
    algorithm, now, front = run("s-ppo", toy, budget=40_000, num_preferences=3, archive_size=10)
    assert farthest(CORNERS, front) < NEAR_A_CORNER
    population = now.state.train_states
    for preference, corner in zip(np.asarray(population.preference), CORNERS, strict=True):
        assert np.argmax(preference) == np.argmax(corner)
    candidates = algorithm.candidates(now.state)
    found = validate(algorithm, now, 0).rewards[np.asarray(candidates.owner) >= 10]  # the population as it ended
    assert np.abs(found - CORNERS).max() < NEAR_A_CORNER


def test_c_moppo_s_front_holds_the_corners() -> None:
    toy = HomeAwayTravel(rounds=16)
    _, now, front = run(
        "c-moppo",
        toy,
        budget=70_000,
        num_preferences=3,
        archive_size=30,
        num_extended=1,
        extension_steps=20,
        initialisation=0.6,
    )
    assert now.stage >= 2  # it was extended, more than once
    assert farthest(CORNERS, front) < NEAR_A_CORNER
    kept = now.state.policy_archive.archive
    points = np.asarray(kept.points)[np.asarray(kept.valid)]
    assert np.all(points @ (1 / CORNERS.max(axis=0)) < 1 + 1e-4)  # nothing lies above the plane of the front
    assert farthest(CORNERS, points) < NEAR_A_CORNER


def test_one_conditioned_network_goes_where_it_is_asked_to() -> None:
    toy = HomeAwayTravel(rounds=16)
    algorithm, now, front = run("pc-ppo", toy, budget=60_000, preference_divisions=6, width=32, num_envs=16)
    assert farthest(CORNERS, front) < NEAR_A_CORNER
    candidates = algorithm.candidates(now.state)
    rewards = validate(algorithm, now, 0).rewards
    preferences = np.asarray(candidates.preferences)
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
