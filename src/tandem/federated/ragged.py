"""Work on padded lists, done part by part, and only where there is something in them.

A list has a fixed capacity and a count; what is past the count is padding. It is cut into parts of ``PART`` entries.
Many lists at once (the devices of a fleet, the fleets of a training) put their parts into one row, which is worked off
some parts at a time. So shapes are fixed whatever the counts are, one long queue among many short ones costs what it
holds, and memory is what those few parts take.
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

# Short parts pad little: on two cores a round of CIFAR-10 takes 1.5 s with 16, 1.9 s with 32. With 8 it would take
# 1.4 s, and digits a third longer: small products then cost more to start than to do.
PART = 16
# What the parts that are worked on together may take: two cores are busy with a few, a GPU with as many as fit.
WORKING_BYTES = 2**29
WORKING_SHARE = 1 / 8  # of the memory of a device that says how much it has
# Of all that a function computes, its compiled program holds less than a fourth at once, by XLA's own account of a pass
# back through CIFAR-10's network; fused, or overwritten, is the rest.
HELD = 4

Model = Any  # pytrees, all three
List = Any
Sums = Any
Work = Callable[[Model, List, Bool[Array, " part"]], Sums]  # of a part of a list, and which of its entries count


def capacity_for(count: float) -> int:
    """The smallest whole number of parts that holds this many."""
    return max(1, -(-int(count) // PART)) * PART


def working_bytes() -> int:
    """What work on parts takes at most, however many lists there are."""
    said = jax.local_devices()[0].memory_stats() or {}
    return max(WORKING_BYTES, int(WORKING_SHARE * said.get("bytes_limit", 0)))


def sum_over_ragged(work: Work, model: Model, entries: List, count: Count) -> Sums:
    """``work`` of every part that holds some of the first ``count`` entries of a list, summed.

    Under vmap, however deep, all lists are worked off together. A list whose sum is not finite spoils no other.
    """

    @custom_vmap
    def together(models: Model, lists: List, counts: Int[Array, " lists"]) -> Sums:
        return _summed(work, working_bytes(), models, lists, counts)

    @together.def_vmap
    def in_one_row(size: int, batched: list[Any], *lists: Any) -> tuple[Sums, Any]:
        def row(leaf: Array, own: bool) -> Array:
            every = leaf if own else jnp.broadcast_to(leaf, (size, *leaf.shape))
            return every.reshape(-1, *every.shape[2:])

        sums = together(*jax.tree.map(row, lists, tuple(batched)))
        apart = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), sums)
        return apart, jax.tree.map(lambda _: True, sums)

    single = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (model, entries, count))
    return _at(together(*single), 0)


@functools.partial(jax.jit, static_argnums=(0, 1))  # traced once for each shape, not each time that vmap comes by
def _summed(work: Work, room_bytes: int, models: Model, lists: List, counts: Int[Array, " lists"]) -> Sums:
    """[lists, ...]: the sum of each."""
    size, slots = len(counts), jax.tree.leaves(lists)[0].shape[1]
    cut = jax.tree.map(lambda leaf: leaf.reshape(size, slots // PART, PART, *leaf.shape[2:]), lists)
    one = (_at(models, 0), _at(cut, (0, 0)), jnp.ones(PART, bool))
    width = min(size, max(1, room_bytes * HELD // computed_bytes(work, *one)))
    parts = -(-counts // PART)
    ends = jnp.cumsum(parts)  # of the lists, in the row

    def some(done: tuple[Count, Sums]) -> tuple[Count, Sums]:
        first, sums = done
        place = first + jnp.arange(width)
        whose = jnp.minimum(jnp.searchsorted(ends, place, side="right", method="compare_all"), size - 1)
        number = jnp.minimum(place - (ends - parts)[whose], slots // PART - 1)
        valid = (place < ends[-1])[:, None] & (number[:, None] * PART + jnp.arange(PART) < counts[whose, None])
        made = jax.vmap(work)(_at(models, whose), _at(cut, (whose, number)), valid)
        return first + width, _added(sums, made, jnp.where(place < ends[-1], whose, size), slots // PART)

    none = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), jax.eval_shape(work, *one))
    sums: Sums = jax.lax.while_loop(lambda done: done[0] < ends[-1], some, (jnp.zeros((), jnp.int32), none))[1]
    return sums


def _added(sums: Sums, made: Sums, whose: Int[Array, " width"], most: int) -> Sums:
    """What parts made, added to the sums of the lists they are of, always in the same order.

    Parts of a list, ``most`` of them or fewer, are side by side: they are added up where its first one is, and go from
    there into its sum. Parts of nobody have a number that is no list's.
    """
    width, size = len(whose), len(jax.tree.leaves(sums)[0])
    first = jnp.concatenate([jnp.ones(1, bool), whose[1:] != whose[:-1]])
    into = jnp.where(first & (whose < size), whose, size + jnp.arange(width))  # past the end: dropped, and unique
    beside = jnp.pad(whose, (0, most), constant_values=-1)

    def add(total: Array, own: Array) -> Array:
        padded = jnp.pad(own, [(0, most), *((0, 0) for _ in own.shape[1:])])

        def of_the_same(step: int) -> Array:
            same = (beside[step : step + width] == whose).reshape(-1, *(1,) * (own.ndim - 1))
            return jnp.where(same, padded[step : step + width], 0)

        together = sum((of_the_same(step) for step in range(1, min(most, width))), start=own)
        return total.at[into].add(together, mode="drop", unique_indices=True)

    added: Sums = jax.tree.map(add, sums, made)
    return added


def computed_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """The size of everything that a function computes on the way."""
    steps = jax.make_jaxpr(function)(*arguments).jaxpr.eqns
    made = [variable.aval for step in steps for variable in step.outvars]
    return sum(aval.size * aval.dtype.itemsize for aval in made)


def _at(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)
