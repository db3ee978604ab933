"""Points as the host's functions take them in: three columns of double precision, and a scale to compare them on."""

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


def as_points(points: ArrayLike) -> HostPoints:
    """The points as an array [points, 3]; the caller's own array is never written to."""
    array = np.asarray(points, np.float64)
    if array.size == 0:
        return np.zeros((0, NUM_OBJECTIVES))
    if array.ndim != 2 or array.shape[1] != NUM_OBJECTIVES:
        raise InputError(f"points has shape {array.shape}; give one row a policy: accuracy, -latency, -energy.")
    return array


def finite_rows(points: HostPoints) -> HostMask:
    """Which points count: one with a NaN or an infinity is the result of a failed evaluation."""
    return np.asarray(np.isfinite(points).all(axis=1))


def ranges_of(points: ArrayLike) -> Ranges:
    """The smallest box around the points."""
    rows = as_points(points)
    rows = rows[finite_rows(rows)]
    if len(rows) == 0:
        raise InputError("There is no finite point to take ranges from; give at least one.")
    return Ranges(rows.min(axis=0), rows.max(axis=0))


def normalise(points: ArrayLike, ranges: Ranges) -> HostPoints:
    """(z - low) / (high - low) in each objective; 0 in an objective without a range, which tells no points apart."""
    low, high = (np.asarray(bound, np.float64) for bound in ranges)
    span = high - low
    scaled = (as_points(points) - low) / np.where(span > 0, span, 1.0)
    return np.where(span > 0, scaled, 0.0)
