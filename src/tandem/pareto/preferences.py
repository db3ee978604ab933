"""Preference vectors: weights of the three objectives, spread evenly over the simplex, without randomness."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.objectives import NUM_OBJECTIVES
from tandem.pareto.points import HostPoints

REFINEMENT = 6


def simplex_grid(divisions: int) -> HostPoints:
    """Return all w with w_i a multiple of 1/divisions and sum_i w_i = 1 (Das and Dennis), corners included.

    There are (d+1)(d+2)/2 rows for d divisions. The grid is for expected utility, where a user may prefer a single
    objective.
    """
    if divisions < 1:
        raise InputError(f"divisions is {divisions}; give 1 or more.")
    parts = [(i, j, divisions - i - j) for i in range(divisions, -1, -1) for j in range(divisions - i, -1, -1)]
    return np.array(parts, np.float64) / divisions


def interior_simplex(count: int, min_weight: float = 0.05) -> HostPoints:
    """Return the set Omega of the paper: ``count`` weights, sum_j omega_ij = 1 and omega_ij >= min_weight > 0.

    If a grid has exactly ``count`` points (1, 3, 6, 10, 15, ...), it is that grid, contracted towards the centre until
    the smallest component is ``min_weight``. Other counts have the corners, then always the point farthest from those
    before it.
    """
    if count < 1:
        raise InputError(f"count is {count}; give 1 or more.")
    if not 0 < min_weight < 1 / NUM_OBJECTIVES:
        raise InputError(f"min_weight is {min_weight}; give the smallest weight, above 0 and below 1/3.")
    centre = np.full((1, NUM_OBJECTIVES), 1 / NUM_OBJECTIVES)
    if count == 1:
        return centre
    divisions = 1
    while (size := (divisions + 1) * (divisions + 2) // 2) < count:
        divisions += 1
    # Finer by REFINEMENT, so that every centre and midpoint, where the farthest point can be, is on the grid.
    spread = simplex_grid(divisions) if size == count else _farthest_first(simplex_grid(REFINEMENT * divisions), count)
    pulled = min_weight + (1 - NUM_OBJECTIVES * min_weight) * spread
    return np.asarray(pulled / pulled.sum(axis=1, keepdims=True))


def _farthest_first(candidates: HostPoints, count: int) -> HostPoints:
    """Choose the corners, then always the candidate farthest from all chosen; ties go to the most balanced sum."""
    corners = np.argmax(candidates, axis=0)
    nearest = np.full(len(candidates), np.inf)
    chosen: list[int] = []
    while len(chosen) < count:
        if len(chosen) < NUM_OBJECTIVES:
            next_index = int(corners[len(chosen)])
        else:
            imbalance = _length(candidates[chosen].sum(axis=0) + candidates - (len(chosen) + 1) / NUM_OBJECTIVES)
            next_index = int(np.lexsort((imbalance, -nearest))[0])
        chosen.append(next_index)
        nearest = np.minimum(nearest, _length(candidates - candidates[next_index]))
    return candidates[chosen]


def _length(vectors: HostPoints) -> NDArray[np.float64]:
    """Return Euclidean lengths, rounded so that equal distances compare equal."""
    return np.asarray(np.round(np.linalg.norm(vectors, axis=1), 12))
