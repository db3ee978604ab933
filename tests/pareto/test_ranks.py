"""Fronts behind the front, against their definition in plain Python."""

import jax
import numpy as np
from brute_force import ROWS, broken, crowding, masks, point_sets, spread, tied, tried_on

from tandem.pareto import crowding_per_front, pareto_rank


def ranks_by_definition(points: np.ndarray, valid: np.ndarray) -> list[int]:
    """Peel off what nothing that is left dominates, again and again."""
    left = [row for row in range(len(points)) if valid[row] and np.isfinite(points[row]).all()]
    ranks, depth = [len(points)] * len(points), 0
    while left:
        outer = [row for row in left if not any(beats(points[other], points[row]) for other in left)]
        for row in outer:
            ranks[row] = depth
        left = [row for row in left if row not in outer]
        depth += 1
    return ranks


def beats(a: np.ndarray, b: np.ndarray) -> bool:
    return all(x >= y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))


def test_by_hand() -> None:
    points = np.float32([[2, 2, 2], [1, 1, 1], [3, 0, 0], [1, 1, 1], [0, 0, 0], [np.nan, 9, 9]])
    assert pareto_rank(points).tolist() == [0, 1, 0, 1, 2, 6]


@tried_on(point_sets(tied | spread | broken), masks())
def test_ranks_by_their_definition(points: np.ndarray, valid: np.ndarray) -> None:
    assert pareto_rank(points, valid).tolist() == ranks_by_definition(points, valid)


@tried_on(point_sets(tied | spread), masks())
def test_room_among_those_of_the_same_rank(points: np.ndarray, valid: np.ndarray) -> None:
    ranks = np.asarray(ranks_by_definition(points, valid))
    expected = np.zeros(ROWS)
    for rank in set(ranks.tolist()) - {ROWS}:
        rows = np.flatnonzero(ranks == rank)
        expected[rows] = list(crowding(points[rows].astype(np.float64)).values())
    found = crowding_per_front(points, ranks.astype(np.int32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_shapes_are_known_without_running() -> None:
    points = jax.ShapeDtypeStruct((7, 3), np.float32)
    ranks = jax.eval_shape(pareto_rank, points)
    assert (ranks.shape, ranks.dtype) == ((7,), np.int32)
    assert jax.eval_shape(crowding_per_front, points, ranks).shape == (7,)
