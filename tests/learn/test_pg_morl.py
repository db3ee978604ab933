"""PG-MORL part by part: the fit against curves that are known, buffers and choice against plain loops."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tandem.feel import Environment, build_system
from tandem.learn.config import PGMORLConfig
from tandem.learn.pg_morl.algorithm import PGMORL, PGMORLState, choose_tasks
from tandem.learn.pg_morl.history import History
from tandem.learn.pg_morl.improvement_model import ImprovementCurve, fit_curve, neighbourhood, predict_improvement
from tandem.learn.pg_morl.performance_buffer import MIN_COMPONENT, PerformanceBuffer
from tandem.learn.ppo.ppo import TrainState
from tandem.pareto import hypervolume, interior_simplex, nondominated_indices, sparsity
from tandem.pareto.scaling import ObjectiveScaler
from tandem.scenario import load_scenario
from tandem.tree import tree_index, tree_length

GRID = jnp.linspace(0.05, 0.9, 18)  # weights that an objective may have
# Height, steepness, middle and level of an objective's change.
CURVES = [(0.2, 8.0, 0.4, 0.05), (0.05, 20.0, 0.2, -0.02), (0.5, 3.0, 0.5, 0.0), (0.1, 6.0, 0.33, -0.1)]
RECORDS = 60


@eqx.filter_jit
def fitted(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> jax.Array:
    """The fitted curve, on the grid."""
    return fit_curve(*(jnp.asarray(values, float) for values in (x, y, weight)))(GRID)


def curve(shape: tuple[float, ...], x: Any) -> np.ndarray:
    """As it is written in the publication."""
    height, steepness, middle, level = shape
    grown = np.exp(steepness * (np.asarray(x, np.float64) - middle))
    return height * (grown - 1) / (grown + 1) + level


@pytest.mark.parametrize("shape", CURVES)
def test_a_known_curve_is_recovered(shape: tuple[float, ...]) -> None:
    x = np.random.default_rng(0).random(RECORDS)
    everywhere = np.ones(RECORDS)
    np.testing.assert_allclose(ImprovementCurve(*shape)(GRID), curve(shape, GRID), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(fitted(x, curve(shape, x), everywhere), curve(shape, GRID), atol=2e-3 * shape[0])
    # What has no weight has no say.
    spoiled = np.where(x < 0.3, 9.0, curve(shape, x))
    seen = fitted(x, spoiled, (x >= 0.3).astype(float))
    np.testing.assert_allclose(seen[GRID >= 0.3], curve(shape, GRID[GRID >= 0.3]), atol=0.02 * shape[0])


@pytest.mark.parametrize("shape", CURVES)
def test_outliers_do_not_derail_it(shape: tuple[float, ...]) -> None:
    """One record in six is off by many times the height of the curve, all to the same side."""
    rng = np.random.default_rng(1)
    x, everywhere = rng.random(RECORDS), np.ones(RECORDS)
    noisy = curve(shape, x) + 0.05 * shape[0] * rng.normal(size=RECORDS)
    derailed = noisy + np.where(np.arange(RECORDS) < RECORDS // 6, 20 * shape[0], 0.0)
    error = np.abs(fitted(x, noisy, everywhere) - curve(shape, GRID)).max() / shape[0]
    despite = np.abs(fitted(x, derailed, everywhere) - curve(shape, GRID)).max() / shape[0]
    assert error < 0.15
    assert despite < 0.4
    # A parabola by least squares, which is linear and so must find its best, is thrown off by more.
    squares = np.polyval(np.polyfit(x, derailed, 2), GRID)
    assert np.abs(squares - curve(shape, GRID)).max() / shape[0] > 2


def test_little_data_is_no_catastrophe() -> None:
    nothing = fitted(np.zeros(RECORDS), np.zeros(RECORDS), np.zeros(RECORDS))
    assert np.all(np.isfinite(nothing))
    assert np.abs(nothing).max() < 0.02  # nothing is promised
    # All trained under one weight: what they gained there is known, and more weight is not thought to do harm.
    alone = fitted(np.full(RECORDS, 0.4), np.full(RECORDS, 0.1), np.ones(RECORDS))
    assert float(jnp.interp(0.4, GRID, alone)) == pytest.approx(0.1, abs=0.01)
    assert np.all(np.diff(alone) >= 0)
    assert np.abs(alone).max() < 0.5
    same = fitted(np.linspace(0, 1, RECORDS), np.full(RECORDS, -0.2), np.ones(RECORDS))
    np.testing.assert_allclose(same, -0.2, atol=0.02)


def test_a_neighbourhood_widens_until_it_has_enough() -> None:
    before = jnp.asarray([[0.0, 0, 0], [0.05, 0, 0], [0.5, 0, 0], [0.9, 0, 0], [0.0, 0, 0]])
    valid = jnp.asarray([True, True, True, True, False])
    policies = jnp.asarray([[0.0, 0, 0], [3.0, 0, 0]])
    enough = np.asarray(neighbourhood(policies, before, valid, 0.1, 2))
    assert (enough > 0).tolist() == [[True, True, False, False, False], [False, False, True, True, False]]
    widened = np.asarray(neighbourhood(policies, before, valid, 0.1, 3))
    assert (widened > 0).tolist() == [[True, True, True, False, False], [False, True, True, True, False]]
    assert np.all(np.diff(widened[0, :3]) < 0)  # the farther, the less
    assert np.all(np.asarray(neighbourhood(policies, before, valid, 0.1, 99))[:, :4] > 0)
    assert np.all(np.asarray(neighbourhood(policies, before, jnp.zeros(5, bool), 0.1, 3)) == 0)


def test_every_policy_is_predicted_from_its_own_neighbours() -> None:
    """Here training under a weight moves each objective along one curve, there along another."""
    rng = np.random.default_rng(2)
    here, there = np.zeros(3), np.ones(3)
    trained = rng.dirichlet(np.ones(3), 120)
    before = np.where(np.arange(120)[:, None] < 60, here, there) + rng.normal(scale=0.02, size=(120, 3))
    change = np.concatenate([curve(CURVES[0], trained[:60]), curve(CURVES[1], trained[60:])])
    weights = interior_simplex(6)
    arguments = (np.stack([here, there]), weights, before, trained, change, np.ones(120, bool))
    predicted = jax.jit(predict_improvement, static_argnums=7)(*(jnp.asarray(value) for value in arguments), 0.2, 10)
    assert predicted.shape == (2, 6, 3)
    np.testing.assert_allclose(predicted[0], here + curve(CURVES[0], weights), atol=0.01)
    np.testing.assert_allclose(predicted[1], there + curve(CURVES[1], weights), atol=0.01)


def test_history_is_a_ring_of_the_latest() -> None:
    history, written = History.init(5), []
    for number in range(6):
        rows = jnp.full((3, 3), 10.0 * number) + jnp.arange(3)[:, None]
        valid = jnp.asarray([True, number % 2 == 0, False])
        history = history.append(rows, rows + 100, rows + 200, valid)
        written += [float(row[0]) for row, counts in zip(rows, valid, strict=True) if counts]
        latest = np.asarray(history.weights)[np.asarray(history.valid)]
        assert sorted(latest[:, 0]) == sorted(written[-5:])
        np.testing.assert_array_equal(np.asarray(history.before)[np.asarray(history.valid)], latest + 100)
        np.testing.assert_array_equal(np.asarray(history.change)[np.asarray(history.valid)], latest + 200)
    assert int(history.count) == len(written) == 9


def marked(numbers: np.ndarray) -> Any:
    """Learners in name only: what tells them apart is a number."""
    return {"mark": jnp.asarray(numbers, float)}


def kept_by_a_loop(points: list[np.ndarray], space: ObjectiveScaler, directions: int, depth: int) -> set[int]:
    """Which of the points stay, all of them offered at once."""
    rays = [ray / np.sqrt(sum(ray**2)) for ray in interior_simplex(directions, MIN_COMPONENT)]
    found: dict[int, list[tuple[float, int]]] = {}
    for number, point in enumerate(points):
        if not np.isfinite(point).all():
            continue
        out = [max(float(value), 0.0) for value in (point - np.asarray(space.low)) / np.asarray(space.span)]
        cosines = [sum(a * b for a, b in zip(out, ray, strict=True)) for ray in rays]
        distance = sum(value**2 for value in out) ** 0.5
        found.setdefault(cosines.index(max(cosines)), []).append((distance, number))
    return {number for some in found.values() for _, number in sorted(some, reverse=True)[:depth]}


def test_buffers_keep_what_a_plain_loop_keeps() -> None:
    rng = np.random.default_rng(3)
    space = ObjectiveScaler(jnp.asarray([0.2, -5.0, -40.0]), jnp.asarray([0.5, 3.0, 30.0]))
    buffers = PerformanceBuffer.init(10, 2, marked(np.zeros(4)))
    insert = jax.jit(PerformanceBuffer.insert)
    offered: list[np.ndarray] = []
    for batch in range(20):
        rewards = np.asarray(space.low) + rng.uniform(-0.2, 1, (4, 3)) * np.asarray(space.span)
        if batch % 5 == 0:
            rewards[1] = np.nan
        numbers = len(offered) + np.arange(4)
        buffers = insert(buffers, marked(numbers), jnp.asarray(rewards, float), space)
        offered += list(rewards)
        valid = np.asarray(buffers.valid)
        marks = np.asarray(buffers.kept["mark"])[valid].astype(int)
        assert set(marks) == kept_by_a_loop(offered, space, 10, 2)
        # Slot by slot a learner and its own point; nothing where there is none.
        np.testing.assert_allclose(np.asarray(buffers.points)[valid], np.stack(offered)[marks], rtol=1e-5)
        assert np.all(np.asarray(buffers.points)[~valid] == -np.inf)
    assert len(marks) > 10


def merit(points: list[np.ndarray], reference: np.ndarray, alpha: float) -> float:
    rows = np.stack(points).astype(np.float64)
    return hypervolume(rows, reference) / float(np.prod(1 - reference)) - alpha * sparsity(
        rows[nondominated_indices(rows)]
    )


@pytest.mark.parametrize("alpha", [0.0, 1.0, 20.0])
def test_the_greedy_choice_is_that_of_brute_force(alpha: float) -> None:
    rng = np.random.default_rng(4)
    reference = np.array([-0.5, -1.0, -0.2])
    for _ in range(3):
        points, valid = rng.random((6, 3)), np.array([True, True, False, True, True, True])
        predicted, there = rng.uniform(-0.3, 1.3, (4, 5, 3)), np.array([True, False, True, True])
        chosen = jax.jit(choose_tasks, static_argnums=6)(
            *(jnp.asarray(value) for value in (points, valid, predicted, there, reference)), alpha, 4
        )
        so_far, taken = list(points[valid]), set[tuple[int, int]]()
        for policy, weight in zip(chosen.policy.tolist(), chosen.weight.tolist(), strict=True):
            pairs = [(p, w) for p in range(4) if there[p] for w in range(5) if (p, w) not in taken]
            merits = {pair: merit([*so_far, predicted[pair]], reference, alpha) for pair in pairs}
            assert merits[policy, weight] == pytest.approx(max(merits.values()), abs=1e-6)
            taken.add((policy, weight))
            so_far.append(predicted[policy, weight])


def test_where_tasks_are_more_than_pairs_some_are_done_twice() -> None:
    predicted = jnp.asarray(np.random.default_rng(5).random((2, 2, 3)))
    there = jnp.asarray([False, True])
    chosen = choose_tasks(jnp.zeros((1, 3)), jnp.ones(1, bool), predicted, there, jnp.zeros(3), 1.0, 5)
    assert set(chosen.policy.tolist()) == {1}
    assert set(chosen.weight.tolist()) == {0, 1}


def test_a_front_below_the_reference_does_not_stop_the_choice() -> None:
    predicted = jnp.asarray(np.random.default_rng(5).random((3, 2, 3)))
    there = jnp.asarray([False, True, True])
    for worst in (1.0, 2.0):
        reference = jnp.asarray([0.0, worst, 0.0])
        chosen = choose_tasks(jnp.zeros((1, 3)), jnp.ones(1, bool), predicted, there, reference, 0.0, 4)
        pairs = set(zip(chosen.policy.tolist(), chosen.weight.tolist(), strict=True))
        assert pairs == {(1, 0), (1, 1), (2, 0), (2, 1)}


@pytest.fixture(scope="module")
def tiny() -> Environment:
    return Environment(build_system(load_scenario("paper", {"fleet.size": 3, "rounds": 10})))


def guided(environment: Environment, **changes: Any) -> PGMORL:
    values: dict[str, Any] = {
        "budget": 1500,
        "num_envs": 2,
        "update_epochs": 1,
        "num_minibatches": 2,
        "validation_episodes": 2,
    }
    values |= {
        "num_preferences": 3,
        "archive_size": 6,
        "num_tasks": 2,
        "generation_steps": 3,
        "buffer_count": 3,
        "num_weights": 6,
    }
    return PGMORL(environment, PGMORLConfig(**{**values, **changes}))


@pytest.mark.parametrize("count", [3, 7, 10])
def test_the_warm_up_covers_the_simplex(tiny: Environment, count: int) -> None:
    algorithm = guided(tiny, num_preferences=count)
    weights = np.asarray(algorithm.init(jax.random.key(0)).train_states.preference)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert weights.min() == pytest.approx(algorithm.config.min_weight, abs=1e-6)
    # Every corner has one, and no preference is farther from all of them than is usual for so many.
    assert np.all(weights.max(axis=0) > 0.85)
    asked = np.random.default_rng(6).dirichlet(np.ones(3), 500)
    assert np.linalg.norm(asked[:, None] - weights, axis=-1).min(axis=1).max() < 1.3 / np.sqrt(count)


WARM_UP = 7  # steps


def step(state: PGMORLState, rewards: np.ndarray) -> PGMORLState:
    """As training would leave it, but for what it learns: every learner's network is another."""
    population = state.train_states
    network = jax.tree.map(lambda leaf: 1.1 * leaf if eqx.is_inexact_array(leaf) else leaf, population.network)
    after = replace(population, network=network, steps=population.steps + 1)
    return STEP(state, after, jnp.asarray(rewards, float), jnp.asarray(0))


