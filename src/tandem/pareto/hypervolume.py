"""Hypervolume: the volume between a set of points and a reference point that is worse than all of them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import moocore
import numpy as np
from numpy.typing import ArrayLike

from tandem.errors import InputError
from tandem.objectives import NUM_OBJECTIVES
from tandem.pareto.dominance import valid_mask
from tandem.pareto.points import as_points, finite_rows
from tandem.pareto.types import Array, Counts, Mask, PerPoint, Point3, Points3, Scalar


def hypervolume(points: ArrayLike, reference: ArrayLike) -> float:
    """HV = Lambda(union over z in Psi of {z' : z > z' > z_ref}). On the host, in double precision.

    A point that is not better than the reference in every objective contributes nothing.
    """
    corner = np.asarray(reference, np.float64)
    if corner.shape != (NUM_OBJECTIVES,) or not np.isfinite(corner).all():
        raise InputError(f"reference is {reference!r}; give three finite numbers: accuracy, -latency, -energy.")
    rows = as_points(points)
    rows = rows[finite_rows(rows) & (rows > corner).all(axis=1)]
    return float(moocore.hypervolume(rows, ref=corner, maximise=True)) if len(rows) else 0.0


@jax.jit
def hypervolume_3d(points: Points3, valid: Mask | None, reference: Point3) -> Scalar:
    """HV of the valid points, exact, inside compiled code; O(n^2).

    The third objective is swept from its highest point down. Between two points the cross-section is the area under
    the stairs of all points above, and going down one point raises the stairs over the widths that it covers.
    """
    sweep = _sweep(points, valid, reference)
    height = jnp.where(sweep.column[:, None] <= jnp.arange(sweep.width.shape[0]), sweep.height[:, None], 0.0)
    stairs = jax.lax.cummax(height, axis=0)
    return jnp.sum(sweep.depth * jnp.sum(stairs * sweep.width, axis=1))


@jax.jit
def hypervolume_contributions(points: Points3, valid: Mask | None, reference: Point3) -> PerPoint:
    """HV(Psi) - HV(Psi without z) for each z: what would be lost with it. O(n^2) time.

    The same sweep keeps the highest and the second-highest stair of each column: the strip between them belongs to one
    point alone. Only positive volumes are added up, so small contributions keep their digits. As the definition has it,
    equal points contribute nothing, and a dominated point lessens the contribution of the one above it.
    """
    sweep = _sweep(points, valid, reference)
    columns = jnp.arange(sweep.width.shape[0])

    def down_one(
        carry: tuple[PerPoint, PerPoint, Counts, PerPoint], step: tuple[Array, Array, Array, Array]
    ) -> tuple[tuple[PerPoint, PerPoint, Counts, PerPoint], None]:
        first, second, owner, volume = carry
        row, column, height, depth = step
        stair = jnp.where(column <= columns, height, 0.0)
        second = jnp.maximum(second, jnp.minimum(first, stair))
        owner = jnp.where(stair > first, row, owner)
        first = jnp.maximum(first, stair)
        return (first, second, owner, volume.at[owner].add(depth * sweep.width * (first - second))), None

    nothing = jnp.zeros_like(sweep.width)
    steps = (sweep.row, sweep.column, sweep.height, sweep.depth)
    (*_, volume), _ = jax.lax.scan(down_one, (nothing, nothing, jnp.zeros_like(sweep.row), nothing), steps)
    return volume


class _Sweep(NamedTuple):
    """The points from the highest third objective down, over columns from the widest first objective in."""

    row: Counts  # index into the points as given
    column: Counts  # the point covers this column and all that follow
    height: PerPoint  # second objective above the reference
    depth: PerPoint  # third objective, down to the next point
    width: PerPoint  # of each column


def _sweep(points: Points3, valid: Mask | None, reference: Point3) -> _Sweep:
    inside = valid_mask(points, valid) & jnp.all(points > reference, axis=1)
    # A point that contributes nothing lies on the reference, at the end of every order, where its box is empty.
    above = jnp.where(inside[:, None], points - reference, 0.0)
    by_width = jnp.argsort(-above[:, 0])
    row = jnp.argsort(-above[:, 2])
    return _Sweep(
        row=row,
        column=jnp.argsort(by_width)[row],
        height=above[row, 1],
        depth=_steps(above[row, 2]),
        width=_steps(above[by_width, 0]),
    )


def _steps(descending: PerPoint) -> PerPoint:
    return descending - jnp.append(descending[1:], 0.0)
