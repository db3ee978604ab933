"""Sparsity, expected utility, cardinality and preference vectors, worked by hand."""

import math

import numpy as np
import pytest
from brute_force import ROWS, broken, masks, padded, point_sets, sphere, spread, tied, tried_on
from hypothesis import strategies as st

from tandem.errors import InputError
from tandem.pareto import (
    Ranges,
    cardinality,
    expected_utility,
    interior_simplex,
    nondominated_indices,
    normalise,
    simplex_grid,
    sparsity,
    sparsity_if_added,
)

THREE = np.array([[0.9, -4.0, -10.0], [0.5, -1.0, -6.0], [0.6, -2.0, -2.0]])
THREE_RANGES = Ranges.from_points(THREE)
UNIT = Ranges(np.zeros(3), np.ones(3))


def test_sparsity_by_hand() -> None:
    # Sorted accuracy 0.5 0.6 0.9: 0.1^2 + 0.3^2 = 0.1; latency -4 -2 -1: 4 + 1 = 5; energy -10 -6 -2: 16 + 16 = 32.
    # (0.1 + 5 + 32) / 2 = 18.55, nearly all of it energy.
    assert sparsity(THREE) == pytest.approx(18.55)
    # On the ranges 0.4, 3 and 8: 0.1 / 0.16 = 0.625, 5 / 9 = 0.5556, 32 / 64 = 0.5; (0.625 + 0.5556 + 0.5) / 2.
    assert sparsity(THREE, THREE_RANGES) == pytest.approx((0.625 + 5 / 9 + 0.5) / 2)


def test_sparsity_if_added_by_hand() -> None:
    # One point alone has no gap; (5, 5, 0) beside (2, 2, 2) has 9 + 9 + 4.
    points, valid = padded(np.float32([[2, 2, 2]]))
    candidates, _ = padded(np.float32([[3, 3, 3], [2, 2, 3], [1, 2, 1], [5, 5, 0], [np.nan, 9, 9]]))
    assert sparsity_if_added(points, valid, candidates).tolist()[:5] == [0, 0, 0, 22, 0]


@tried_on(point_sets(tied | broken), masks(), point_sets(tied | broken))
def test_sparsity_if_added_is_that_of_the_front_with_each(
    points: np.ndarray, valid: np.ndarray, candidates: np.ndarray
) -> None:
    expected = []
    for one in candidates:
        together = np.vstack([points[valid], one])
        expected.append(sparsity(together[nondominated_indices(together)]))
    np.testing.assert_allclose(sparsity_if_added(points, valid, candidates), expected, rtol=1e-6)


def test_sparsity_if_added_to_many_points() -> None:
    points, candidates = sphere(120), 1.1 * sphere(ROWS, 1)
    for one, sparse in zip(candidates, sparsity_if_added(points, None, candidates), strict=True):
        together = np.vstack([points, one])
        np.testing.assert_allclose(sparse, sparsity(together[nondominated_indices(together)]), rtol=1e-4)


@pytest.mark.parametrize("points", [[], [[0.9, -1, -2]], [[0.9, -1, -2], [0.5, math.nan, -1]], [[1, 1, 1], [1, 1, 1]]])
def test_sparsity_of_hardly_a_set(points: list[list[float]]) -> None:
    assert sparsity(points) == 0
    assert sparsity(points, UNIT) == 0


@tried_on(point_sets(spread))
def test_sparsity_formula(points: np.ndarray) -> None:
    total = 0.0
    for column in points.astype(np.float64).T:
        values = sorted(column)
        total += sum((values[k + 1] - values[k]) ** 2 for k in range(len(values) - 1))
    assert sparsity(points) == pytest.approx(total / (len(points) - 1))
    assert sparsity(points[::-1]) == pytest.approx(sparsity(points))


def test_expected_utility_by_hand() -> None:
    # Normalised: (1, 0, 0), (0, 1, 0.5), (0.25, 2/3, 1). Accuracy alone: 1; latency alone: 1; energy alone: 1;
    # equal weights: the third, (0.25 + 2/3 + 1) / 3.
    weights = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]]
    assert expected_utility(THREE, weights, THREE_RANGES) == pytest.approx((3 + (0.25 + 2 / 3 + 1) / 3) / 4)
    # A front without its accurate policy is worth less, by what that preference loses.
    assert expected_utility(THREE[1:], weights[:1], THREE_RANGES) == pytest.approx(0.25)


