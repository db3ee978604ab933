"""Crowding distance, and the choice of policies to extend (Algorithm 2).

Three decisions where the paper is not specific:

- *Ties.* Policies equal in objective i are sorted by the objectives after it, cyclically. So a distance depends on the
  set alone and not on the order in which its policies are stored.
- *Extremes.* The lowest and the highest policy of an objective lack a neighbour, and their distance is infinite. Taken
  literally, Algorithm 2 with three objectives and N_ext up to six extends extremes only. Here the best policy of each
  objective may take one place, and together they take at most half of the places; the interior comes next, and other
  extremes last. Where extremes are compared with each other, the missing gap is taken to equal the one that is there.
- *Repetition.* Policies are sorted first by how often they were extended: no policy is extended again before every
  other has been extended once.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from tandem.pareto.dominance import valid_mask
from tandem.pareto.types import Array, Counts, Mask, PerPoint, Points


class NeighbourGaps(NamedTuple):
    """The distances of each point of a set from its neighbours; zero and False for rows that are not in the set."""

    distance: PerPoint  # Eq. (CD), always finite: an extreme's missing gap equals the one it has
    extreme: Mask  # lowest or highest in some objective
    best: Mask  # highest in some objective


@jax.jit
def crowding_distance(points: Points, valid: Mask | None = None) -> PerPoint:
    """Compute CD = sum_i (Z_i(l+1) - Z_i(l-1)) / (Z_i,max - Z_i,min), infinite for extremes; 0 for rows not in the set.

    An objective in which all points are equal adds nothing and has no extremes; so a lone point has distance 0.
    """
    gaps = neighbour_gaps(points, valid)
    return jnp.where(gaps.extreme, jnp.inf, gaps.distance)


@partial(jax.jit, static_argnames="count")
def select_for_extension(
    points: Points, valid: Mask | None, count: int, times_selected: Counts | None = None
) -> Int[Array, " {count}"]:
    """Return the indices of the ``count`` least crowded policies, in order; -1 if the set has fewer (Algorithm 2).

    Dominated policies are not removed: leave them out of ``valid``. Ties go to the lower index.
    """
    present = valid_mask(points, valid)
    gaps = neighbour_gaps(points, valid)
    times = jnp.zeros(present.shape, jnp.int32) if times_selected is None else times_selected

    places = min(points.shape[1], count // 2)
    turn = jnp.argsort(jnp.lexsort((-gaps.distance, times, ~gaps.best)))
    preferred = gaps.best & (turn < places)
    group = jnp.where(preferred, 0, jnp.where(gaps.extreme, 2, 1))

    chosen = jnp.lexsort((-gaps.distance, group, times, ~present))[:count]
    chosen = jnp.where(present[chosen], chosen, -1)
    return jnp.pad(chosen, (0, count - chosen.shape[0]), constant_values=-1)


def neighbour_gaps(points: Points, valid: Mask | None = None) -> NeighbourGaps:
    """Sum the terms of Eq. (CD) over objectives, and mark the extremes."""
    present = valid_mask(points, valid)
    finite = jnp.where(present[:, None], points, 0.0)
    by_objective = jnp.stack([jnp.roll(finite, -objective, axis=1) for objective in range(points.shape[1])])
    gaps = jax.vmap(_gaps_in_first_objective, in_axes=(0, None))(by_objective, present)
    return NeighbourGaps(jnp.sum(gaps.distance, axis=0), jnp.any(gaps.extreme, axis=0), jnp.any(gaps.best, axis=0))


def _gaps_in_first_objective(points: Points, present: Mask) -> NeighbourGaps:
    """Return the term of the first objective; the others break ties."""
    order = jnp.lexsort((*points.T[::-1], ~present))  # the last key sorts first: rows not in the set go to the end
    value = points[order, 0]
    place = jnp.arange(value.shape[0])
    top = jnp.maximum(jnp.sum(present) - 1, 0)
    lower = value[jnp.maximum(place - 1, 0)]
    upper = value[jnp.minimum(place + 1, top)]
    span = value[top] - value[0]
    # A range too small to divide by, or too large to be finite, counts as none: distances must never be NaN.
    has_range = (span > np.finfo(value.dtype).tiny) & jnp.isfinite(span)
    gap = (upper - lower) / jnp.where(has_range, span, 1.0)
    share = jnp.where(has_range & (place <= top), gap * jnp.where((place == 0) | (place == top), 2, 1), 0.0)
    best = has_range & (place == top)
    extreme = best | (has_range & (place == 0))

    place_of = jnp.argsort(order)
    return NeighbourGaps(share[place_of], extreme[place_of], best[place_of])


@jax.jit
def crowding_per_front(points: Points, ranks: Counts) -> PerPoint:
    """Return the crowding distance of every point within its own rank; 0 for rows that are not in the set."""
    rows = points.shape[0]

    def one_front(carry: tuple[PerPoint, Array]) -> tuple[PerPoint, Array]:
        distances, rank = carry
        own = ranks == rank
        return jnp.where(own, crowding_distance(points, own), distances), rank + 1

    deepest = jnp.max(jnp.where(ranks < rows, ranks, -1))
    first = (jnp.zeros(rows, points.dtype), jnp.zeros((), jnp.int32))
    distances, _ = jax.lax.while_loop(lambda carry: carry[1] <= deepest, one_front, first)
    return distances
