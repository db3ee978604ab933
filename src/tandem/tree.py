"""Pytrees of arrays with a leading axis: stacking, indexing, and placement on devices."""

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
    """One tree of arrays with an axis for the members; what is no array is that of the first."""
    arrays, rest = zip(*(eqx.partition(member, eqx.is_array) for member in members), strict=True)
    together: Tree = eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rest[0])
    return together


def tree_index(population: Tree, index: Any) -> Tree:
    """One of the members, or several for an array of indices."""
    some: Tree = jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, population)
    return some


def tree_concat(first: Tree, second: Tree) -> Tree:
    """The members of two populations of a kind."""

    def both(one: Any, other: Any) -> Any:
        return jnp.concatenate([one, other]) if eqx.is_array(one) else one

    together: Tree = jax.tree.map(both, first, second)
    return together


def tree_length(population: Any) -> int:
    """How many members there are."""
    return int(jax.tree.leaves(eqx.filter(population, eqx.is_array))[0].shape[0])


def tree_zeros(capacity: int, population: Tree) -> Tree:
    """Blank slots for so many members."""

    def blank(leaf: Any) -> Any:
        return jnp.zeros((capacity, *leaf.shape[1:]), leaf.dtype)

    arrays, rest = eqx.partition(population, eqx.is_array)
    slots: Tree = eqx.combine(jax.tree.map(blank, arrays), rest)
    return slots


def member_mesh(members: int) -> Mesh:
    """The devices that can share members out evenly."""
    return Mesh(np.asarray(jax.devices()[: math.gcd(members, jax.device_count())]), ("members",))


def replicate(tree: Tree, mesh: Mesh) -> Tree:
    """The tree with every array on every device. A program that is given one and returns one compiles only once."""
    if mesh.size == 1:
        return tree
    arrays, rest = eqx.partition(tree, eqx.is_array)
    copies: Tree = eqx.combine(jax.device_put(arrays, NamedSharding(mesh, REPLICATED)), rest)
    return copies
