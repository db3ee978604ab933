"""Evolution: its parts by themselves, its two schemes on a problem with a known front, and networks as its genes."""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tandem.feel import Environment, build_system
from tandem.learn import ALGORITHMS, init_checkpoint, train
from tandem.learn.evolution.operators import DifferentialEvolution, SimulatedBinaryCrossover, VariationOperator
from tandem.learn.evolution.param_vector import from_param_vector, param_scale, to_param_vector
from tandem.learn.evolution.selection import (
    Decomposition,
    NonDominatedSorting,
    Offspring,
    Selection,
    run_generation,
    shortfall,
)
from tandem.pareto import hypervolume, simplex_grid
from tandem.policy.networks import NETWORKS
from tandem.scenario import load_scenario
from tandem.tree import tree_stack

KEY = jax.random.key(3)
VARIABLES, GENERATIONS = 12, 150
WEIGHTS = np.maximum(simplex_grid(12), 1e-4)  # 91 of them
MEMBERS = len(WEIGHTS)


def dtlz2(genes: jax.Array) -> jax.Array:
    """Deb et al.'s test problem with three objectives, maximised; its front is the unit sphere's negative octant."""
    tail = 1 + jnp.sum((genes[:, 2:] - 0.5) ** 2, axis=1)
    angles = 0.5 * jnp.pi * genes[:, :2]
    # In single precision the cosine of a right angle is below 0, and a point far from the front would be better for it.
    (cos_a, cos_b), (sin_a, sin_b) = jnp.maximum(jnp.cos(angles), 0.0).T, jnp.sin(angles).T
    return -tail[:, None] * jnp.stack([cos_a * cos_b, cos_a * sin_b, sin_a], axis=1)


