"""Sums over padded lists of different lengths, computed block by block, only where there are entries.

A list has a fixed capacity and a count; entries past the count are padding. It is cut into blocks of ``BLOCK_SIZE``
entries. The non-empty blocks of many lists (the devices of a fleet, the fleets of a training run) form one sequence,
which is processed a few blocks at a time. So shapes are fixed for all counts, the cost of a list is proportional to
its count, and only the blocks that are being processed need memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Bool, Int

from tandem.feel.types import Array, Count

# Short blocks pad little: on two cores a round of CIFAR-10 takes 1.5 s with 16, 1.9 s with 32. With 8 it would take
# 1.4 s, but digits a third longer, since small matrix products cost more to start than to compute.
BLOCK_SIZE = 16
# Memory of the blocks that are processed together: a few keep two cores busy, a GPU takes as many as fit.
WORKING_BYTES = 2**29
WORKING_SHARE = 1 / 8  # of the memory of a device that reports its size
# A compiled program fuses or overwrites most of what a function computes: by XLA's own analysis of a backward pass
# through CIFAR-10's network, it holds less than a fourth of it at once.
MEMORY_REUSE = 4

Model = Any  # these three are pytrees
List = Any
Sums = Any
Work = Callable[[Model, List, Bool[Array, " block"]], Sums]  # of a block of a list, and which of its entries are valid


def capacity_for(count: float) -> int:
    """Return the smallest capacity, in whole blocks, that holds this many entries."""
    return max(1, -(-int(count) // BLOCK_SIZE)) * BLOCK_SIZE


def working_bytes() -> int:
    """Return the most memory that the processed blocks take, for any number of lists."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return max(WORKING_BYTES, int(WORKING_SHARE * stats.get("bytes_limit", 0)))


def sum_over_ragged(work: Work, model: Model, entries: List, count: Count) -> Sums:
    """Return the sum of ``work`` over all blocks that hold some of the first ``count`` entries of a list.

    Under vmap, nested or not, all lists are processed together. A list whose sum is not finite affects no other.
    """

    @custom_vmap
    def sum_all(models: Model, lists: List, counts: Int[Array, " lists"]) -> Sums:
        return _sum_lists(work, working_bytes(), models, lists, counts)

    @sum_all.def_vmap
    def flatten_batch(size: int, batched: list[Any], *arguments: Any) -> tuple[Sums, Any]:
        def flatten(leaf: Array, is_batched: bool) -> Array:
            every = leaf if is_batched else jnp.broadcast_to(leaf, (size, *leaf.shape))
            return every.reshape(-1, *every.shape[2:])

        sums = sum_all(*jax.tree.map(flatten, arguments, tuple(batched)))
        unflattened = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), sums)
        return unflattened, jax.tree.map(lambda _: True, sums)

    single = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (model, entries, count))
    return _at(sum_all(*single), 0)


@functools.partial(jax.jit, static_argnums=(0, 1))  # so that it is traced once for each shape, not for every vmap
def _sum_lists(work: Work, room_bytes: int, models: Model, lists: List, counts: Int[Array, " lists"]) -> Sums:
    """Return the sum of each list, [lists, ...]."""
    size, slots = len(counts), jax.tree.leaves(lists)[0].shape[1]
    per_list = slots // BLOCK_SIZE
    blocks = jax.tree.map(lambda leaf: leaf.reshape(size, per_list, BLOCK_SIZE, *leaf.shape[2:]), lists)
    one = (_at(models, 0), _at(blocks, (0, 0)), jnp.ones(BLOCK_SIZE, bool))
    width = min(size, max(1, room_bytes * MEMORY_REUSE // computed_bytes(work, *one)))
    block_counts = -(-counts // BLOCK_SIZE)
    ends = jnp.cumsum(block_counts)  # of each list, in the sequence of all blocks

    def process(progress: tuple[Count, Sums]) -> tuple[Count, Sums]:
        first, sums = progress
        position = first + jnp.arange(width)
        owner = jnp.minimum(jnp.searchsorted(ends, position, side="right", method="compare_all"), size - 1)
        number = jnp.minimum(position - (ends - block_counts)[owner], per_list - 1)
        in_list = number[:, None] * BLOCK_SIZE + jnp.arange(BLOCK_SIZE) < counts[owner, None]
        valid = (position < ends[-1])[:, None] & in_list
        results = jax.vmap(work)(_at(models, owner), _at(blocks, (owner, number)), valid)
        return first + width, _add(sums, results, jnp.where(position < ends[-1], owner, size), per_list)

    zeros = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), jax.eval_shape(work, *one))
    start = (jnp.zeros((), jnp.int32), zeros)
    sums: Sums = jax.lax.while_loop(lambda progress: progress[0] < ends[-1], process, start)[1]
    return sums


def _add(sums: Sums, results: Sums, owner: Int[Array, " width"], per_list: int) -> Sums:
    """Add the results of blocks to the sums of their lists, always in the same order.

    The blocks of a list, at most ``per_list``, are adjacent: they are summed at the first of them, and this sum is
    added to the sum of the list. Blocks without a list have an owner that is not the index of a list.
    """
    width, size = len(owner), len(jax.tree.leaves(sums)[0])
    first = jnp.concatenate([jnp.ones(1, bool), owner[1:] != owner[:-1]])
    target = jnp.where(first & (owner < size), owner, size + jnp.arange(width))  # past the end: dropped, and unique
    padded_owner = jnp.pad(owner, (0, per_list), constant_values=-1)

    def add(total: Array, own: Array) -> Array:
        padded = jnp.pad(own, [(0, per_list), *((0, 0) for _ in own.shape[1:])])

        def same_list(offset: int) -> Array:
            same = (padded_owner[offset : offset + width] == owner).reshape(-1, *(1,) * (own.ndim - 1))
            return jnp.where(same, padded[offset : offset + width], 0)

        combined = sum((same_list(offset) for offset in range(1, min(per_list, width))), start=own)
        return total.at[target].add(combined, mode="drop", unique_indices=True)

    added: Sums = jax.tree.map(add, sums, results)
    return added


def computed_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Return the size of all intermediate and final results of a function."""
    equations = jax.make_jaxpr(function)(*arguments).jaxpr.eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    return sum(aval.size * aval.dtype.itemsize for aval in results)


def _at(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)
