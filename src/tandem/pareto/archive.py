"""An archive of non-dominated points with a fixed number of slots, for compiled code and for checkpoints.

The archive holds objectives and an integer id. What belongs to them, such as the parameters of policies, lies in a
stacked pytree beside it, slot by slot: ``insert`` says which slot each new point went to, and ``store`` writes there.
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
from tandem.pareto.dominance import nondominated_mask
from tandem.pareto.types import Mask, Points3

Tree = TypeVar("Tree")
NOWHERE = -1  # the slot of a rejected point, and the id in an empty slot


class Archive(eqx.Module):
    """Points that do not dominate each other. Empty slots hold -inf, so that a forgotten mask flatters nobody."""

    points: Float[Array, "capacity 3"]
    valid: Bool[Array, " capacity"]
    ids: Int[Array, " capacity"]

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self.valid.shape[-1]

    @property
    def size(self) -> Int[Array, "*stack"]:
        """The number of slots in use, of each archive in a stack."""
        return jnp.sum(self.valid, axis=-1)


def empty_archive(capacity: int) -> Archive:
    """An archive with nothing in it, in JAX's default precision."""
    if capacity < 1:
        raise InputError(f"capacity is {capacity}; give the archive 1 slot or more.")
    points = jnp.full((capacity, 3), -jnp.inf, float)
    return Archive(points, jnp.zeros(capacity, bool), jnp.full(capacity, NOWHERE, jnp.int32))


@jax.jit
def insert(
    archive: Archive,
    points: Float[Array, "batch 3"],
    ids: Int[Array, " batch"],
    valid: Bool[Array, " batch"] | None = None,
) -> tuple[Archive, Int[Array, " batch"]]:
    """The archive with the new points in it, and the slot of each: -1 if it is dominated, already there or pruned.

    Points that stay keep their slots. If the non-dominated are more than the slots, the most crowded leaves, one after
    another: extremes only after all others, and the best of each objective only if there are fewer slots than those.
    Which points remain does not depend on the order within the batch; of equal points the one already there, or else
    the first, is kept.
    """
    capacity = archive.capacity
    points = points.astype(archive.points.dtype)
    offered = jnp.ones(ids.shape, bool) if valid is None else valid
    everyone = jnp.concatenate([archive.points, points])
    kept = _prune(everyone, nondominated_mask(everyone, jnp.concatenate([archive.valid, offered])), capacity)
    stays, enters = kept[:capacity], kept[capacity:]
    slots = free_slots(stays, enters)
    remaining = Archive(
        jnp.where(stays[:, None], archive.points, -jnp.inf), stays, jnp.where(stays, archive.ids, NOWHERE)
    )
    arriving = Archive(points, enters, ids.astype(archive.ids.dtype))
    return store(remaining, slots, arriving), slots


def free_slots(stays: Bool[Array, " capacity"], enters: Bool[Array, " batch"]) -> Int[Array, " batch"]:
    """A slot for each that enters, of those in which nothing stays; -1 for the others."""
    capacity = stays.shape[0]
    free = jnp.flatnonzero(~stays, size=capacity, fill_value=capacity)
    return jnp.where(enters, free[jnp.maximum(jnp.cumsum(enters) - 1, 0)], NOWHERE).astype(jnp.int32)


def store(stacked: Tree, slots: Int[Array, " batch"], rows: Tree) -> Tree:
    """``stacked`` with each row written to its slot, in every array of the tree; rows with slot -1 are left out."""

    def write(leaf: Any, row: Any) -> Any:
        if not eqx.is_array(leaf) and not isinstance(leaf, np.ndarray):
            return leaf
        # JAX counts -1 from the end; only an index past the end is dropped.
        return jnp.asarray(leaf).at[jnp.where(slots < 0, leaf.shape[0], slots)].set(row, mode="drop")

    return cast(Tree, jax.tree.map(write, stacked, rows))


def _prune(points: Points3, kept: Mask, capacity: int) -> Mask:
    def too_many(kept: Mask) -> Bool[Array, ""]:
        return jnp.sum(kept) > capacity

    def without_most_crowded(kept: Mask) -> Mask:
        room = neighbour_gaps(points, kept)
        # Equal distances are settled by the coordinates, which unlike the index do not depend on the order of arrival.
        crowded = kept
        for key in (room.best, room.extreme, room.distance, *points.T):
            value = jnp.where(crowded, key, jnp.inf)
            crowded = crowded & (value == jnp.min(value))
        return kept & ~crowded

    return jax.lax.while_loop(too_many, without_most_crowded, kept)
