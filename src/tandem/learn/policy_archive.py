"""An archive of non-dominated policies, as they were when they were evaluated."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from tandem.feel.environment import Environment
from tandem.feel.types import Array, RandomKey
from tandem.learn.ppo.population import BY_MEMBER
from tandem.learn.ppo.ppo import TrainState
from tandem.pareto import Archive, insert, store
from tandem.policy.evaluate import rollout_stack
from tandem.policy.networks import ActorCritic, Preference
from tandem.policy.neural_policy import NeuralPolicy, ObservationNormaliser, Sampling
from tandem.policy.rollout import EpisodeMeans
from tandem.policy.running_stats import RunningStats
from tandem.tree import REPLICATED, member_mesh, tree_concat, tree_length, tree_zeros


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


def evaluate_again(
    environment: Environment, policies: PolicyArchive, others: Snapshot, keys: RandomKey
) -> PolicyArchive:
    """Evaluate an archive and other policies in new episodes, and keep those that are not dominated there.

    A policy enters an archive by its reward in a few training episodes, so lucky ones displace better ones. All are
    evaluated in the same new episodes, with sampled actions like the policies that enter during training.
    """
    mesh = member_mesh(policies.archive.capacity + tree_length(others))
    result: PolicyArchive = _evaluate_again(environment, policies, others, keys, mesh)
    return result


@eqx.filter_jit
def _evaluate_again(
    environment: Environment, policies: PolicyArchive, others: Snapshot, keys: RandomKey, mesh: Mesh
) -> PolicyArchive:
    members, count = tree_concat(policies.kept, others), tree_length(others)
    means = evaluate_snapshots(environment, members, keys, mesh, "stochastic")
    valid = jnp.concatenate([policies.archive.valid, jnp.ones(count, bool)])
    times_extended = jnp.concatenate([policies.times_extended, jnp.zeros(count, jnp.int32)])
    rewards = jnp.mean(means.reward, axis=1)
    archive, slots = insert(Archive.init(policies.archive.capacity), rewards, jnp.arange(len(valid)), valid)
    return PolicyArchive(
        archive, store(policies.kept, slots, members), store(policies.times_extended, slots, times_extended)
    )


def evaluate_snapshots(
    environment: Environment, members: Snapshot, keys: RandomKey, mesh: Mesh, sampling: Sampling = "deterministic"
) -> EpisodeMeans:
    """Simulate an episode for every policy of a stack and every key; returns means, [members, keys, ...]."""
    policies = NeuralPolicy(members.network, members.normaliser, members.preference, sampling)
    arrays, rest = eqx.partition(policies, eqx.is_array)

    def evaluate(arrays: NeuralPolicy, keys: RandomKey) -> EpisodeMeans:
        return rollout_stack(environment, eqx.combine(arrays, rest), keys)

    if mesh.size > 1:
        evaluate = jax.shard_map(
            evaluate, mesh=mesh, in_specs=(BY_MEMBER, REPLICATED), out_specs=BY_MEMBER, check_vma=False
        )
    return evaluate(arrays, keys)
