"""What an update maximises: the barrier of C-MOPPO knows its objectives, holds them, and lets a broken one recover."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tandem.feel import Environment, build_system
from tandem.learn.cmoppo import CMOPPO, box_ranges, front_ranges
from tandem.learn.config import CMOPPOConfig
from tandem.learn.ppo.surrogate import (
    BARRIER_LINEAR_BELOW,
    BarrierSurrogate,
    ScalarisedSurrogate,
    clipped_objective,
    log_barrier,
)
from tandem.learn.scalarised_ppo import PopulationState
from tandem.pareto import Archive, insert
from tandem.policy import NeuralPolicy
from tandem.policy.evaluate import rollout_stack
from tandem.scenario import load_scenario
from tandem.tree import tree_index

KEY = jax.random.key(4)
SAMPLES = 400
evaluate = eqx.filter_jit(rollout_stack)


def constrained(objective: int = 0, **changes: Any) -> BarrierSurrogate:
    values: dict[str, Any] = {
        "target": jax.nn.one_hot(objective, 3),
        "low": jnp.zeros(3),
        "span": jnp.ones(3),
        "selected": jnp.full(3, 0.5),
        "beta": 0.9,
        "mu": 80.0,
    }
    return BarrierSurrogate(**{**values, **changes})


def direction(aim: BarrierSurrogate, advantages: np.ndarray, level: np.ndarray) -> np.ndarray:
    """The gradient of the gain in the log probabilities of the decisions of a batch, where they are what they were."""
    found = jnp.asarray(advantages, float)[:, None, :]
    prepared = aim.at_step(jnp.asarray(level, float), found)
    columns = prepared.advantage_columns(found, jnp.full((SAMPLES, 1, 3), 1 / 3))

    def gain(log_ratio: jax.Array) -> jax.Array:
        change = clipped_objective(jnp.exp(log_ratio)[:, None, None], columns, 0.2) - columns
        return prepared.objective(jnp.mean(jnp.sum(change, axis=1), axis=0))

    return SAMPLES * np.asarray(jax.grad(gain)(jnp.full(SAMPLES, 1e-6)))


def batch(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(SAMPLES, 3))


def centred(advantages: np.ndarray) -> np.ndarray:
    return advantages - advantages.mean(axis=0)


def test_the_direction_is_that_of_the_advantages_and_depends_on_those_held() -> None:
    """By hand: A_l + sum over i != l of A_i / (mu (1 - beta) J_i), in spreads of A_l."""
    advantages, level = batch(), np.array([0.5, 0.4, 0.7])
    found = direction(constrained(), advantages, level)
    own = centred(advantages)
    expected = own[:, 0] + own[:, 1] / (80 * 0.1 * 0.4) + own[:, 2] / (80 * 0.1 * 0.7)
    np.testing.assert_allclose(found, expected / advantages[:, 0].std(), atol=1e-3)
    for held in (1, 2):
        other = advantages.copy()
        other[:, held] = batch(1)[:, held]
        assert np.abs(direction(constrained(), other, level) - found).max() > 0.1
        # Without a barrier, those held have no say.
        free = constrained(mu=jnp.inf)
        np.testing.assert_array_equal(direction(free, other, level), direction(free, advantages, level))


def test_a_broken_constraint_shows_the_way_back() -> None:
    """With a return below its threshold, decisions that raise it are favoured, and far more than those that pay."""
    advantages, level = batch(), np.array([0.5, 0.3, 0.5])  # the second is below 0.9 times the selected 0.5
    found = direction(constrained(anchored=1.0), advantages, level)
    own = centred(advantages)
    slope = found @ own / SAMPLES / own.var(axis=0)
    assert slope[1] * advantages[:, 0].std() == pytest.approx(1 / (80 * BARRIER_LINEAR_BELOW), rel=0.1)
    assert slope[1] > 5 * slope[0] > 0
    assert np.corrcoef(found, own[:, 1])[0, 1] > 0.95


@pytest.mark.parametrize("mu", [1.0, 80.0])
def test_the_logarithm_is_continued_without_a_jump_or_a_kink(mu: float) -> None:
    with jax.enable_x64(True):
        slope = jax.grad(lambda slack: log_barrier(slack, mu))
        below, at, above = (jnp.asarray(BARRIER_LINEAR_BELOW * factor) for factor in (1 - 1e-9, 1.0, 1 + 1e-9))
        for side in (below, above):
            assert float(log_barrier(side, mu)) == pytest.approx(float(log_barrier(at, mu)), rel=1e-8)
            assert float(slope(side)) == pytest.approx(1 / (mu * BARRIER_LINEAR_BELOW), rel=1e-8)
        slacks = jnp.linspace(-2, 2, 401)
        values = np.asarray(log_barrier(slacks, mu))
        inside = np.asarray(slacks) > BARRIER_LINEAR_BELOW
        np.testing.assert_allclose(values[inside], np.log(slacks[inside]) / mu)
        np.testing.assert_allclose(np.diff(values[~inside]), 0.01 / (mu * BARRIER_LINEAR_BELOW))
        steps = np.diff(values)
        assert np.all(steps > 0)  # more slack is always better
        assert np.all(np.diff(steps) < 1e-9)  # and ever less so: concave


def test_thresholds_are_shares_of_the_policy_before_the_step_or_of_the_one_selected() -> None:
    aim = constrained(low=jnp.asarray([0.0, -5.0, -20.0]), span=jnp.asarray([1.0, 5.0, 20.0]))
    aim = eqx.tree_at(lambda one: one.selected, aim, jnp.asarray([0.4, -2.0, -10.0]))
    level, advantages = jnp.asarray([0.5, -1.0, -4.0]), jnp.asarray(batch())[:, None]
    np.testing.assert_allclose(aim.at_step(level, advantages).thresholds(), 0.9 * np.array([0.5, 0.8, 0.8]), rtol=1e-6)
    anchored = eqx.tree_at(lambda one: one.anchored, aim, 1.0)
    np.testing.assert_allclose(
        anchored.at_step(level, advantages).thresholds(), 0.9 * np.array([0.4, 0.6, 0.5]), rtol=1e-6
    )


@pytest.fixture(scope="module")
def tiny() -> Environment:
    return Environment(build_system(load_scenario("paper", {"fleet.size": 3, "rounds": 20})))


finite = st.floats(-50, 50, width=32)


@hypothesis_settings(max_examples=60, deadline=None, derandomize=True)
@given(points=st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=8))
def test_every_policy_of_the_front_has_a_positive_return_of_which_a_share_is_less(points: list[Any]) -> None:
    rows = jnp.asarray(points + [(-99.0, -99.0, -99.0)] * (8 - len(points)), float)
    archive, _ = insert(Archive.init(8), rows, jnp.arange(8), jnp.arange(8) < len(points))
    _check_ranges(archive)


@pytest.mark.parametrize("point", [(0.5, -3.0, -20.0), (0.0, 0.0, 0.0), (1e-3, -4e4, -1e5)])
def test_a_front_of_one_policy_has_ranges_too(point: tuple[float, float, float]) -> None:
    archive, _ = insert(Archive.init(4), jnp.asarray([point]), jnp.arange(1))
    _check_ranges(archive)


def _check_ranges(archive: Archive) -> None:
    low, span = front_ranges(archive)
    points = np.asarray(archive.points)[np.asarray(archive.valid)]
    returns = np.asarray(constrained(low=low, span=span).normalise(jnp.asarray(points)))
    assert np.all(returns > 0.05)
    assert np.all(returns <= 1.05)
    assert np.all(0.9 * returns < returns)
    # Where policies differ by more than a trifle, the best counts as 1.
    wide = np.ptp(points, axis=0) > 0.01 * np.abs(points).max(axis=0) + 1e-3
    np.testing.assert_allclose(returns.max(axis=0)[wide], 1.0, rtol=1e-3)


def test_the_box_goes_from_the_reference_point_to_the_best_and_contains_every_policy() -> None:
    reference = jnp.asarray([0.0, -5.0, -44.0])
    inside = jnp.asarray([[0.5, -3.0, -20.0], [0.3, -2.0, -10.0]])
    archive, _ = insert(Archive.init(4), inside, jnp.arange(2))
    low, span = box_ranges(archive, reference)
    np.testing.assert_allclose(low, reference)
    np.testing.assert_allclose(low + span, [1.0, 0.0, 0.0], atol=1e-5)
    # A policy in violation is below the reference point. It is normalised to a positive return too.
    below = jnp.concatenate([inside, jnp.asarray([[0.6, -7.0, -30.0]])])
    archive, _ = insert(Archive.init(4), below, jnp.arange(3))
    low, span = box_ranges(archive, reference)
    assert np.all((np.asarray(below) - np.asarray(low)) / np.asarray(span) > 0)
    np.testing.assert_allclose(low + span, [1.0, 0.0, 0.0], atol=1e-5)


ARMS = np.array([[1.0, 0.1, 0.2], [0.2, 1.0, 0.3], [0.1, 0.3, 1.0], [0.7, 0.6, 0.1], [0.5, 0.5, 0.5]])


@pytest.mark.parametrize("objective", [0, 1, 2])
def test_theorem_1_on_a_problem_small_enough_to_solve(objective: int) -> None:
    """The optimum of P4 is at most 2 / mu worse than that of P3: a choice of five arms, returns linear in chances."""
    before = np.full(5, 0.2) @ ARMS
    held = [i for i in range(3) if i != objective]
    exact = scipy.optimize.linprog(
        -ARMS[:, objective],
        A_ub=-ARMS[:, held].T,
        b_ub=-0.9 * before[held],
        A_eq=np.ones((1, 5)),
        b_eq=[1.0],
        bounds=(0, 1),
    )
    best = -exact.fun
    gaps = []
    with jax.enable_x64(True):
        arms = jnp.asarray(ARMS)
        for mu in (5.0, 20.0, 80.0, 320.0):
            # The gain that updates use, of the true changes; one sample of spread 1 leaves its scale alone.
            aim = constrained(objective, mu=mu).at_step(jnp.asarray(before), jnp.asarray([[-1.0] * 3, [1.0] * 3]))

            def loss(chances: jax.Array, aim: BarrierSurrogate = aim) -> jax.Array:
                return -aim.objective(chances @ arms - before)

            found = scipy.optimize.minimize(
                jax.jit(loss),
                np.full(5, 0.2),
                jac=jax.jit(jax.grad(loss)),
                method="SLSQP",
                bounds=[(0, 1)] * 5,
                constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones((1, 5))},
                options={"ftol": 1e-13, "maxiter": 500},
            )
            reached = found.x @ ARMS
            assert np.all(reached[held] > 0.9 * before[held])  # inside the walls
            gaps.append(best - reached[objective])
            assert -1e-6 <= gaps[-1] <= 2 / mu * (1 + 1e-4)  # with both walls in the way, the bound is met
    assert np.all(np.diff(gaps) < 0)
    assert gaps[-1] < 0.2 * gaps[0]


def extension(environment: Environment, **changes: Any) -> CMOPPO:
    values: dict[str, Any] = {
        "budget": 1_000_000,
        "num_preferences": 3,
        "num_envs": 8,
        "num_extended": 2,
        "extension_steps": 40,
        "learning_rate": 3e-3,
        "archive_size": 12,
        "validation_episodes": 1,
    }
    return CMOPPO(environment, CMOPPOConfig(**{**values, **changes}))


@pytest.fixture(scope="module")
def initialised(tiny: Environment) -> PopulationState:
    """A population on its way, with a front of snapshots; the state an extension may begin from."""
    algorithm = extension(tiny)
    state = algorithm.init(KEY)
    for _ in range(5):
        state, _ = algorithm.run_chunk(0, state)
    return state


@pytest.mark.slow
def test_every_direction_starts_from_the_policy_selected_with_a_fresh_optimiser(
    tiny: Environment, initialised: PopulationState
) -> None:
    algorithm = extension(tiny)
    begun = algorithm.begin_stage(1, initialised)
    slots = np.flatnonzero(np.asarray(begun.policy_archive.times_extended))
    assert len(slots) == 2
    assert np.asarray(begun.objectives).tolist() == [0, 1, 2, 0, 1, 2]
    parents = []
    for number in range(6):
        learner = tree_index(begun.train_states, number)
        (parent,) = [
            slot for slot in slots if _same(tree_index(begun.policy_archive.kept.network, slot), learner.network)
        ]
        parents.append(parent)
        assert _same(tree_index(begun.policy_archive.kept.normaliser, parent), learner.normaliser)
        assert _same(tree_index(begun.policy_archive.kept.returns, parent), learner.returns)
        np.testing.assert_array_equal(learner.surrogate.selected, begun.policy_archive.archive.points[parent])
        np.testing.assert_array_equal(learner.surrogate.target, np.eye(3)[number % 3])
        assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(learner.optimiser))
        assert int(learner.steps) == 0
    assert parents == [parents[0]] * 3 + [parents[3]] * 3
    assert parents[0] != parents[3]
    # The optimisers of the first stage had gone on; an extension has a learning rate and a decay of its own.
    assert any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(initialised.train_states.optimiser))
    assert algorithm.ppo_config(1).lr_decay == pytest.approx(1 / (40 * 4 * 4))
    assert algorithm.ppo_config(1).learning_rate == algorithm.ppo_config(0).learning_rate
    # What is seen next is chance of its own for every direction.
    assert len(np.unique(jax.random.key_data(begun.train_states.key), axis=0)) == 6


def _same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs if eqx.is_array(a))


def extended(algorithm: CMOPPO, state: PopulationState) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """After an extension: normalised returns before and after, their statistical error, and which are held."""
    state = algorithm.begin_stage(1, state)
    for _ in range(algorithm.stages[1].chunks):
        state, _ = algorithm.run_chunk(1, state)
    learners = state.train_states
    policies = NeuralPolicy(learners.network, learners.normaliser, learners.preference, "stochastic")
    rewards = np.asarray(evaluate(algorithm.environment, policies, jax.random.split(jax.random.key(99), 200)).reward)
    low, span, selected = (
        np.asarray(part) for part in (learners.surrogate.low, learners.surrogate.span, learners.surrogate.selected)
    )
    spread = rewards.std(axis=1) / span
    # Two measurements: ours over 200 episodes, and the few by which the policy was selected.
    error = spread * np.sqrt(1 / 200 + 1 / algorithm.config.num_envs)
    return (
        (selected - low) / span,
        (rewards.mean(axis=1) - low) / span,
        error,
        np.asarray(learners.surrogate.target) == 0,
    )


@pytest.mark.slow
def test_a_real_extension_holds_what_it_is_to_hold(tiny: Environment, initialised: PopulationState) -> None:
    before, after, error, held = extended(extension(tiny, barrier="selected"), initialised)
    slack = after - 0.9 * before
    assert np.all((slack + 4 * error)[held] > 0)
    # The objective to improve is improved, where there is room.
    gained = (after - before)[~held]
    assert gained.max() > 0.05
    # Without the barrier the same start, chance and steps break the constraints by far.
    before, after, error, held = extended(extension(tiny, barrier="none"), initialised)
    assert np.min((after - 0.9 * before + 4 * error)[held]) < -0.1


def test_weighted_advantages_are_on_one_scale_and_follow_their_preference() -> None:
    advantages = jnp.asarray(batch() * [1.0, 50.0, 1e-3] + [0.0, 7.0, 1.0])[:, None]
    preferences = jnp.asarray(np.random.default_rng(2).dirichlet(np.ones(3), SAMPLES))[:, None]
    columns = np.asarray(ScalarisedSurrogate().advantage_columns(advantages, preferences))
    standard = (batch() - batch().mean(axis=0)) / batch().std(axis=0)
    expected = (np.asarray(preferences)[:, 0] * standard).sum(axis=1)
    expected = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(columns[:, 0, 0], expected, atol=1e-3)
    # Units do not matter: joules in millijoules weigh the same.
    np.testing.assert_allclose(
        ScalarisedSurrogate().advantage_columns(advantages * 1000, preferences), columns, atol=1e-3
    )
