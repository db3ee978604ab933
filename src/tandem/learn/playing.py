"""A stack of policies played for many episodes, a part at a time: as much as memory holds, as progress needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from tandem.feel.system import System
from tandem.feel.types import Array
from tandem.learn.population import member, size
from tandem.policy.neural import NeuralPolicy
from tandem.policy.rollout import EpisodeMeans, mean_outcome

# Devices times episodes in one call: about a second on two cores, and what keeps a GPU busy.
AT_ONCE = {"cpu": 2**13}
AT_ONCE_ELSEWHERE = 2**18
MEASURED = 64  # how many devices with an estimated accuracy cost what one with a real model costs


def played(system: System, policies: NeuralPolicy, keys: Array) -> Iterator[EpisodeMeans]:
    """An episode for every policy and key: means, [policies, keys, ...] in NumPy, of some policies at a time."""
    cost = system.size * (1 if system.truth is None else MEASURED)
    room = max(1, AT_ONCE.get(jax.default_backend(), AT_ONCE_ELSEWHERE) // cost)
    key_parts = list(_parts(len(keys), room))
    for chosen, count in _parts(size(policies), max(1, room // len(key_parts[0][0]))):
        some = member(policies, chosen)
        means = [_cut(_play(system, some, keys[part]), count, episodes) for part, episodes in key_parts]
        yield jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *means)


def each(means: EpisodeMeans) -> Iterator[EpisodeMeans]:
    """The episodes of every policy by itself, [keys, ...]."""
    leaves, structure = jax.tree.flatten(means)
    for own in zip(*leaves, strict=True):
        yield jax.tree.unflatten(structure, own)


def _parts(count: int, at_once: int) -> Iterator[tuple[Any, int]]:
    """Indices in parts of even length, and how many of them count: the last is filled up, so that one program does.

    Fewer than a part has room for are filled up to a power of two: few lengths, so few programs, serve all counts.
    """
    length = min(at_once, 2 ** (count - 1).bit_length())
    for begin in range(0, count, at_once):
        here = np.arange(begin, min(begin + at_once, count))
        yield np.resize(here, length), len(here)


def _cut(means: EpisodeMeans, policies: int, episodes: int) -> EpisodeMeans:
    plain: EpisodeMeans = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[:policies, :episodes], means)
    return plain


@eqx.filter_jit
def _play(system: System, policies: NeuralPolicy, keys: Array) -> EpisodeMeans:
    means: EpisodeMeans = eqx.filter_vmap(lambda policy: mean_outcome(system, policy, keys))(policies)
    return means