STEP = eqx.filter_jit(PGMORLState.after_step)


def earned(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.random((count, 3)) * [0.5, 3, 30] + [0.1, -5, -40]


@pytest.fixture(scope="module")
def warmed_up(tiny: Environment) -> PGMORLState:
    state, rng = guided(tiny).init(jax.random.key(1)), np.random.default_rng(7)
    for _ in range(WARM_UP):
        state = step(state, earned(rng, 3))
    return state


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs if eqx.is_array(a))


@pytest.mark.slow
def test_a_generation_goes_on_from_the_buffers(tiny: Environment, warmed_up: PGMORLState) -> None:
    algorithm = guided(tiny)
    begun = algorithm.begin_stage(1, warmed_up)
    assert tree_length(begun.train_states) == 2
    kept = [tree_index(warmed_up.buffers.kept, slot) for slot in np.flatnonzero(np.asarray(warmed_up.buffers.valid))]
    candidates = interior_simplex(6, algorithm.config.min_weight)
    for number in range(2):
        learner: TrainState = tree_index(begun.train_states, number)
        (parent,) = [one for one in kept if same(one.network, learner.network)]
        # Nothing of it is lost but its weight: optimiser, normalisation and the steps it has made.
        assert same((parent.optimiser, parent.normaliser, parent.returns, parent.steps), own(learner))
        assert int(learner.steps) > 0
        assert np.abs(candidates - np.asarray(learner.preference)).max(axis=1).min() < 1e-6
    assert len(np.unique(jax.random.key_data(begun.train_states.key), axis=0)) == 2
    assert same(begun.policy_archive.archive, warmed_up.policy_archive.archive)