@eqx.filter_jit
def evolved(selection: Selection, variation: VariationOperator, key: jax.Array) -> jax.Array:
    """The points of the last generation."""
    start_key, run_key = jax.random.split(key)
    genes = jax.random.uniform(start_key, (MEMBERS, VARIABLES))

    def one(state: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        found, _ = run_generation(selection, variation, lambda offspring: (dtlz2(offspring.genes), None), *state, key)
        return (found.genes, found.points), None

    first = (genes, jnp.full((MEMBERS, 3), -jnp.inf))
    return jax.lax.scan(one, first, jax.random.split(run_key, GENERATIONS))[0][1]


# Polynomial mutation of eta 20 over the range 1, of one gene on average, as everywhere in the literature.
within_box = partial(SimulatedBinaryCrossover, step=0.0629, rate=1 / VARIABLES, low=0.0, high=1.0)
SCHEMES: dict[str, Callable[[], tuple[Selection, VariationOperator]]] = {
    "moea-d": lambda: (Decomposition.init(WEIGHTS, max_replaced=MEMBERS), within_box()),
    "nsga2": lambda: (NonDominatedSorting(), within_box()),
    "moea-d-de": lambda: (Decomposition.init(WEIGHTS), DifferentialEvolution(0.0629, 1 / VARIABLES, 0.0, 1.0)),
}
REFERENCE = np.full(3, -1.1)


def quality(points: np.ndarray) -> float:
    return hypervolume(points, REFERENCE)


@pytest.mark.parametrize("name", SCHEMES)
def test_the_front_of_dtlz2_is_found(name: str) -> None:
    points = np.asarray(evolved(*SCHEMES[name](), KEY), np.float64)
    assert np.abs(np.linalg.norm(points, axis=1) - 1).mean() < 0.03
    # Of 0.7671, what 91 points spread evenly over the front dominate less than 0.75 of.
    assert quality(points) > 0.67
    assert np.all(points.max(axis=0) > -0.05)  # reaches the ends
    assert np.all(points.min(axis=0) < -0.9)


@pytest.mark.extras
@pytest.mark.parametrize("name", ["moea-d", "nsga2"])
def test_as_good_as_pymoo_s_at_equal_evaluations(name: str) -> None:
    pytest.importorskip("pymoo", reason="install it with pip install 'tandem[morl]'")
    from pymoo.algorithms.moo.moead import ParallelMOEAD
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.decomposition.tchebicheff import Tchebicheff
    from pymoo.optimize import minimize
    from pymoo.problems import get_problem

    def theirs(seed: int) -> float:
        algorithm = (
            NSGA2(pop_size=MEMBERS)
            if name == "nsga2"
            else ParallelMOEAD(WEIGHTS, n_neighbors=20, decomposition=Tchebicheff(), prob_neighbor_mating=0.9)
        )
        done = minimize(get_problem("dtlz2", n_var=VARIABLES), algorithm, ("n_gen", GENERATIONS), seed=seed)
        assert done.algorithm.evaluator.n_eval == MEMBERS * GENERATIONS
        return quality(-done.pop.get("F"))

    seeds = range(5)
    ours = np.array([quality(np.asarray(evolved(*SCHEMES[name](), jax.random.key(seed)))) for seed in seeds])
    other = np.array([theirs(seed) for seed in seeds])
    error = np.hypot(ours.std(ddof=1), other.std(ddof=1)) / np.sqrt(len(seeds))
    print(
        f"{name}: ours {ours.mean():.4f} +- {ours.std(ddof=1):.4f}, pymoo {other.mean():.4f} +- {other.std(ddof=1):.4f}"
    )
    assert ours.mean() > other.mean() - 3 * error


def test_shortfall_is_counted_from_the_ideal_to_the_nadir_of_the_front() -> None:
    points = jnp.asarray([[4.0, -10.0, 5.0], [0.0, -6.0, 5.0], [-9.0, -99.0, 5.0], [jnp.nan, 0.0, 0.0]])
    found = np.asarray(shortfall(points))
    np.testing.assert_allclose(found[:2], [[0, 1, 0], [1, 0, 0]])  # the third is dominated: it stretches no scale
    assert np.all(found[2, :2] > 1)
    assert np.all(np.isinf(found[3]))


def test_a_child_takes_few_places_and_only_where_it_is_better() -> None:
    weights = simplex_grid(3)
    members = len(weights)
    everywhere_better = jnp.concatenate([jnp.zeros((members, 3)), jnp.full((members, 3), -1.0).at[0].set(1.0)])
    for replaced in (1, 3, members):
        anyone = Decomposition.init(weights, members, max_replaced=replaced)
        held = eqx.filter_jit(anyone.survivors)(everywhere_better, KEY)
        assert int(jnp.sum(held == members)) == replaced
        assert int(jnp.sum(held > members)) == 0
    near = Decomposition.init(weights, neighbours=3, max_replaced=members)
    held = np.asarray(eqx.filter_jit(near.survivors)(everywhere_better, KEY))
    assert set(np.flatnonzero(held == members)) == set(np.asarray(near.neighbours[0]).tolist())
    assert np.asarray(near.neighbours)[:, 0].tolist() == list(range(members))


@pytest.mark.parametrize("neighbours", [2, 3, 10])
def test_mates_are_others_and_mostly_neighbours(neighbours: int) -> None:
    one = Decomposition.init(simplex_grid(3), neighbours, neighbour_prob=0.8)
    draw = jax.jit(jax.vmap(lambda key: one.parents(jnp.zeros((10, 3)), key)))
    drawn = np.asarray(draw(jax.random.split(KEY, 200))).reshape(-1, 3)
    assert np.all(drawn[:, 0] == np.tile(np.arange(10), 200))
    assert not np.any(drawn[:, 1:] == drawn[:, :1])
    if neighbours > 2:
        assert not np.any(drawn[:, 1] == drawn[:, 2])
    at_home = [set(near.tolist()) for near in np.asarray(one.neighbours)]
    share = np.mean([mate in at_home[base] for base, mate, _ in drawn])
    assert share == pytest.approx(0.8 + 0.2 * (neighbours - 1) / 9, abs=0.05)


def test_the_better_of_two_is_a_parent_more_often() -> None:
    points = -jnp.arange(10.0)[:, None] * jnp.ones(3)
    drawn = np.asarray(eqx.filter_jit(NonDominatedSorting().parents)(jnp.tile(points, (100, 1)), KEY)) % 10
    counts = np.bincount(drawn.ravel(), minlength=10)
    assert np.all(np.diff(counts) < 40)  # of 3,000, from 570 down to 30
    assert counts[0] > 8 * counts[9]


def test_the_first_generation_is_the_population_itself() -> None:
    genes = jax.random.normal(KEY, (6, 4))

    def evaluate(offspring: Offspring) -> tuple[jax.Array, str]:
        return offspring.genes[:, :3], "extra"

    scheme = NonDominatedSorting(), DifferentialEvolution(1.0, 1.0), evaluate
    first = eqx.filter_jit(lambda points: run_generation(*scheme, genes, points, KEY))
    found, extra = first(jnp.full((6, 3), -jnp.inf))
    np.testing.assert_array_equal(found.offspring.genes, genes)
    np.testing.assert_array_equal(found.genes, genes)
    np.testing.assert_array_equal(found.points, genes[:, :3])
    assert extra == "extra"
    second, _ = first(found.points)
    assert not np.any(np.asarray(second.offspring.genes) == np.asarray(genes))


def test_variation_is_what_the_books_say() -> None:
    count = 20_000
    base, mate, other = (jnp.full(count, value) for value in (1.0, 3.0, 2.0))
    mutated = DifferentialEvolution(step=0.1, rate=0.25).mutate(base, KEY) - base
    changed = np.asarray(mutated[mutated != 0])
    assert len(changed) / count == pytest.approx(0.25, abs=0.02)
    assert changed.std() == pytest.approx(0.1, rel=0.05)
    assert abs(changed.mean()) < 0.005
    np.testing.assert_allclose(DifferentialEvolution(0.1, 0.0)(base, mate, other, KEY), 1.5)
    # The two children that the same draw gives lie as far from the parents' middle on either side.
    binary = SimulatedBinaryCrossover(0.1, 0.0)
    one, two = binary.crossover(base, mate, other, KEY), binary.crossover(mate, base, other, KEY)
    np.testing.assert_allclose(one + two, 4.0, rtol=1e-5)
    assert np.mean(np.asarray(one) == 1.0) == pytest.approx(0.5, abs=0.02)
    assert np.mean(np.asarray(one) < 1.0) == pytest.approx(0.125, abs=0.02)
    assert np.mean(np.asarray(one) > 3.0) == pytest.approx(0.125, abs=0.02)
    boxed = SimulatedBinaryCrossover(5.0, 1.0, low=0.5, high=1.5)(base, mate, other, KEY)
    assert 0.5 == float(boxed.min()) < float(boxed.max()) == 1.5


@pytest.fixture(scope="module")
def tiny() -> Environment:
    return Environment(build_system(load_scenario("paper", {"fleet.size": 3, "rounds": 10})))


@pytest.mark.parametrize("name", NETWORKS)
def test_genes_are_the_actor_and_nothing_else(name: str, tiny: Environment) -> None:
    networks = tree_stack([NETWORKS[name].init(tiny, key) for key in jax.random.split(KEY, 3)])
    genes = to_param_vector(networks)
    again = from_param_vector(networks, genes)
    for one, other in zip(jax.tree.leaves(networks), jax.tree.leaves(again), strict=True):
        assert one is other or np.array_equal(one, other)
    weights = jax.tree.leaves(eqx.filter(networks, eqx.is_inexact_array))
    critic = jax.tree.leaves(eqx.filter(networks.critic, eqx.is_inexact_array))
    assert genes.shape == (3, sum(leaf[0].size for leaf in weights) - sum(leaf[0].size for leaf in critic))
    other = from_param_vector(networks, genes + 1.0)
    for one, two in zip(critic, jax.tree.leaves(eqx.filter(other.critic, eqx.is_inexact_array)), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(to_param_vector(other), genes + 1.0)
    # A quiet last layer is to be changed quietly: every layer has its own scale.
    scale = np.asarray(param_scale(networks))
    assert scale.shape == genes.shape[1:]
    assert scale.max() / scale.min() > 10
    assert np.sqrt(np.mean((np.asarray(genes) / scale) ** 2)) == pytest.approx(1.0, rel=0.1)


@pytest.mark.slow
def test_seeds_come_from_the_warm_start_with_their_normalisers(tiny: Environment) -> None:
    kind = ALGORITHMS["nsga2"]
    values = {
        "budget": 900,
        "num_envs": 2,
        "update_epochs": 1,
        "num_minibatches": 2,
        "validation_episodes": 2,
        "archive_size": 6,
    }
    one = kind(tiny, kind.config_type(**values, num_preferences=3, population_size=12, episodes_per_eval=1))
    start = init_checkpoint(one, 0)
    for leaf in jax.tree.leaves(eqx.filter(start.state.train_states.network, eqx.is_array)):
        np.testing.assert_array_equal(leaf[0], leaf[1])  # one origin, so that weights can be crossed
    states = [now for now, _ in train(one, start)]
    learners = next(now for now in reversed(states) if now.stage == 0).state
    seeded = one.begin_stage(1, learners)
    # As in a state that was read from a file, or the program would be compiled twice.
    assert not any(getattr(leaf, "weak_type", False) for leaf in jax.tree.leaves(eqx.filter(seeded, eqx.is_array)))
    rows = np.asarray(to_param_vector(seeded.members.network))
    np.testing.assert_array_equal(rows[:3], to_param_vector(learners.train_states.network))
    assert len(np.unique(rows, axis=0)) == len(rows) == 12  # what would be there twice was mutated
    known = {tuple(row) for row in np.asarray(seeded.members.normaliser.devices.mean).tolist()}
    final = states[-1].state
    assert {tuple(row) for row in np.asarray(final.members.normaliser.devices.mean).tolist()} <= known
    assert np.all(np.isfinite(final.points))
    # The archive holds policies that were bred, beside those that were trained.
    born = np.asarray(final.policy_archive.kept.stage)[np.asarray(final.policy_archive.archive.valid)]
    assert set(born.tolist()) <= {0, 1}
    assert np.any(born == 1)
