"""How good a front is, besides its hypervolume: density, usefulness to a user, distance to a better front, size.

On the host, in double precision. Points that are not finite do not count. Fronts are comparable only on a common scale,
so whatever normalises takes the ranges from outside (``ranges_of`` the union of the fronts, say).
"""

from __future__ import annotations

import moocore
import numpy as np
from numpy.typing import ArrayLike

from tandem.errors import InputError
from tandem.objectives import NUM_OBJECTIVES
from tandem.pareto.dominance import nondominated_indices
from tandem.pareto.points import Ranges, as_points, finite_rows, normalise
from tandem.pareto.types import HostPoints


def sparsity(points: ArrayLike, ranges: Ranges | None = None) -> float:
    """SP = 1/(|Psi|-1) sum_i sum_l (Z_i(l+1) - Z_i(l))^2 over sorted values; 0 for fewer than two points.

    The paper's sum adds objectives in their own units (so the one with the largest numbers rules), and so does this by
    default; with ``ranges`` it is taken on normalised objectives. The set is taken as it is, dominated points included.
    """
    rows = _finite(points) if ranges is None else normalise(_finite(points), ranges)
    if len(rows) < 2:
        return 0.0
    gaps = np.diff(np.sort(rows, axis=0), axis=0)
    return float(np.sum(gaps**2) / (len(rows) - 1))


def expected_utility(points: ArrayLike, weights: ArrayLike, ranges: Ranges) -> float:
    """EU = mean over w of max over z of w . z, with z normalised: what a user of unknown preference can expect.

    NaN for a front without points.
    """
    rows = normalise(_finite(points), ranges)
    if len(rows) == 0:
        return float("nan")
    return float(np.mean(np.max(as_points(weights) @ rows.T, axis=1)))


def inverted_generational_distance(points: ArrayLike, reference_front: ArrayLike, ranges: Ranges) -> float:
    """IGD = mean over reference points of the distance to the nearest point, with objectives normalised.

    NaN for a front without points.
    """
    rows, target = normalise(_finite(points), ranges), normalise(_finite(reference_front), ranges)
    if len(target) == 0:
        raise InputError("reference_front has no finite point; give the front to measure the distance to.")
    return float(moocore.igd(rows, ref=target, maximise=True)) if len(rows) else float("nan")


def cardinality(points: ArrayLike) -> int:
    """The number of different non-dominated points."""
    return len(nondominated_indices(points))


def _finite(points: ArrayLike) -> HostPoints:
    rows = as_points(points)
    return rows[finite_rows(rows)].reshape(-1, NUM_OBJECTIVES)
