"""A stack of policies played on seeds, a part at a time: as much as memory holds, as little as progress needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from tandem.feel.system import System
from tandem.feel.types import Array
from tandem.learn.population import member, size
from tandem.policy.neural import NeuralPolicy
from tandem.policy.rollout import EpisodeMeans, mean_outcome
from tandem.runs.simulation import episode_keys

# Devices times episodes in one call: about a second on two cores, and what keeps a GPU busy.
AT_ONCE = {"cpu": 2**13}
AT_ONCE_ELSEWHERE = 2**18


def played(system: System, policies: NeuralPolicy, seeds: Sequence[int]) -> Iterator[EpisodeMeans]:
    """Every policy of the stack on every seed: means, [policies, seeds, ...] in NumPy, of some policies at a time."""
    room = max(1, AT_ONCE.get(jax.default_backend(), AT_ONCE_ELSEWHERE) // system.size)
    seed_parts = list(_parts(len(seeds), room))
    keys = episode_keys(seeds)
    for chosen, count in _parts(size(policies), max(1, room // len(seed_parts[0][0]))):
        some = member(policies, chosen)
        means = [_cut(_play(system, some, keys[part]), count, seeds_in) for part, seeds_in in seed_parts]
        yield jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *means)


def _parts(count: int, at_once: int) -> Iterator[tuple[Any, int]]:
    """Indices in parts of even length, and how many of them count: the last is filled up, so that one program does."""
    for begin in range(0, count, at_once):
        here = np.arange(begin, min(begin + at_once, count))
        yield np.resize(here, min(at_once, count)), len(here)


def _cut(means: EpisodeMeans, policies: int, seeds: int) -> EpisodeMeans:
    plain: EpisodeMeans = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[:policies, :seeds], means)
    return plain


@eqx.filter_jit
def _play(system: System, policies: NeuralPolicy, keys: Array) -> EpisodeMeans:
    means: EpisodeMeans = eqx.filter_vmap(lambda policy: mean_outcome(system, policy, keys))(policies)
    return means
