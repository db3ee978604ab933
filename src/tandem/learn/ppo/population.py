"""Training of many policies in one program: stacked along a leading axis, which several devices may share."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tandem.feel.environment import Environment
from tandem.learn.config import PPOConfig
from tandem.learn.ppo.data_parallel import DataParallel
from tandem.learn.ppo.ppo import StepResult, TrainState, train_step
from tandem.tree import tree_length

BY_MEMBER = PartitionSpec("members")  # type: ignore[no-untyped-call]


def population_mesh(environment: Environment, members: int, config: PPOConfig) -> Mesh:
    """Return the devices that can share the work evenly: they divide the members first, then the episodes of each."""
    devices = jax.device_count()
    by_member = math.gcd(members, devices)
    minibatch = config.rounds_per_step(environment) // config.num_minibatches
    by_episode = math.gcd(devices // by_member, config.num_envs, minibatch)
    chosen = np.asarray(jax.devices()[: by_member * by_episode])
    return Mesh(chosen.reshape(by_member, by_episode), ("members", "episodes"))


def train_population(
    environment: Environment, population: TrainState, config: PPOConfig
) -> tuple[TrainState, StepResult]:
    """Run one training step of every member."""
    arrays, rest = eqx.partition(population, eqx.is_array)
    mesh = population_mesh(environment, tree_length(arrays), config)
    parallel = DataParallel(mesh.shape["episodes"], "episodes")

    def train(arrays: TrainState) -> tuple[TrainState, StepResult]:
        def train_member(member: TrainState) -> tuple[TrainState, StepResult]:
            state, result = train_step(environment, eqx.combine(member, rest), config, parallel)
            return eqx.filter(state, eqx.is_array), result

        return jax.vmap(train_member)(arrays)

    if mesh.size > 1:
        train = jax.shard_map(train, mesh=mesh, in_specs=BY_MEMBER, out_specs=BY_MEMBER, check_vma=False)
    arrays, result = train(arrays)
    return eqx.combine(arrays, rest), result
