"""Points on the host: three columns of double precision, the scale to compare them on, and the non-dominated ones.

This module and ``decision`` do not import JAX, so that the deployed scheduler can choose a policy without it.
"""

from __future__ import annotations

from typing import NamedTuple

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.errors import InputError
from tandem.objectives import NUM_OBJECTIVES

HostPoints = NDArray[np.float64]
HostMask = NDArray[np.bool_]
Indices = NDArray[np.intp]


class Ranges(NamedTuple):
    """The lowest and the highest value of each objective: the scale on which different units can be compared."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def from_points(cls, points: ArrayLike) -> Ranges:
        """Return the smallest box around the points."""
        rows = as_points(points)
        rows = rows[finite_rows(rows)]
        if len(rows) == 0:
            raise InputError("points: none is finite, so they have no ranges; give at least one finite point.")
        return cls(rows.min(axis=0), rows.max(axis=0))


def as_points(points: ArrayLike) -> HostPoints:
    """Convert points to an array [points, 3]; the caller's array is never written to."""
    array = np.asarray(points, np.float64)
    if array.size == 0:
        return np.zeros((0, NUM_OBJECTIVES))
    if array.ndim != 2 or array.shape[1] != NUM_OBJECTIVES:
        raise InputError(f"points has shape {array.shape}; give one row for each policy: accuracy, -latency, -energy.")
    return array


def finite_rows(points: HostPoints) -> HostMask:
    """Return the mask of the finite points: a NaN or an infinity comes from a failed evaluation."""
    return np.asarray(np.isfinite(points).all(axis=1))


def normalise(points: ArrayLike, ranges: Ranges) -> HostPoints:
    """Compute (z - low) / (high - low) in each objective; 0 in an objective with an empty range."""
    low, high = (np.asarray(bound, np.float64) for bound in ranges)
    span = high - low
    scaled = (as_points(points) - low) / np.where(span > 0, span, 1.0)
    return np.where(span > 0, scaled, 0.0)


def nondominated_indices(points: ArrayLike) -> Indices:
    """Return the indices of the non-dominated points, ascending; of equal points the first."""
    rows = as_points(points)
    finite = np.flatnonzero(finite_rows(rows))
    if len(finite) == 0:
        return finite
    return np.asarray(finite[moocore.is_nondominated(rows[finite], maximise=True)])
