"""Stacks: pytrees whose arrays have a common leading axis. Leaves that are not arrays are the same for all members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tree = TypeVar("Tree")
REPLICATED = PartitionSpec()  # type: ignore[no-untyped-call]


def tree_stack(members: Sequence[Tree]) -> Tree:
    """Stack trees of the same structure."""
    arrays, rest = zip(*(eqx.partition(member, eqx.is_array) for member in members), strict=True)
    stack: Tree = eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rest[0])
    return stack


def tree_index(stack: Tree, index: Any) -> Tree:
    """Return one member of a stack, or a stack of several members for an array of indices."""
    selected: Tree = jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, stack)
    return selected


def tree_concat(first: Tree, second: Tree) -> Tree:
    """Concatenate two stacks of the same structure."""

    def concat(one: Any, other: Any) -> Any:
        return jnp.concatenate([one, other]) if eqx.is_array(one) else one

    stack: Tree = jax.tree.map(concat, first, second)
    return stack


def tree_length(stack: Any) -> int:
    """Return the number of members of a stack."""
    return int(jax.tree.leaves(eqx.filter(stack, eqx.is_array))[0].shape[0])


def tree_zeros(length: int, like: Tree) -> Tree:
    """Return a stack of this length, filled with zeros, for members like those of another stack."""

    def zeros(leaf: Any) -> Any:
        return jnp.zeros((length, *leaf.shape[1:]), leaf.dtype)

    arrays, rest = eqx.partition(like, eqx.is_array)
    stack: Tree = eqx.combine(jax.tree.map(zeros, arrays), rest)
    return stack


def member_mesh(members: int) -> Mesh:
    """Return a mesh of the devices that can divide the members evenly."""
    return Mesh(np.asarray(jax.devices()[: math.gcd(members, jax.device_count())]), ("members",))


def replicate(tree: Tree, mesh: Mesh) -> Tree:
    """Copy every array to every device. A program whose argument and result are both replicated compiles only once."""
    if mesh.size == 1:
        return tree
    arrays, rest = eqx.partition(tree, eqx.is_array)
    copies: Tree = eqx.combine(jax.device_put(arrays, NamedSharding(mesh, REPLICATED)), rest)
    return copies
