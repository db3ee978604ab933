"""A stack of policies played for many episodes, a part at a time: as much as memory holds, as progress needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from tandem.feel.env import reset
from tandem.feel.system import System
from tandem.feel.types import Array
from tandem.policy.neural_policy import NeuralPolicy
from tandem.policy.rollout import EpisodeMeans, rollout_means
from tandem.tree import tree_index, tree_length

# Devices times episodes in one call: about a second on two cores, and what keeps a GPU busy.
MAX_BATCH = {"cpu": 2**13}
MAX_BATCH_ACCELERATOR = 2**18
MEASURED_COST = 64  # how many devices with an estimated accuracy cost what one with a real model costs
MIN_MEASURED_BATCH = (
    8  # policies in a program with real models, or all there is room for: compiling costs more than them
)
MEMORY_BYTES = 4 * 2**30  # for fleets with real models, where a device does not say how much it has
MEMORY_SHARE = 0.6  # of what it has, where it does
STATE_COPIES = 4  # of a fleet's state that a program holds: by XLA's account 3.2, with CIFAR-10's images


def evaluate_policies(
    system: System, policies: NeuralPolicy, keys: Array, which: NDArray[np.intp] | None = None
) -> Iterator[EpisodeMeans]:
    """An episode for every policy, or those at some indices, and key: means, [policies, keys, ...] in NumPy, of some
    policies at a time."""
    room = max_fleets(system)
    key_parts = list(padded_batches(len(keys), room))
    fewest = 1 if system.measured_accuracy is None else MIN_MEASURED_BATCH
    which = np.arange(tree_length(policies)) if which is None else which
    for chosen, count in padded_batches(len(which), max(1, room // len(key_parts[0][0])), fewest):
        some = _some(policies, which[chosen])
        means = [_cut(_evaluate_batch(system, some, keys[part]), count, episodes) for part, episodes in key_parts]
        yield jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *means)


def max_fleets(system: System) -> int:
    """How many fleets one call has time for, and memory if there are real models behind the devices."""
    busy = MAX_BATCH.get(jax.default_backend(), MAX_BATCH_ACCELERATOR) // system.size
    if system.measured_accuracy is None:
        return max(1, busy)
    return max(
        1,
        min(busy // MEASURED_COST, (_memory_bytes() - system.measured_accuracy.working_bytes()) // fleet_bytes(system)),
    )


def fleet_bytes(system: System) -> int:
    """About how much memory a fleet that is played takes."""
    leaves = jax.tree.leaves(eqx.filter_eval_shape(reset, system, jax.random.key(0)))
    state = sum(int(leaf.size * leaf.dtype.itemsize) for leaf in leaves)
    return STATE_COPIES * state


def _memory_bytes() -> int:
    said = jax.local_devices()[0].memory_stats() or {}
    return int(MEMORY_SHARE * said["bytes_limit"]) if "bytes_limit" in said else MEMORY_BYTES


def unstack(means: EpisodeMeans) -> Iterator[EpisodeMeans]:
    """The episodes of every policy by itself, [keys, ...]."""
    leaves, structure = jax.tree.flatten(means)
    for own in zip(*leaves, strict=True):
        yield jax.tree.unflatten(structure, own)


def padded_batches(count: int, at_once: int, fewest: int = 1) -> Iterator[tuple[Any, int]]:
    """Indices in parts of even length, and how many of them count: the last is filled up, so that one program does.

    Fewer than a part has room for are filled up to a power of two, and to the fewest: few lengths, so few programs,
    serve all counts.
    """
    length = min(at_once, max(fewest, 2 ** (count - 1).bit_length()))
    for begin in range(0, count, at_once):
        here = np.arange(begin, min(begin + at_once, count))
        yield np.resize(here, length), len(here)


def _cut(means: EpisodeMeans, policies: int, episodes: int) -> EpisodeMeans:
    plain: EpisodeMeans = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[:policies, :episodes], means)
    return plain


@eqx.filter_jit
def _some(policies: NeuralPolicy, which: Array) -> NeuralPolicy:
    """In one program: by itself each of their arrays would be one."""
    return tree_index(policies, which)


@eqx.filter_jit
def _evaluate_batch(system: System, policies: NeuralPolicy, keys: Array) -> EpisodeMeans:
    means: EpisodeMeans = eqx.filter_vmap(lambda policy: rollout_means(system, policy, keys))(policies)
    return means
