"""Policies worth keeping, as they were when they were worth it: an archive of non-dominated snapshots."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from tandem.feel.types import Array
from tandem.learn.ppo.ppo import Learner
from tandem.pareto import Archive, empty_archive, insert, store
from tandem.policy.networks import Network, Preference
from tandem.policy.neural_policy import Normaliser
from tandem.policy.running_stats import Moments
from tandem.tree import room_for, size


class Snapshot(eqx.Module):
    """What a learner needs to go on from here under another aim."""

    network: Network
    normaliser: Normaliser
    returns: Moments
    preference: Preference
    stage: Int[Array, ""]  # in which it came to be
    objective: Int[Array, ""]  # which it was to improve there, -1 if it followed its preference


class Snapshots(eqx.Module):
    """The archive, and slot by slot what belongs to it. Points are mean rewards: a violation counts as its penalty."""

    archive: Archive
    kept: Snapshot
    times_extended: Int[Array, " capacity"]

    @classmethod
    def empty(cls, capacity: int, like: Snapshot) -> Snapshots:
        """Without any, for a stack of snapshots like these."""
        return cls(empty_archive(capacity), room_for(capacity, like), jnp.zeros(capacity, jnp.int32))

    def with_seen(self, new: Snapshot, rewards: Float[Array, "members 3"], valid: Bool[Array, " members"]) -> Snapshots:
        """With those of a stack kept that nothing dominates."""
        archive, slots = insert(self.archive, rewards, jnp.arange(rewards.shape[0]), valid)
        fresh = jnp.zeros(rewards.shape[0], jnp.int32)
        return Snapshots(archive, store(self.kept, slots, new), store(self.times_extended, slots, fresh))


def snapshots_of(population: Learner, stage: Int[Array, ""] | int, objectives: Int[Array, " members"]) -> Snapshot:
    """A stack of learners as they are now."""
    return Snapshot(
        population.network,
        population.normaliser,
        population.returns,
        population.preference,
        jnp.full(size(population.key), stage, jnp.int32),
        objectives,
    )
