"""Hypervolume and its improvement against counted cells and against random samples."""

import numpy as np
import pytest
from brute_force import ROWS, broken, cells, masks, padded, point_sets, sphere, tied, tried_on

from tandem.errors import InputError
from tandem.pareto import hypervolume, hypervolume_improvement

ORIGIN = np.zeros(3, np.float32)
REFERENCE = np.float32([1, 0, 1])


def test_volume_by_hand() -> None:
    # Boxes 3 x 1 x 1 and 1 x 2 x 2 from the origin share a unit cube: 3 + 4 - 1 = 6.
    points = np.float32([[3, 1, 1], [1, 2, 2]])
    assert hypervolume(points, ORIGIN) == 6
    # From (1, 0, 0) the second has no width: 2 x 1 x 1.
    assert hypervolume(points, [1, 0, 0]) == 2


@tried_on(point_sets(tied | broken), masks())
def test_volume_is_the_number_of_cells(points: np.ndarray, valid: np.ndarray) -> None:
    assert hypervolume(points[valid], REFERENCE) == cells(points[valid], REFERENCE)


def test_volume_is_the_share_of_random_samples() -> None:
    # 200,000 samples of the unit cube: the share below some point has a standard error of at most 0.0011.
    points = sphere(20, seed=3)
    samples = np.random.default_rng(4).random((200_000, 3), np.float32)
    below = np.zeros(len(samples), bool)
    for point in points:
        below |= (samples < point).all(axis=1)
    assert abs(hypervolume(points, ORIGIN) - below.mean()) < 0.005


@tried_on(point_sets())
def test_volume_ignores_order_duplicates_and_dominated_points(points: np.ndarray) -> None:
    volume = hypervolume(points, ORIGIN)
    shuffle = np.random.default_rng(5).permutation(ROWS)
    assert hypervolume(points[shuffle], ORIGIN) == volume
    assert hypervolume(np.concatenate([points, points]), ORIGIN) == volume
    assert hypervolume(np.concatenate([points, points - 1]), ORIGIN) == volume
    assert hypervolume(np.roll(points, 1, axis=1), ORIGIN) == volume


def test_nothing_has_no_volume() -> None:
    assert hypervolume(sphere(ROWS), np.ones(3)) == 0
    assert hypervolume([], [0, 0, 0]) == 0
    assert hypervolume([[np.nan, 1, 1], [1, 0, 1]], [0, 0, 0]) == 0


def test_inputs_are_not_written_to() -> None:
    points, reference = sphere(ROWS, dtype=np.float64), np.zeros(3)
    before = points.copy()
    hypervolume(points, reference)
    np.testing.assert_array_equal(points, before)
    np.testing.assert_array_equal(reference, 0)


@pytest.mark.parametrize("reference", [[0, 0], [[0, 0, 0]], [0, 0, np.nan], [0, 0, np.inf]])
def test_bad_reference(reference: object) -> None:
    with pytest.raises(InputError, match=r"reference.*three finite numbers"):
        hypervolume(sphere(3), reference)


def test_bad_points() -> None:
    with pytest.raises(InputError, match=r"points has shape \(3,\)"):
        hypervolume([1.0, 2.0, 3.0], [0, 0, 0])


def test_improvement_by_hand() -> None:
    # A cube of side 2: one of side 3 adds 27 - 8, a slab on top 2 x 2 x 1, a point inside nothing.
    points, valid = padded(np.float32([[2, 2, 2]]))
    candidates, _ = padded(np.float32([[3, 3, 3], [2, 2, 3], [1, 2, 1], [5, 5, 0], [np.nan, 9, 9]]))
    assert hypervolume_improvement(points, valid, candidates, ORIGIN).tolist()[:5] == [19, 4, 0, 0, 0]


@tried_on(point_sets(tied | broken), masks(), point_sets(tied | broken))
def test_improvement_is_the_number_of_new_cells(points: np.ndarray, valid: np.ndarray, candidates: np.ndarray) -> None:
    before = cells(points[valid], REFERENCE)
    expected = [cells(np.vstack([points[valid], one]), REFERENCE) - before for one in candidates]
    assert hypervolume_improvement(points, valid, candidates, REFERENCE).tolist() == expected


def test_improvement_of_many_points() -> None:
    points, candidates = sphere(120), 1.1 * sphere(ROWS, 1)
    reference = np.full(3, 0.05, np.float32)
    before = hypervolume(points, reference)
    for one, gain in zip(candidates, hypervolume_improvement(points, None, candidates, reference), strict=True):
        np.testing.assert_allclose(gain, hypervolume(np.vstack([points, one]), reference) - before, rtol=1e-3)
