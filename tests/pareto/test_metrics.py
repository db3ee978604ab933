"""Sparsity, expected utility, distance to a front and size, by hand; the preference vectors."""

import math

import numpy as np
import pytest
from brute_force import point_sets, sphere, spread, tried_on
from hypothesis import strategies as st

from tandem.errors import InputError
from tandem.pareto import (
    Ranges,
    cardinality,
    expected_utility,
    interior_simplex,
    inverted_generational_distance,
    normalise,
    ranges_of,
    simplex_grid,
    sparsity,
)

THREE = np.array([[0.9, -4.0, -10.0], [0.5, -1.0, -6.0], [0.6, -2.0, -2.0]])
UNIT = Ranges(np.zeros(3), np.ones(3))


def test_sparsity_by_hand() -> None:
    # Sorted accuracy 0.5 0.6 0.9: 0.1^2 + 0.3^2 = 0.1; latency -4 -2 -1: 4 + 1 = 5; energy -10 -6 -2: 16 + 16 = 32.
    # (0.1 + 5 + 32) / 2 = 18.55, nearly all of it energy.
    assert sparsity(THREE) == pytest.approx(18.55)
    # On the ranges 0.4, 3 and 8: 0.1 / 0.16 = 0.625, 5 / 9 = 0.5556, 32 / 64 = 0.5; (0.625 + 0.5556 + 0.5) / 2.
    assert sparsity(THREE, ranges_of(THREE)) == pytest.approx((0.625 + 5 / 9 + 0.5) / 2)


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
    assert expected_utility(THREE, weights, ranges_of(THREE)) == pytest.approx((3 + (0.25 + 2 / 3 + 1) / 3) / 4)
    # A front without its accurate policy is worth less, by what that preference loses.
    assert expected_utility(THREE[1:], weights[:1], ranges_of(THREE)) == pytest.approx(0.25)


def test_expected_utility_ignores_dominated_and_broken_points() -> None:
    weights = simplex_grid(6)
    more = np.concatenate([THREE, THREE - 1, [[math.nan, 0, 0]]])
    assert expected_utility(more, weights, ranges_of(THREE)) == expected_utility(THREE, weights, ranges_of(THREE))
    assert math.isnan(expected_utility([], weights, UNIT))


def test_distance_by_hand() -> None:
    # To a front of (0, 0, 0) and (1, 1, 1) from (0, 0, 0) alone: 0 and sqrt(3), mean sqrt(3)/2.
    target = [[0, 0, 0], [1, 1, 1]]
    assert inverted_generational_distance([[0, 0, 0]], target, UNIT) == pytest.approx(math.sqrt(3) / 2)
    # The same on a scale where the first objective has twice the range: 0 and sqrt(0.25 + 1 + 1).
    wide = Ranges(np.zeros(3), np.array([2.0, 1.0, 1.0]))
    assert inverted_generational_distance([[0, 0, 0]], target, wide) == pytest.approx(0.75)
    assert inverted_generational_distance(target, target, UNIT) == 0
    assert math.isnan(inverted_generational_distance([], target, UNIT))
    with pytest.raises(InputError, match="reference_front"):
        inverted_generational_distance(target, [], UNIT)


def test_cardinality() -> None:
    assert cardinality(np.concatenate([THREE, THREE, THREE - 1])) == 3
    assert cardinality([]) == 0


def test_normalise() -> None:
    np.testing.assert_allclose(normalise(THREE, ranges_of(THREE)), [[1, 0, 0], [0, 1, 0.5], [0.25, 2 / 3, 1]])
    flat = np.array([[1.0, 2, 3], [1.0, 4, 3]])
    np.testing.assert_array_equal(normalise(flat, ranges_of(flat)), [[0, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(normalise([[9.0, 3, 9]], ranges_of(flat)), [[0, 0.5, 0]])
    with pytest.raises(InputError, match="no finite point"):
        ranges_of([[math.nan, 0, 0]])


def test_inputs_are_not_written_to() -> None:
    points = sphere(8, dtype=np.float64)
    before = points.copy()
    ranges = ranges_of(points)
    sparsity(points, ranges)
    expected_utility(points, simplex_grid(3), ranges)
    inverted_generational_distance(points, points, ranges)
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
    np.testing.assert_allclose(interior_simplex(3, lowest=0.2).max(axis=1), 0.6)


def test_bad_weights() -> None:
    with pytest.raises(InputError, match="divisions"):
        simplex_grid(0)
    with pytest.raises(InputError, match="count"):
        interior_simplex(0)
    for lowest in (0.0, 1 / 3, math.nan):
        with pytest.raises(InputError, match="lowest"):
            interior_simplex(10, lowest=lowest)
