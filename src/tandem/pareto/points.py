"""Input of the functions on the host: points as three columns of double precision, and the scale to compare them on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.errors import InputError
from tandem.objectives import NUM_OBJECTIVES
from tandem.pareto.types import HostMask, HostPoints


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
