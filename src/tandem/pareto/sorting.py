"""Fronts behind the front: how deep in a set each point lies, and how much room it has among those of its depth."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tandem.pareto.crowding import crowding_distance
from tandem.pareto.dominance import counted, dominates
from tandem.pareto.types import Array, Counts, Mask, PerPoint, Points


@jax.jit
def front_ranks(points: Points, valid: Mask | None = None) -> Counts:
    """0 for what nothing dominates, 1 for what is then left without a dominator, and so on.

    Equal points are of equal rank. Rows that are not in the set come last: their rank is the number of rows.
    """
    here = counted(points, valid)
    rows = points.shape[0]
    beats = dominates(points[:, None, :], points[None, :, :]) & here[:, None]

    def peel(carry: tuple[Counts, Mask, Array]) -> tuple[Counts, Mask, Array]:
        ranks, left, rank = carry
        outermost = left & ~jnp.any(beats & left[:, None], axis=0)
        return jnp.where(outermost, rank, ranks), left & ~outermost, rank + 1

    first = (jnp.full(rows, rows, jnp.int32), here, jnp.zeros((), jnp.int32))
    ranks, _, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), peel, first)
    return ranks


@jax.jit
def crowding_by_front(points: Points, ranks: Counts) -> PerPoint:
    """The crowding distance of every point among those of its own rank; 0 for rows that are not in the set."""
    rows = points.shape[0]

    def one_front(carry: tuple[PerPoint, Array]) -> tuple[PerPoint, Array]:
        distances, rank = carry
        own = ranks == rank
        return jnp.where(own, crowding_distance(points, own), distances), rank + 1

    deepest = jnp.max(jnp.where(ranks < rows, ranks, -1))
    first = (jnp.zeros(rows, points.dtype), jnp.zeros((), jnp.int32))
    distances, _ = jax.lax.while_loop(lambda carry: carry[1] <= deepest, one_front, first)
    return distances
