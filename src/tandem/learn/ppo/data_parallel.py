"""Data parallelism: several devices train one policy. Each simulates some episodes and a part of every minibatch.

The devices exchange their trajectories and the means of their gradients, so that the result is that of one device, up
to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, cast

import jax

from tandem.feel.types import Array

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class DataParallel:
    """The devices along an axis of a mesh, inside a ``shard_map``; with ``size`` 1, no data parallelism."""

    size: int = 1
    axis: str = "episodes"

    def shard(self, tree: Tree) -> Tree:
        """Return this device's part of rows that all devices hold."""
        if self.size == 1:
            return tree

        def part(leaf: Array) -> Array:
            rows = leaf.shape[0] // self.size
            return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(self.axis) * rows, rows)

        return cast(Tree, jax.tree.map(part, tree))

    def all_gather(self, tree: Tree) -> Tree:
        """Concatenate the rows of all devices, in order."""
        return tree if self.size == 1 else cast(Tree, jax.lax.all_gather(tree, self.axis, tiled=True))

    def pmean(self, value: Array) -> Array:
        """Return the mean over all devices."""
        return value if self.size == 1 else jax.lax.pmean(value, self.axis)  # type: ignore[no-untyped-call]


NO_SHARDING = DataParallel()
