"""Dominance against its definition, pair by pair."""

import jax
import numpy as np
from brute_force import ROWS, broken, masks, point_sets, spread, tied, tried_on
from brute_force import dominates as slow_dominates
from brute_force import non_dominated as slow_non_dominated

from tandem.pareto import dominates, is_nondominated, nondominated_indices


def test_by_hand() -> None:
    # a beats b in one objective and equals it in the others; c and a each win one; nothing dominates itself.
    a, b, c = np.float32([[0.9, -1, -2], [0.8, -1, -2], [0.95, -1, -3]])
    assert dominates(a, b)
    assert not dominates(b, a)
    assert not dominates(a, c)
    assert not dominates(c, a)
    assert not dominates(a, a)


@tried_on(point_sets())
def test_every_pair(points: np.ndarray) -> None:
    pairs = np.asarray(dominates(points[:, None], points[None, :]))
    assert pairs.tolist() == [[slow_dominates(a, b) for b in points] for a in points]


@tried_on(point_sets(tied | broken), masks())
def test_mask_is_that_of_the_definition(points: np.ndarray, valid: np.ndarray) -> None:
    assert is_nondominated(points, valid).tolist() == slow_non_dominated(points, valid)
    assert nondominated_indices(points).tolist() == np.flatnonzero(slow_non_dominated(points)).tolist()


@tried_on(point_sets(spread))
def test_compiled_and_host_agree(points: np.ndarray) -> None:
    assert np.flatnonzero(is_nondominated(points)).tolist() == nondominated_indices(points).tolist()


def test_of_equal_points_the_first() -> None:
    points = np.float32([[0, 0, 0], [1, 2, 3], [1, 2, 3], [3, 2, 1], [1, 2, 3]])
    assert is_nondominated(points).tolist() == [False, True, False, True, False]
    assert is_nondominated(points, np.array([True, False, True, True, True])).tolist() == [
        False,
        False,
        True,
        True,
        False,
    ]


def test_nothing_counts() -> None:
    nan = np.full((ROWS, 3), np.nan, np.float32)
    assert not is_nondominated(nan).any()
    assert not is_nondominated(np.ones((ROWS, 3), np.float32), np.zeros(ROWS, bool)).any()
    assert nondominated_indices(nan).tolist() == []
    assert nondominated_indices([]).tolist() == []


def test_a_batch_of_sets() -> None:
    sets = np.random.default_rng(0).integers(0, 4, (5, ROWS, 3)).astype(np.float32)
    together = jax.vmap(is_nondominated)(sets)
    assert together.tolist() == [slow_non_dominated(points) for points in sets]
