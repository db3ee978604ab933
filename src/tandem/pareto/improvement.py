"""What a front would be with one point more, for each of many candidates in one call.

The front is sorted once for all of them: a candidate cuts its coordinates off, which changes no order.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from tandem.pareto.dominance import dominates, nondominated_mask, valid_mask
from tandem.pareto.types import Array, Mask, PerPoint, Point3, Points3

Candidates = Float[Array, "candidates 3"]
PerCandidate = Float[Array, " candidates"]


@jax.jit
def hypervolume_improvement(
    points: Points3, valid: Mask | None, candidates: Candidates, reference: Point3
) -> PerCandidate:
    """HV(Psi and z) - HV(Psi) for each candidate z; O(n^2) each.

    The third objective is swept from its highest point down, over columns of the first. A candidate gains what its box
    holds above the stairs of the points, and what it holds beyond the last of them. Only positive volumes are added up,
    so small gains keep their digits.
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
    cells = _cut_steps(depths, depth)[:, :, None] * _cut_steps(widths, width)[:, None, :]
    beyond = width * depth - jnp.minimum(width, widths[0]) * jnp.minimum(depth, depths[0])
    gains: Array = jnp.sum(cells * rise, axis=(1, 2)) + height * beyond
    return gains


def _cut_steps(descending: PerPoint, limits: PerCandidate) -> Float[Array, "candidates points"]:
    cut = jnp.minimum(descending, limits[:, None])
    return cut - jnp.pad(cut[:, 1:], ((0, 0), (0, 1)))


@jax.jit
def sparsity_if_added(points: Points3, valid: Mask | None, candidates: Candidates) -> PerCandidate:
    """SP of the non-dominated among the points and one candidate, for each candidate; O(n) each.

    SP is the paper's, see ``metrics.sparsity``: 0 for fewer than two points.
    """
    alive = nondominated_mask(points, valid)
    beaten = dominates(candidates[:, None], points[None]) & valid_mask(candidates)[:, None]
    left = alive & ~beaten
    enters = valid_mask(candidates) & ~jnp.any(alive & jnp.all(points >= candidates[:, None], axis=-1), axis=1)
    squares = sum(_squared_gaps(points[:, i], left, candidates[:, i], enters) for i in range(points.shape[1]))
    size = jnp.sum(left, axis=1) + enters
    return jnp.where(size > 1, squares / jnp.maximum(size - 1, 1), 0.0)


def _squared_gaps(
    values: PerPoint, left: Bool[Array, "candidates points"], new: PerCandidate, enters: Bool[Array, " candidates"]
) -> PerCandidate:
    """Of the values that are left, and the new one if it enters."""
    order = jnp.argsort(values)
    ascending, left = values[order], left[:, order]
    highest = jax.lax.cummax(jnp.where(left, ascending, -jnp.inf), axis=1)
    before = jnp.pad(highest[:, :-1], ((0, 0), (1, 0)), constant_values=-jnp.inf)
    squares = jnp.sum(jnp.where(left & jnp.isfinite(before), ascending - before, 0.0) ** 2, axis=1)

    value = new[:, None]
    below = jnp.max(jnp.where(left & (ascending <= value), ascending, -jnp.inf), axis=1)
    above = jnp.min(jnp.where(left & (ascending > value), ascending, jnp.inf), axis=1)
    down, up = (jnp.where(jnp.isfinite(bound), jnp.abs(new - bound), 0.0) for bound in (below, above))
    # A gap that is parted: (down + up)^2 becomes down^2 + up^2.
    parted = jnp.isfinite(below) & jnp.isfinite(above)
    return squares + jnp.where(enters, jnp.where(parted, -2 * down * up, down**2 + up**2), 0.0)
