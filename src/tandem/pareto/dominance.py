"""Pareto dominance in compiled code: the non-dominated points of a set, and ranks by non-dominated sorting."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from tandem.pareto.types import Array, Counts, Mask, Points


@jax.jit
def dominates(a: Float[Array, "*#batch objectives"], b: Float[Array, "*#batch objectives"]) -> Bool[Array, "*#batch"]:
    """Return whether a dominates b: not worse in any objective, and strictly better in one. Leading axes broadcast."""
    return jnp.all(a >= b, axis=-1) & jnp.any(a > b, axis=-1)


def valid_mask(points: Points, valid: Mask | None = None) -> Mask:
    """Return the mask of the rows that are in the set: valid, and finite in every objective."""
    finite = jnp.all(jnp.isfinite(points), axis=-1)
    return finite if valid is None else finite & valid


@jax.jit
def is_nondominated(points: Points, valid: Mask | None = None) -> Mask:
    """Return the mask of the points that no other dominates; of equal points the first. Compares all pairs, O(n^2)."""
    present = valid_mask(points, valid)
    index = jnp.arange(points.shape[0])
    rival, point = points[:, None, :], points[None, :, :]
    earlier_twin = jnp.all(rival == point, axis=-1) & (index[:, None] < index[None, :])
    beaten = (dominates(rival, point) | earlier_twin) & present[:, None]
    return present & ~jnp.any(beaten, axis=0)


@jax.jit
def pareto_rank(points: Points, valid: Mask | None = None) -> Counts:
    """Return ranks by non-dominated sorting: 0 for the front, 1 for the front of the rest, and so on.

    Equal points have equal rank. Rows that are not in the set come last: their rank is the number of rows.
    """
    present = valid_mask(points, valid)
    rows = points.shape[0]
    dominance = dominates(points[:, None, :], points[None, :, :]) & present[:, None]

    def peel(carry: tuple[Counts, Mask, Array]) -> tuple[Counts, Mask, Array]:
        ranks, left, rank = carry
        front = left & ~jnp.any(dominance & left[:, None], axis=0)
        return jnp.where(front, rank, ranks), left & ~front, rank + 1

    first = (jnp.full(rows, rows, jnp.int32), present, jnp.zeros((), jnp.int32))
    ranks, _, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), peel, first)
    return ranks
