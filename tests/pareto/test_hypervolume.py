"""Hypervolume against counted cells, against moocore and against random samples."""

import jax
import moocore
import numpy as np
import pytest
from brute_force import ROWS, broken, cells, masks, point_sets, sphere, spread, tied, tried_on

from tandem.errors import InputError
from tandem.pareto import hypervolume, hypervolume_3d, hypervolume_contributions

ORIGIN = np.zeros(3, np.float32)


def test_by_hand() -> None:
    # Boxes 3 x 1 x 1 and 1 x 2 x 2 from the origin share a unit cube: 3 + 4 - 1 = 6; alone they give 2 and 3.
    points = np.float32([[3, 1, 1], [1, 2, 2]])
    assert hypervolume(points, ORIGIN) == 6
    assert hypervolume_3d(points, None, ORIGIN) == 6
    assert hypervolume_contributions(points, None, ORIGIN).tolist() == [2, 3]
    # From (1, 0, 0) the second has no width: 2 x 1 x 1.
    assert hypervolume(points, [1, 0, 0]) == 2
    assert hypervolume_3d(points, None, np.float32([1, 0, 0])) == 2


@tried_on(point_sets(tied | broken), masks())
def test_cells_counted_one_by_one(points: np.ndarray, valid: np.ndarray) -> None:
    reference = np.float32([1, 0, 1])
    assert hypervolume_3d(points, valid, reference) == cells(points[valid], reference)
    assert hypervolume(points[valid], reference) == cells(points[valid], reference)


@tried_on(point_sets(tied | broken), masks())
def test_contributions_are_what_removal_loses(points: np.ndarray, valid: np.ndarray) -> None:
    whole = cells(points[valid], ORIGIN)
    without = [cells(points[valid & (np.arange(ROWS) != row)], ORIGIN) for row in range(ROWS)]
    expected = [whole - rest if valid[row] else 0 for row, rest in enumerate(without)]
    assert hypervolume_contributions(points, valid, ORIGIN).tolist() == expected


@tried_on(point_sets(spread))
def test_single_precision_agrees_with_moocore(points: np.ndarray) -> None:
    reference = np.float32([-20, -30, -10])
    expected = moocore.hypervolume(points.astype(np.float64), ref=reference, maximise=True)
    np.testing.assert_allclose(hypervolume_3d(points, None, reference), expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("count", [1, 50, 300])
def test_precision(count: int) -> None:
    points = np.concatenate([sphere(count, dtype=np.float64), 0.7 * sphere(count // 2, 1, np.float64)])
    reference = np.full(3, 0.05)
    expected = moocore.hypervolume(points, ref=reference, maximise=True)
    alone = moocore.hv_contributions(points, ref=reference, maximise=True, ignore_dominated=False)
    with jax.enable_x64(True):
        np.testing.assert_allclose(hypervolume_3d(points, None, reference), expected, rtol=1e-12)
        np.testing.assert_allclose(hypervolume_contributions(points, None, reference), alone, atol=1e-12)
    single = points.astype(np.float32)
    np.testing.assert_allclose(hypervolume_3d(single, None, reference.astype(np.float32)), expected, rtol=1e-5)
    np.testing.assert_allclose(hypervolume(points, reference), expected, rtol=1e-14)


def test_small_contributions_keep_their_digits() -> None:
    # Two points a ten-thousandth apart in a volume of about 1: a difference of two volumes would leave three digits.
    points = np.float32([[1, 1, 0.5], [1.0001, 0.9999, 0.5]])
    expected = moocore.hv_contributions(points.astype(np.float64), ref=np.zeros(3), maximise=True)
    np.testing.assert_allclose(hypervolume_contributions(points, None, ORIGIN), expected, rtol=1e-6)


def test_share_of_random_samples() -> None:
    # 200,000 samples of the unit cube: the share below some point has a standard error of at most 0.0011.
    points = sphere(20, seed=3)
    samples = np.random.default_rng(4).random((200_000, 3), np.float32)
    below = np.zeros(len(samples), bool)
    for point in points:
        below |= (samples < point).all(axis=1)
    assert abs(float(hypervolume_3d(points, None, ORIGIN)) - below.mean()) < 0.005
    assert abs(hypervolume(points, ORIGIN) - below.mean()) < 0.005


@tried_on(point_sets())
def test_invariances(points: np.ndarray) -> None:
    volume = float(hypervolume_3d(points, None, ORIGIN))
    shuffle = np.random.default_rng(5).permutation(ROWS)
    assert hypervolume_3d(points[shuffle], None, ORIGIN) == volume
    twice = np.concatenate([points, points])
    worse = np.concatenate([points, points - 1])
    cyclic = np.roll(points, 1, axis=1)
    assert hypervolume_3d(twice, None, ORIGIN) == volume
    assert hypervolume_3d(worse, None, ORIGIN) == volume
    assert hypervolume_3d(cyclic, None, ORIGIN) == volume
    assert not hypervolume_contributions(twice, None, ORIGIN).any()


def test_nothing_there() -> None:
    points = sphere(ROWS)
    assert hypervolume_3d(points, np.zeros(ROWS, bool), ORIGIN) == 0
    assert hypervolume_3d(points, None, np.ones(3, np.float32)) == 0
    assert hypervolume_3d(np.full((ROWS, 3), np.nan, np.float32), None, ORIGIN) == 0
    assert hypervolume([], [0, 0, 0]) == 0
    assert hypervolume([[np.nan, 1, 1], [1, 0, 1]], [0, 0, 0]) == 0


def test_inputs_are_not_written_to() -> None:
    points, reference = sphere(ROWS, dtype=np.float64), np.zeros(3)
    before = points.copy()
    hypervolume(points, reference)
    np.testing.assert_array_equal(points, before)
    np.testing.assert_array_equal(reference, 0)


@pytest.mark.parametrize("reference", [[0, 0], [[0, 0, 0]], [0, 0, np.nan]])
def test_bad_reference(reference: object) -> None:
    with pytest.raises(InputError, match="give three finite numbers"):
        hypervolume(sphere(3), reference)


def test_bad_points() -> None:
    with pytest.raises(InputError, match="one row a policy"):
        hypervolume([1.0, 2.0, 3.0], [0, 0, 0])


def test_a_batch_of_sets_compiles_once() -> None:
    traces = 0

    @jax.jit
    @jax.vmap
    def volume(points: jax.Array, valid: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return hypervolume_3d(points, valid, ORIGIN)

    random = np.random.default_rng(6)
    for _ in range(3):
        points, valid = random.random((7, 20, 3), np.float32), random.random((7, 20)) < 0.8
        expected = [hypervolume(points[k][valid[k]], ORIGIN) for k in range(7)]
        np.testing.assert_allclose(volume(points, valid), expected, rtol=1e-5)
    assert traces == 1
