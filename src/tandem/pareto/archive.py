"""An archive of non-dominated points with a fixed number of slots, for compiled code and for checkpoints.

The archive holds objectives and an integer id. The data that belong to a point, such as the parameters of a policy, are
kept in a stacked pytree beside it, slot by slot: ``insert`` returns the slot of each new point, and ``store`` writes
there.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from tandem.errors import InputError
from tandem.pareto.crowding import neighbour_gaps
from tandem.pareto.dominance import is_nondominated
from tandem.pareto.types import Mask, Points3

Tree = TypeVar("Tree")
NO_SLOT = -1  # the slot of a rejected point, and the id of an empty slot


class Archive(eqx.Module):
    """Points that do not dominate each other. Empty slots hold -inf, which improves no metric if the mask is missed."""

    points: Float[Array, "capacity 3"]
    valid: Bool[Array, " capacity"]
    ids: Int[Array, " capacity"]

    @classmethod
    def init(cls, capacity: int) -> Archive:
        """Return an empty archive, in JAX's default precision."""
        if capacity < 1:
            raise InputError(f"capacity is {capacity}; give the archive 1 slot or more.")
        points = jnp.full((capacity, 3), -jnp.inf, float)
        return cls(points, jnp.zeros(capacity, bool), jnp.full(capacity, NO_SLOT, jnp.int32))

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self.valid.shape[-1]

    @property
    def size(self) -> Int[Array, "*stack"]:
        """The number of slots in use, of each archive in a stack."""
        return jnp.sum(self.valid, axis=-1)


@jax.jit
def insert(
    archive: Archive,
    points: Float[Array, "batch 3"],
    ids: Int[Array, " batch"],
    valid: Bool[Array, " batch"] | None = None,
) -> tuple[Archive, Int[Array, " batch"]]:
    """Insert points. Returns the archive and the slot of each point: -1 if it is dominated, a duplicate or pruned.

    Points that stay keep their slots. If there are more non-dominated points than slots, the most crowded is removed
    until they fit: extremes only after all others, and the best of each objective only if there are fewer slots than
    those. Which points remain does not depend on the order within the batch; of equal points the one already stored,
    or else the first, is kept.
    """
    capacity = archive.capacity
    points = points.astype(archive.points.dtype)
    new_valid = jnp.ones(ids.shape, bool) if valid is None else valid
    all_points = jnp.concatenate([archive.points, points])
    kept = _prune(all_points, is_nondominated(all_points, jnp.concatenate([archive.valid, new_valid])), capacity)
    stays, enters = kept[:capacity], kept[capacity:]
    slots = assign_slots(stays, enters)
    remaining = Archive(
        jnp.where(stays[:, None], archive.points, -jnp.inf), stays, jnp.where(stays, archive.ids, NO_SLOT)
    )
    arriving = Archive(points, enters, ids.astype(archive.ids.dtype))
    return store(remaining, slots, arriving), slots


def assign_slots(stays: Bool[Array, " capacity"], enters: Bool[Array, " batch"]) -> Int[Array, " batch"]:
    """Assign a free slot to each row that enters, and -1 to the others."""
    capacity = stays.shape[0]
    free = jnp.flatnonzero(~stays, size=capacity, fill_value=capacity)
    return jnp.where(enters, free[jnp.maximum(jnp.cumsum(enters) - 1, 0)], NO_SLOT).astype(jnp.int32)


def store(stacked: Tree, slots: Int[Array, " batch"], rows: Tree) -> Tree:
    """Write each row to its slot, in every array of the tree; rows with slot -1 are left out."""

    def write(leaf: Any, row: Any) -> Any:
        if not eqx.is_array(leaf) and not isinstance(leaf, np.ndarray):
            return leaf
        # JAX reads -1 as the last index; only an index past the end is dropped.
        return jnp.asarray(leaf).at[jnp.where(slots < 0, leaf.shape[0], slots)].set(row, mode="drop")

    return cast(Tree, jax.tree.map(write, stacked, rows))


def _prune(points: Points3, kept: Mask, capacity: int) -> Mask:
    def too_many(kept: Mask) -> Bool[Array, ""]:
        return jnp.sum(kept) > capacity

    def without_most_crowded(kept: Mask) -> Mask:
        gaps = neighbour_gaps(points, kept)
        # Ties are broken by the coordinates, which unlike the index do not depend on the order of arrival.
        crowded = kept
        for key in (gaps.best, gaps.extreme, gaps.distance, *points.T):
            value = jnp.where(crowded, key, jnp.inf)
            crowded = crowded & (value == jnp.min(value))
        return kept & ~crowded

    return jax.lax.while_loop(too_many, without_most_crowded, kept)
