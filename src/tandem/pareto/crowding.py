"""Crowding distance, and the choice of policies to extend (Algorithm 2).

Three decisions where the paper leaves room:

- *Ties.* Policies equal in objective i are sorted by the objectives after it, cyclically. So a distance depends on the
  set alone and not on the order in which its policies are stored.
- *Extremes.* The lowest and the highest policy of an objective lack a neighbour, and their distance is infinite. Taken
  literally, Algorithm 2 with three objectives and N_ext up to six extends extremes only. Here the best policy of each
  objective may take one place, and together they take at most half of the places; the interior comes next, and other
  extremes last. Where extremes are compared with each other, the missing gap is taken to equal the one that is there.
- *Repetition.* Policies rank by how often they were extended before anything else: none is extended again while
  another waits for its first time.
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
    """How much room each point of a set has; zero and False for rows that are not in it."""

    distance: PerPoint  # Eq. (CD), always finite: an extreme's missing gap equals the one it has
    extreme: Mask  # lowest or highest in some objective
    best: Mask  # highest in some objective


@jax.jit
def crowding_distance(points: Points, valid: Mask | None = None) -> PerPoint:
    """CD = sum_i (Z_i(l+1) - Z_i(l-1)) / (Z_i,max - Z_i,min), infinite for extremes; 0 for rows not in the set.

    An objective in which all points are equal adds nothing and has no extremes; so a lone point has distance 0.
    """
    room = neighbour_gaps(points, valid)
    return jnp.where(room.extreme, jnp.inf, room.distance)


@partial(jax.jit, static_argnames="count")
def select_for_extension(
    points: Points, valid: Mask | None, count: int, times_selected: Counts | None = None
) -> Int[Array, " {count}"]:
    """Algorithm 2: the indices of the ``count`` policies with most room, in order; -1 where the set has no more.

    The set is taken as it is: leave dominated policies out of ``valid``. Ties go to the lower index.
    """
    here = valid_mask(points, valid)
    room = neighbour_gaps(points, valid)
    times = jnp.zeros(here.shape, jnp.int32) if times_selected is None else times_selected

    places = min(points.shape[1], count // 2)
    turn = jnp.argsort(jnp.lexsort((-room.distance, times, ~room.best)))
    preferred = room.best & (turn < places)
    group = jnp.where(preferred, 0, jnp.where(room.extreme, 2, 1))

    chosen = jnp.lexsort((-room.distance, group, times, ~here))[:count]
    chosen = jnp.where(here[chosen], chosen, -1)
    return jnp.pad(chosen, (0, count - chosen.shape[0]), constant_values=-1)


def neighbour_gaps(points: Points, valid: Mask | None = None) -> NeighbourGaps:
    """The terms of Eq. (CD) summed over objectives, and who stands at an end."""
    here = valid_mask(points, valid)
    finite = jnp.where(here[:, None], points, 0.0)
    by_objective = jnp.stack([jnp.roll(finite, -objective, axis=1) for objective in range(points.shape[1])])
    room = jax.vmap(_spacing_in_first, in_axes=(0, None))(by_objective, here)
    return NeighbourGaps(jnp.sum(room.distance, axis=0), jnp.any(room.extreme, axis=0), jnp.any(room.best, axis=0))


def _spacing_in_first(points: Points, here: Mask) -> NeighbourGaps:
    """The term of the first objective; the others settle ties."""
    order = jnp.lexsort((*points.T[::-1], ~here))  # the last key sorts first: rows not in the set go to the end
    value = points[order, 0]
    place = jnp.arange(value.shape[0])
    top = jnp.maximum(jnp.sum(here) - 1, 0)
    lower = value[jnp.maximum(place - 1, 0)]
    upper = value[jnp.minimum(place + 1, top)]
    span = value[top] - value[0]
    # A range too small to divide by, or too large to be a number, is none: distances must never be NaN.
    has_range = (span > np.finfo(value.dtype).tiny) & jnp.isfinite(span)
    gap = (upper - lower) / jnp.where(has_range, span, 1.0)
    share = jnp.where(has_range & (place <= top), gap * jnp.where((place == 0) | (place == top), 2, 1), 0.0)
    best = has_range & (place == top)
    extreme = best | (has_range & (place == 0))

    place_of = jnp.argsort(order)
    return NeighbourGaps(share[place_of], extreme[place_of], best[place_of])


@jax.jit
def crowding_per_front(points: Points, ranks: Counts) -> PerPoint:
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
