"""Crowding distance by hand and against its formula; the choice of policies to extend."""

import math
from functools import partial

import jax
import numpy as np
import pytest
from brute_force import ROWS, broken, crowding, masks, padded, point_sets, sphere, spread, tied, tried_on

from tandem.pareto import crowding_distance, select_for_extension

# Sorted by the first objective: 0, 1, 2, 3, 10; the second runs the other way; the third is constant.
LINE, IN_LINE = padded(np.float32([[3, 4, 7], [0, 10, 7], [10, 0, 7], [1, 9, 7], [2, 6, 7]]))


def test_by_hand() -> None:
    # (1, 9): (2 - 0)/10 + (10 - 6)/10 = 0.6; (2, 6): (3 - 1)/10 + (9 - 4)/10 = 0.7;
    # (3, 4): (10 - 2)/10 + (6 - 0)/10 = 1.4; the ends (0, 10) and (10, 0) are infinite; the third adds nothing.
    distance = crowding_distance(LINE, IN_LINE)
    np.testing.assert_allclose(distance, [1.4, math.inf, math.inf, 0.6, 0.7, *[0] * 5], rtol=1e-6)


def test_ends_only_of_the_valid() -> None:
    # Without (10, 0) the range of the first objective is 3, that of the second 6; (3, 4) is an end;
    # (1, 9): (2 - 0)/3 + (10 - 6)/6 = 4/3; (2, 6): (3 - 1)/3 + (9 - 4)/6 = 1.5.
    valid = IN_LINE & (np.arange(ROWS) != 2)
    distance = crowding_distance(LINE, valid)
    np.testing.assert_allclose(distance, [math.inf, math.inf, 0, 4 / 3, 1.5, *[0] * 5], rtol=1e-6)


@tried_on(point_sets(tied | spread | broken), masks())
def test_formula(points: np.ndarray, valid: np.ndarray) -> None:
    rows = np.flatnonzero(valid & np.isfinite(points).all(axis=1))
    expected = np.zeros(ROWS)
    if len(rows):
        expected[rows] = list(crowding(points[rows].astype(np.float64)).values())
    np.testing.assert_allclose(crowding_distance(points, valid), expected, rtol=1e-5, atol=1e-6)


@tried_on(point_sets())
def test_order_of_storage_does_not_matter(points: np.ndarray) -> None:
    points = np.unique(points, axis=0)
    points = np.concatenate([points, np.full((ROWS - len(points), 3), np.nan, np.float32)])
    shuffle = np.random.default_rng(1).permutation(ROWS)
    everywhere = np.ones(ROWS, bool)
    distance = np.asarray(crowding_distance(points, everywhere))
    np.testing.assert_array_equal(distance[shuffle], crowding_distance(points[shuffle], everywhere))


@pytest.mark.parametrize("valid", [np.zeros(ROWS, bool), np.arange(ROWS) == 3, np.ones(ROWS, bool)])
def test_no_range_no_distance(valid: np.ndarray) -> None:
    assert not crowding_distance(np.full((ROWS, 3), 2.5, np.float32), valid).any()


def test_a_range_that_is_no_number_is_none() -> None:
    # From -3e38 to 3e38 overflows, from 0 to 1e-45 is flushed to zero; the third objective alone has a range.
    points, valid = padded(np.float32([[-3e38, 0, 1], [0, 0, 2], [3e38, 1e-45, 4]]))
    np.testing.assert_allclose(crowding_distance(points, valid)[:3], [math.inf, 1, math.inf])
    assert sorted(select_for_extension(points, valid, 4).tolist()) == [-1, 0, 1, 2]


def test_selection_by_hand() -> None:
    # Of LINE, the best of the first objective is row 2, of the second row 1; doubled gaps: row 2 has
    # 2 * 7/10 + 2 * 4/10 = 2.2, row 1 has 2 * 1/10 + 2 * 1/10 = 0.4. Interior by distance: 0 (1.4), 4 (0.7), 3 (0.6).
    select = partial(select_for_extension, LINE, IN_LINE)
    assert select(1).tolist() == [0]  # half of one place is none: the interior
    assert select(2).tolist() == [2, 0]  # one end, one from the interior
    assert select(4).tolist() == [2, 1, 0, 4]
    assert select(6).tolist() == [2, 1, 0, 4, 3, -1]


