"""One point more, for many candidates at once, against each of them added and measured on its own."""

import numpy as np
from brute_force import ROWS, broken, cells, masks, point_sets, sphere, tied, tried_on

from tandem.pareto import hypervolume, hypervolume_improvement, nondominated_indices, sparsity, sparsity_if_added

REFERENCE = np.float32([1, 0, 1])


def test_by_hand() -> None:
    # A cube of side 2: one of side 3 adds 27 - 8, a slab on top 2 x 2 x 1, a point inside nothing.
    points = np.float32([[2, 2, 2]])
    candidates = np.float32([[3, 3, 3], [2, 2, 3], [1, 2, 1], [5, 5, 0], [np.nan, 9, 9]])
    assert hypervolume_improvement(points, None, candidates, np.zeros(3, np.float32)).tolist() == [19, 4, 0, 0, 0]
    # Two that part no gap: one alone has none, (5, 5, 0) beside the cube has 9 + 9 + 4.
    assert sparsity_if_added(points, None, candidates).tolist() == [0, 0, 0, 22, 0]


@tried_on(point_sets(tied | broken), masks(), point_sets(tied | broken))
def test_gains_are_cells_counted_one_by_one(points: np.ndarray, valid: np.ndarray, candidates: np.ndarray) -> None:
    before = cells(points[valid], REFERENCE)
    expected = [cells(np.vstack([points[valid], one]), REFERENCE) - before for one in candidates]
    assert hypervolume_improvement(points, valid, candidates, REFERENCE).tolist() == expected


@tried_on(point_sets(tied | broken), masks(), point_sets(tied | broken))
def test_sparsity_is_that_of_the_front_with_each(points: np.ndarray, valid: np.ndarray, candidates: np.ndarray) -> None:
    expected = []
    for one in candidates:
        together = np.vstack([points[valid], one])
        expected.append(sparsity(together[nondominated_indices(together)]))
    np.testing.assert_allclose(sparsity_if_added(points, valid, candidates), expected, rtol=1e-6)


def test_many_points() -> None:
    points, candidates = sphere(120), 1.1 * sphere(ROWS, 1)
    reference = np.full(3, 0.05, np.float32)
    before = hypervolume(points, reference)
    for one, gain, sparse in zip(
        candidates,
        hypervolume_improvement(points, None, candidates, reference),
        sparsity_if_added(points, None, candidates),
        strict=True,
    ):
        together = np.vstack([points, one])
        np.testing.assert_allclose(gain, hypervolume(together, reference) - before, rtol=1e-3)
        np.testing.assert_allclose(sparse, sparsity(together[nondominated_indices(together)]), rtol=1e-4)
