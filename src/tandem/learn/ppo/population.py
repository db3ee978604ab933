"""Many learners in one program: stacked along a leading axis, which several processors or GPUs share out."""

from __future__ import annotations

import math
from typing import TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tandem.feel.system import System
from tandem.learn.ppo.data_parallel import DataParallel
from tandem.learn.ppo.ppo import PPOConfig, StepMetrics, TrainState, train_step
from tandem.tree import tree_length

Tree = TypeVar("Tree")
BY_MEMBER = PartitionSpec("members")  # type: ignore[no-untyped-call]


def population_mesh(system: System, members: int, settings: PPOConfig) -> Mesh:
    """The devices that can share the work evenly: learners are shared out first, then the episodes of each."""
    devices = jax.device_count()
    by_member = math.gcd(members, devices)
    minibatch = settings.rounds_per_step(system) // settings.num_minibatches
    by_episode = math.gcd(devices // by_member, settings.num_envs, minibatch)
    chosen = np.asarray(jax.devices()[: by_member * by_episode])
    return Mesh(chosen.reshape(by_member, by_episode), ("members", "episodes"))


def train_population(system: System, population: TrainState, settings: PPOConfig) -> tuple[TrainState, StepMetrics]:
    """One training step of every learner."""
    arrays, rest = eqx.partition(population, eqx.is_array)
    mesh = population_mesh(system, tree_length(arrays), settings)
    team = DataParallel(mesh.shape["episodes"], "episodes")

    def train(arrays: TrainState) -> tuple[TrainState, StepMetrics]:
        def one(member: TrainState) -> tuple[TrainState, StepMetrics]:
            learner, report = train_step(system, eqx.combine(member, rest), settings, team)
            return eqx.filter(learner, eqx.is_array), report

        return jax.vmap(one)(arrays)

    if mesh.size > 1:
        train = jax.shard_map(train, mesh=mesh, in_specs=BY_MEMBER, out_specs=BY_MEMBER, check_vma=False)
    trained, report = train(arrays)
    return eqx.combine(trained, rest), report
