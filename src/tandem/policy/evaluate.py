"""Evaluation of a stack of policies over many episodes, in batches that fit into memory and allow for progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from tandem.feel.environment import Environment
from tandem.feel.types import Array
from tandem.policy.base import Policy
from tandem.policy.neural_policy import NeuralPolicy
from tandem.policy.rollout import EpisodeMeans, rollout_means
from tandem.tree import tree_index, tree_length

# Devices times episodes in one call: about a second on two cores, and enough to occupy a GPU.
MAX_BATCH = {"cpu": 2**13}
MAX_BATCH_ACCELERATOR = 2**18
MEASURED_COST = 64  # a device with a real model takes as much time as this many with an estimated accuracy
# Policies in a program with real models, or as many as fit: compiling it takes longer than evaluating them.
MIN_MEASURED_BATCH = 8
MEMORY_BYTES = 4 * 2**30  # for fleets with real models, if a device does not report its memory
MEMORY_SHARE = 0.6  # of the memory that a device reports
STATE_COPIES = 4  # copies of a fleet's state that a program holds; XLA reports 3.2 with CIFAR-10's images


def evaluate_policies(
    environment: Environment, policies: NeuralPolicy, keys: Array, which: NDArray[np.intp] | None = None
) -> Iterator[EpisodeMeans]:
    """Simulate an episode for every key and every policy of a stack, or those at the indices ``which``.

    Yields the means of some policies at a time, [policies, keys, ...] in NumPy.
    """
    batch = max_fleets(environment)
    key_batches = list(padded_batches(len(keys), batch))
    fewest = 1 if environment.measured_accuracy is None else MIN_MEASURED_BATCH
    which = np.arange(tree_length(policies)) if which is None else which
    for indices, count in padded_batches(len(which), max(1, batch // len(key_batches[0][0])), fewest):
        some = _select(policies, which[indices])
        means = [
            _remove_padding(_evaluate_batch(environment, some, keys[part]), count, episodes)
            for part, episodes in key_batches
        ]
        yield jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *means)


def rollout_stack(environment: Environment, policies: Policy, keys: Array) -> EpisodeMeans:
    """Simulate an episode for every policy of a stack and every key; returns means, [policies, keys, ...]."""
    means: EpisodeMeans = eqx.filter_vmap(lambda policy: rollout_means(environment, policy, keys))(policies)
    return means


def max_fleets(environment: Environment) -> int:
    """Return how many fleets one call simulates, limited by time, and by memory if accuracy is measured."""
    limit = MAX_BATCH.get(jax.default_backend(), MAX_BATCH_ACCELERATOR) // environment.size
    measured = environment.measured_accuracy
    if measured is None:
        return max(1, limit)
    fits = (_memory_bytes() - measured.working_bytes()) // fleet_bytes(environment)
    return max(1, min(limit // MEASURED_COST, fits))


def fleet_bytes(environment: Environment) -> int:
    """Estimate the memory that the simulation of one fleet needs."""
    leaves = jax.tree.leaves(eqx.filter_eval_shape(environment.reset, jax.random.key(0)))
    state = sum(int(leaf.size * leaf.dtype.itemsize) for leaf in leaves)
    return STATE_COPIES * state


def _memory_bytes() -> int:
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(MEMORY_SHARE * stats["bytes_limit"]) if "bytes_limit" in stats else MEMORY_BYTES


def unstack(means: EpisodeMeans) -> Iterator[EpisodeMeans]:
    """Iterate over the means of each policy, [keys, ...]."""
    leaves, structure = jax.tree.flatten(means)
    for own in zip(*leaves, strict=True):
        yield jax.tree.unflatten(structure, own)


def padded_batches(count: int, size: int, fewest: int = 1) -> Iterator[tuple[Any, int]]:
    """Split ``range(count)`` into index arrays of equal length, each with the number of entries that are not padding.

    A batch that is not full is padded, so that one compiled program serves all. A count below ``size`` is padded to a
    power of two, and at least to ``fewest``: few lengths, and so few programs, serve all counts.
    """
    length = min(size, max(fewest, 2 ** (count - 1).bit_length()))
    for begin in range(0, count, size):
        indices = np.arange(begin, min(begin + size, count))
        yield np.resize(indices, length), len(indices)


def _remove_padding(means: EpisodeMeans, policies: int, episodes: int) -> EpisodeMeans:
    plain: EpisodeMeans = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[:policies, :episodes], means)
    return plain


@eqx.filter_jit
def _select(policies: NeuralPolicy, which: Array) -> NeuralPolicy:
    """Index all arrays of the policies in one compiled program, instead of one program for each array."""
    return tree_index(policies, which)


_evaluate_batch = eqx.filter_jit(rollout_stack)
