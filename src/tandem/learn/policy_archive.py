"""Policies worth keeping, as they were when they were worth it: an archive of non-dominated snapshots."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from tandem.feel.types import Array
from tandem.learn.ppo.ppo import TrainState
from tandem.pareto import Archive, insert, store
from tandem.policy.networks import ActorCritic, Preference
from tandem.policy.neural_policy import ObservationNormaliser
from tandem.policy.running_stats import RunningStats
from tandem.tree import tree_length, tree_zeros


class Snapshot(eqx.Module):
    """What a learner needs to go on from here under another aim."""

    network: ActorCritic
    normaliser: ObservationNormaliser
    returns: RunningStats
    preference: Preference
    stage: Int[Array, ""]  # in which it came to be
    objective: Int[Array, ""]  # which it was to improve there, -1 if it followed its preference


class PolicyArchive(eqx.Module):
    """The archive, and slot by slot what belongs to it. Points are mean rewards: a violation counts as its penalty."""

    archive: Archive
    kept: Snapshot
    times_extended: Int[Array, " capacity"]

    @classmethod
    def init(cls, capacity: int, like: Snapshot) -> PolicyArchive:
        """Without any, for a stack of snapshots like these."""
        return cls(Archive.init(capacity), tree_zeros(capacity, like), jnp.zeros(capacity, jnp.int32))

    def insert(
        self, new: Snapshot, rewards: Float[Array, "members 3"], valid: Bool[Array, " members"]
    ) -> PolicyArchive:
        """With those of a stack kept that nothing dominates."""
        archive, slots = insert(self.archive, rewards, jnp.arange(rewards.shape[0]), valid)
        fresh = jnp.zeros(rewards.shape[0], jnp.int32)
        return PolicyArchive(archive, store(self.kept, slots, new), store(self.times_extended, slots, fresh))


def make_snapshots(population: TrainState, stage: Int[Array, ""] | int, objectives: Int[Array, " members"]) -> Snapshot:
    """A stack of learners as they are now."""
    return Snapshot(
        population.network,
        population.normaliser,
        population.returns,
        population.preference,
        jnp.full(tree_length(population.key), stage, jnp.int32),
        objectives,
    )