def test_the_missing_gap_equals_the_one_there() -> None:
    # Row 0 is the best of the first objective, next to row 1: 2 * 1/10, and inside the second: (10 - 2)/10 = 0.8; in
    # all 1.0. Row 2 is the best of the second: 2 * 4/10, and lowest of the first: 2 * 4/10; in all 1.6.
    # With single gaps row 2 would have 0.8 and lose to row 0 with 0.9.
    five = np.float32([[10, 6, 0], [9, 2, 0], [0, 10, 0], [5, 0, 0], [4, 1, 0]])
    distance = crowding(five, finite=True)
    assert (round(distance[0], 6), round(distance[2], 6)) == (1.0, 1.6)
    points, valid = padded(five)
    assert select_for_extension(points, valid, 2).tolist()[0] == 2


def test_extended_policies_wait_for_the_others() -> None:
    times = np.zeros(ROWS, np.int32)
    rounds = []
    for _ in range(5):
        chosen = np.asarray(select_for_extension(LINE, IN_LINE, 2, times))
        times[chosen] += 1
        rounds.append(chosen.tolist())
    assert rounds[:3] == [[2, 0], [1, 4], [3, 2]]
    assert times.tolist() == [2] * 5 + [0] * 5


@tried_on(point_sets(tied | broken), masks())
def test_selection_is_a_choice_of_valid_rows(points: np.ndarray, valid: np.ndarray) -> None:
    chosen = np.asarray(select_for_extension(points, valid, 6))
    usable = np.flatnonzero(valid & np.isfinite(points).all(axis=1))
    taken = chosen[chosen >= 0]
    assert len(set(taken.tolist())) == len(taken) == min(6, len(usable))
    assert set(taken.tolist()) <= set(usable.tolist())
    assert (chosen[len(taken) :] == -1).all()


@pytest.mark.parametrize("count", [2, 4, 6])
def test_the_interior_has_its_half(count: int) -> None:
    points, valid = padded(sphere(ROWS, seed=2))
    distance = np.asarray(crowding_distance(points, valid))
    chosen = np.asarray(select_for_extension(points, valid, count))
    ends, interior = chosen[np.isinf(distance[chosen])], chosen[np.isfinite(distance[chosen])]
    assert len(ends) == min(3, count // 2)
    assert set(ends.tolist()) <= set(points.argmax(axis=0).tolist())
    inside = np.flatnonzero(np.isfinite(distance))
    assert interior.tolist() == inside[np.argsort(-distance[inside], kind="stable")][: len(interior)].tolist()


def test_ties_go_to_the_lower_index() -> None:
    assert select_for_extension(*padded(np.ones((6, 3), np.float32)), 4).tolist() == [0, 1, 2, 3]


def test_a_batch_of_sets_compiles_once() -> None:
    traces = 0

    @jax.jit
    @jax.vmap
    def both(points: jax.Array, valid: jax.Array, times: jax.Array) -> tuple[jax.Array, jax.Array]:
        nonlocal traces
        traces += 1
        return crowding_distance(points, valid), select_for_extension(points, valid, 4, times)

    random = np.random.default_rng(0)
    for _ in range(3):
        points = random.normal(size=(5, ROWS, 3)).astype(np.float32)
        valid, times = random.random((5, ROWS)) < 0.7, random.integers(0, 3, (5, ROWS))
        distance, chosen = both(points, valid, times)
        for k in range(5):
            np.testing.assert_allclose(distance[k], crowding_distance(points[k], valid[k]), rtol=1e-6)
            assert chosen[k].tolist() == select_for_extension(points[k], valid[k], 4, times[k]).tolist()
    assert traces == 1
