"""Hypervolume: the volume between a set of points and a reference point that is worse than all of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import moocore
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from tandem.errors import InputError
from tandem.objectives import NUM_OBJECTIVES
from tandem.pareto.dominance import valid_mask
from tandem.pareto.points import as_points, finite_rows
from tandem.pareto.types import Array, Candidates, Mask, PerCandidate, PerPoint, Point3, Points3


def hypervolume(points: ArrayLike, reference: ArrayLike) -> float:
    """Compute HV = Lambda(union over z in Psi of {z' : z > z' > z_ref}), on the host in double precision.

    A point that is not better than the reference in every objective contributes nothing.
    """
    corner = np.asarray(reference, np.float64)
    if corner.shape != (NUM_OBJECTIVES,) or not np.isfinite(corner).all():
        raise InputError(f"reference is {reference!r}; give three finite numbers: accuracy, -latency, -energy.")
    rows = as_points(points)
    rows = rows[finite_rows(rows) & (rows > corner).all(axis=1)]
    return float(moocore.hypervolume(rows, ref=corner, maximise=True)) if len(rows) else 0.0


@jax.jit
def hypervolume_improvement(
    points: Points3, valid: Mask | None, candidates: Candidates, reference: Point3
) -> PerCandidate:
    """Compute HV(Psi and z) - HV(Psi) for each candidate z; O(n^2) each.

    The points are sorted once for all candidates, since clipping their coordinates to a candidate keeps their order.
    The third objective is swept from its highest point down, over columns of the first. The improvement is the volume
    of the candidate's box above the staircase of the points, and beyond the last of them. Only positive volumes are
    added, so small improvements keep their precision.
    """
    inside = valid_mask(points, valid) & jnp.all(points > reference, axis=1)
    above = jnp.where(inside[:, None], points - reference, 0.0)
    widths, depths = -jnp.sort(-above[:, 0]), -jnp.sort(-above[:, 2])
    by_width, by_depth = jnp.argsort(-above[:, 0]), jnp.argsort(-above[:, 2])
    column = jnp.argsort(by_width)[by_depth]
    covered = column[:, None] <= jnp.arange(points.shape[0])
    stairs = jax.lax.cummax(jnp.where(covered, above[by_depth, 1][:, None], 0.0), axis=0)

    box = jnp.where(valid_mask(candidates)[:, None], jnp.maximum(candidates - reference, 0.0), 0.0)
    width, height, depth = box.T
    rise = jnp.maximum(height[:, None, None] - stairs, 0.0)
    cells = _clipped_steps(depths, depth)[:, :, None] * _clipped_steps(widths, width)[:, None, :]
    beyond = width * depth - jnp.minimum(width, widths[0]) * jnp.minimum(depth, depths[0])
    gains: Array = jnp.sum(cells * rise, axis=(1, 2)) + height * beyond
    return gains


def _clipped_steps(descending: PerPoint, limits: PerCandidate) -> Float[Array, "candidates points"]:
    """Return the differences of neighbouring values, each value at most the candidate's limit."""
    clipped = jnp.minimum(descending, limits[:, None])
    return clipped - jnp.pad(clipped[:, 1:], ((0, 0), (0, 1)))