def own(learner: TrainState) -> Any:
    return learner.optimiser, learner.normaliser, learner.returns, learner.steps


def test_a_record_is_what_a_generation_of_steps_did(tiny: Environment, warmed_up: PGMORLState) -> None:
    assert int(warmed_up.history.count) == 3 * (WARM_UP // 3)
    state, rng = guided(tiny).begin_stage(1, warmed_up), np.random.default_rng(8)
    rewards = [earned(rng, 2) for _ in range(4)]
    for values in rewards:
        state = step(state, values)
    # Of the second generation of steps there is one so far, and of the one that the warm-up began none is left.
    new = slice(int(warmed_up.history.count), int(state.history.count))
    assert new.stop - new.start == 2
    np.testing.assert_array_equal(state.history.weights[new], state.train_states.preference)
    np.testing.assert_allclose(state.history.before[new], rewards[0], rtol=1e-5)
    np.testing.assert_allclose(state.history.change[new], rewards[2] - rewards[0], rtol=1e-4, atol=1e-4)


def test_a_failed_evaluation_leaves_no_record(tiny: Environment) -> None:
    state, rewards = guided(tiny).init(jax.random.key(1)), np.eye(3)
    for number in range(3):
        rewards[1] = np.nan if number == 2 else rewards[1]
        state = step(state, rewards)
    assert int(state.history.count) == 2
    assert np.all(np.isfinite(state.history.change))
    assert np.all(np.isfinite(np.asarray(state.buffers.points)[np.asarray(state.buffers.valid)]))


def test_the_archive_has_what_played_and_the_buffers_what_became_of_it(tiny: Environment) -> None:
    before = guided(tiny).init(jax.random.key(1))
    after = step(before, np.eye(3))
    for kept, points, population in (
        (after.policy_archive.kept, after.policy_archive.archive, before.train_states),
        (after.buffers.kept, after.buffers, after.train_states),
    ):
        for number in range(3):
            (slot,) = np.flatnonzero(np.all(np.asarray(points.points) == np.eye(3)[number], axis=1))
            assert same(tree_index(kept.network, slot), tree_index(population.network, number))
    assert not same(before.train_states.network, after.train_states.network)
