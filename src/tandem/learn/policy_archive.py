"""An archive of non-dominated policies, as they were when they were evaluated."""

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
    """A policy with the state that training needs to continue from it with another surrogate."""

    network: ActorCritic
    normaliser: ObservationNormaliser
    returns: RunningStats
    preference: Preference
    stage: Int[Array, ""]  # in which the policy was trained
    objective: Int[Array, ""]  # that it was trained to improve, or NO_OBJECTIVE


class PolicyArchive(eqx.Module):
    """An archive with the snapshot of each slot. Points are mean rewards, in which a violation costs its penalty."""

    archive: Archive
    kept: Snapshot
    times_extended: Int[Array, " capacity"]

    @classmethod
    def init(cls, capacity: int, like: Snapshot) -> PolicyArchive:
        """Create an empty archive for stacks of snapshots like this one."""
        return cls(Archive.init(capacity), tree_zeros(capacity, like), jnp.zeros(capacity, jnp.int32))

    def insert(
        self, new: Snapshot, rewards: Float[Array, "members 3"], valid: Bool[Array, " members"]
    ) -> PolicyArchive:
        """Keep those of a stack of snapshots that are not dominated."""
        archive, slots = insert(self.archive, rewards, jnp.arange(rewards.shape[0]), valid)
        zero = jnp.zeros(rewards.shape[0], jnp.int32)
        return PolicyArchive(archive, store(self.kept, slots, new), store(self.times_extended, slots, zero))


def make_snapshots(
    train_states: TrainState, stage: Int[Array, ""] | int, objectives: Int[Array, " members"]
) -> Snapshot:
    """Return the snapshots of a stack of train states."""
    return Snapshot(
        train_states.network,
        train_states.normaliser,
        train_states.returns,
        train_states.preference,
        jnp.full(tree_length(train_states.key), stage, jnp.int32),
        objectives,
    )