def test_expected_utility_ignores_dominated_and_broken_points() -> None:
    weights = simplex_grid(6)
    more = np.concatenate([THREE, THREE - 1, [[math.nan, 0, 0]]])
    assert expected_utility(more, weights, THREE_RANGES) == expected_utility(THREE, weights, THREE_RANGES)
    assert math.isnan(expected_utility([], weights, UNIT))


def test_cardinality() -> None:
    assert cardinality(np.concatenate([THREE, THREE, THREE - 1])) == 3
    assert cardinality([]) == 0


def test_normalise() -> None:
    np.testing.assert_allclose(normalise(THREE, THREE_RANGES), [[1, 0, 0], [0, 1, 0.5], [0.25, 2 / 3, 1]])
    flat = np.array([[1.0, 2, 3], [1.0, 4, 3]])
    np.testing.assert_array_equal(normalise(flat, Ranges.from_points(flat)), [[0, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(normalise([[9.0, 3, 9]], Ranges.from_points(flat)), [[0, 0.5, 0]])
    with pytest.raises(InputError, match="none is finite"):
        Ranges.from_points([[math.nan, 0, 0]])


def test_inputs_are_not_written_to() -> None:
    points = sphere(8, dtype=np.float64)
    before = points.copy()
    ranges = Ranges.from_points(points)
    sparsity(points, ranges)
    expected_utility(points, simplex_grid(3), ranges)
    cardinality(points)
    np.testing.assert_array_equal(points, before)


def test_grid_by_hand() -> None:
    assert simplex_grid(1).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    half = [[2, 0, 0], [1, 1, 0], [1, 0, 1], [0, 2, 0], [0, 1, 1], [0, 0, 2]]
    assert (2 * simplex_grid(2)).tolist() == half


@tried_on(st.integers(1, 25))
def test_grid_lies_on_the_simplex(divisions: int) -> None:
    grid = simplex_grid(divisions)
    assert len(grid) == len(np.unique(grid, axis=0)) == (divisions + 1) * (divisions + 2) // 2
    assert (grid >= 0).all()
    np.testing.assert_allclose(grid.sum(axis=1), 1, rtol=1e-15)


@tried_on(st.integers(1, 40))
def test_interior_weights(count: int) -> None:
    weights = interior_simplex(count)
    assert len(weights) == len(np.unique(weights.round(9), axis=0)) == count
    assert (weights > 0.05 - 1e-12).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_array_equal(weights, interior_simplex(count))
    if count >= 3:
        # Every objective has its advocate, none is favoured by more than one weight could, and all keep apart.
        np.testing.assert_allclose(weights.max(axis=0), 0.9)
        assert np.abs(weights.sum(axis=0) - count / 3).max() < 0.4
        apart = np.linalg.norm(weights[:, None] - weights[None], axis=-1) + 9 * np.eye(count)
        assert apart.min() > 0.6 / math.sqrt(count)


def test_interior_weights_by_hand() -> None:
    # A grid of thirds, pulled in by 0.85 about the centre: 1 -> 0.9, 2/3 -> 0.6167, 1/3 -> 1/3, 0 -> 0.05.
    np.testing.assert_allclose(interior_simplex(10), 0.05 + 0.85 * simplex_grid(3), rtol=1e-14)
    np.testing.assert_allclose(interior_simplex(1), [[1 / 3, 1 / 3, 1 / 3]])
    # The corners, then what is farthest from them: the centre.
    np.testing.assert_allclose(interior_simplex(4)[3], 1 / 3)
    np.testing.assert_allclose(interior_simplex(3, min_weight=0.2).max(axis=1), 0.6)


def test_bad_weights() -> None:
    with pytest.raises(InputError, match="divisions"):
        simplex_grid(0)
    with pytest.raises(InputError, match="count"):
        interior_simplex(0)
    for min_weight in (0.0, 1 / 3, math.nan):
        with pytest.raises(InputError, match="min_weight"):
            interior_simplex(10, min_weight=min_weight)
