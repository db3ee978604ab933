"""Devices that train one learner together: each plays some of the episodes and works on a part of every minibatch.

They exchange what they played and the means of their gradients, so that they learn what one of them would learn alone,
up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, cast

import jax

from tandem.feel.types import Array

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class DataParallel:
    """The devices along an axis of a mesh, inside a ``shard_map``; or one device that has no one to share with."""

    size: int = 1
    axis: str = "team"

    def shard(self, tree: Tree) -> Tree:
        """This device's part of rows that all of them hold."""
        if self.size == 1:
            return tree

        def part(leaf: Array) -> Array:
            rows = leaf.shape[0] // self.size
            return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(self.axis) * rows, rows)

        return cast(Tree, jax.tree.map(part, tree))

    def all_gather(self, tree: Tree) -> Tree:
        """The rows of all of them, in order."""
        return tree if self.size == 1 else cast(Tree, jax.lax.all_gather(tree, self.axis, tiled=True))

    def pmean(self, value: Array) -> Array:
        """The mean over all of them."""
        return value if self.size == 1 else jax.lax.pmean(value, self.axis)  # type: ignore[no-untyped-call]


NO_SHARDING = DataParallel()
