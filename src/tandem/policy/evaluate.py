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
from tandem.policy.rollout import EpisodeMeans, mean_outcome
from tandem.tree import member, size

# Devices times episodes in one call: about a second on two cores, and what keeps a GPU busy.
AT_ONCE = {"cpu": 2**13}
AT_ONCE_ELSEWHERE = 2**18
MEASURED = 64  # how many devices with an estimated accuracy cost what one with a real model costs
FEWEST_MEASURED = 8  # policies in a program with real models, or all there is room for: compiling costs more than them
MEMORY_BYTES = 4 * 2**30  # for fleets with real models, where a device does not say how much it has
MEMORY_SHARE = 0.6  # of what it has, where it does
COPIES = 4  # of a fleet's state that a program holds: by XLA's account 3.2, with CIFAR-10's images


def played(
    system: System, policies: NeuralPolicy, keys: Array, which: NDArray[np.intp] | None = None
) -> Iterator[EpisodeMeans]:
    """An episode for every policy, or those at some indices, and key: means, [policies, keys, ...] in NumPy, of some
    policies at a time."""
    room = fleets_at_once(system)
    key_parts = list(_parts(len(keys), room))
    fewest = 1 if system.truth is None else FEWEST_MEASURED
    which = np.arange(size(policies)) if which is None else which
    for chosen, count in _parts(len(which), max(1, room // len(key_parts[0][0])), fewest):
        some = _some(policies, which[chosen])
        means = [_cut(_play(system, some, keys[part]), count, episodes) for part, episodes in key_parts]
        yield jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *means)


def fleets_at_once(system: System) -> int:
    """How many fleets one call has time for, and memory if there are real models behind the devices."""
    busy = AT_ONCE.get(jax.default_backend(), AT_ONCE_ELSEWHERE) // system.size
    if system.truth is None:
        return max(1, busy)
    return max(1, min(busy // MEASURED, (_memory_bytes() - system.truth.working_bytes()) // fleet_bytes(system)))


def fleet_bytes(system: System) -> int:
    """About how much memory a fleet that is played takes."""
    leaves = jax.tree.leaves(eqx.filter_eval_shape(reset, system, jax.random.key(0)))
    state = sum(int(leaf.size * leaf.dtype.itemsize) for leaf in leaves)
    return COPIES * state


def _memory_bytes() -> int:
    said = jax.local_devices()[0].memory_stats() or {}
    return int(MEMORY_SHARE * said["bytes_limit"]) if "bytes_limit" in said else MEMORY_BYTES


def each(means: EpisodeMeans) -> Iterator[EpisodeMeans]:
    """The episodes of every policy by itself, [keys, ...]."""
    leaves, structure = jax.tree.flatten(means)
    for own in zip(*leaves, strict=True):
        yield jax.tree.unflatten(structure, own)


def _parts(count: int, at_once: int, fewest: int = 1) -> Iterator[tuple[Any, int]]:
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
    return member(policies, which)


@eqx.filter_jit
def _play(system: System, policies: NeuralPolicy, keys: Array) -> EpisodeMeans:
    means: EpisodeMeans = eqx.filter_vmap(lambda policy: mean_outcome(system, policy, keys))(policies)
    return means
