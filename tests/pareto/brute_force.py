"""Slow twins of the geometry, written from the definitions in plain Python, and sets of points to test them on."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings
from numpy.typing import NDArray

Array = NDArray[np.float64]
ROWS = 10  # one shape for most tests, so that little is compiled

# Few values make many ties, duplicates and zero ranges; all are exact in single precision.
tied = st.integers(0, 4).map(float)
spread = st.floats(-100, 100, width=32, allow_subnormal=False)
broken = st.sampled_from([math.nan, math.inf, -math.inf])


def tried_on(*strategies: Any, **named: Any) -> Callable[[Any], Any]:
    """The same examples in every run."""
    same = settings(derandomize=True, database=None, deadline=None, max_examples=60)
    return lambda test: same(given(*strategies, **named)(test))


def point_sets(values: st.SearchStrategy[float] = tied, rows: int = ROWS) -> st.SearchStrategy[Array]:
    one = st.lists(values, min_size=3, max_size=3)
    return st.lists(one, min_size=rows, max_size=rows).map(lambda points: np.array(points, np.float32))


def padded(points: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The points and rows that do not count, ``ROWS`` in all, with the mask: the shape that is compiled already."""
    rows = np.full((ROWS, 3), math.nan, np.float32)
    rows[: len(points)] = points
    return rows, np.arange(ROWS) < len(points)


def masks(rows: int = ROWS) -> st.SearchStrategy[NDArray[np.bool_]]:
    return st.lists(st.booleans(), min_size=rows, max_size=rows).map(lambda flags: np.array(flags, bool))


def sphere(count: int, seed: int = 0, dtype: type = np.float32) -> Array:
    """Points of which none dominates another."""
    points = np.abs(np.random.default_rng(seed).normal(size=(count, 3)))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(dtype)


def dominates(a: Array, b: Array) -> bool:
    return all(x >= y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))


def non_dominated(points: Array, valid: NDArray[np.bool_] | None = None) -> list[bool]:
    kept = []
    usable = [bool(np.isfinite(p).all()) and (valid is None or bool(valid[i])) for i, p in enumerate(points)]
    for i, point in enumerate(points):
        rivals = [j for j in range(len(points)) if usable[j] and j != i]
        beaten = any(dominates(points[j], point) for j in rivals)
        twin = any(j < i and tuple(points[j]) == tuple(point) for j in rivals)
        kept.append(usable[i] and not beaten and not twin)
    return kept


def crowding(points: Array, finite: bool = False) -> dict[int, float]:
    """Eq. (CD) for every row; with ``finite``, twice the only gap of an extreme instead of infinity."""
    distance = dict.fromkeys(range(len(points)), 0.0)
    for i in range(3):
        order = sorted(distance, key=lambda row: tuple(points[row][(i + k) % 3] for k in range(3)))
        values = [float(points[row][i]) for row in order]
        span = values[-1] - values[0]
        if span == 0:
            continue
        for place, row in enumerate(order):
            if place in (0, len(order) - 1):
                gap = values[1] - values[0] if place == 0 else values[-1] - values[-2]
                distance[row] += 2 * gap / span if finite else math.inf
            else:
                distance[row] += (values[place + 1] - values[place - 1]) / span
    return distance


def cells(points: Array, reference: Array) -> int:
    """Hypervolume of points with integer coordinates: the unit cells between them and the reference, counted."""
    below = set()
    for point in points:
        if np.isfinite(point).all():
            below.update(itertools.product(*(range(int(r), int(p)) for p, r in zip(point, reference, strict=True))))
    return len(below)
