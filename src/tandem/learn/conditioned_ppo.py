"""Ours: one network for every preference and every fleet size.

Each episode draws a preference, the network is told it, and its advantages are weighed by it. What is learned for one
preference serves its neighbours, so all rounds train one network; afterwards any preference can be asked for.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float

from tandem.feel.system import System
from tandem.feel.types import Array, RandomKey
from tandem.learn.algorithm import Algorithm, Candidates, ChunkMetrics, Stage
from tandem.learn.config import AlgorithmConfig, ConditionedPPOConfig
from tandem.learn.ppo.population import population_mesh, train_population
from tandem.learn.ppo.ppo import PPOConfig, TrainState, init_train_state
from tandem.learn.ppo.surrogate import ScalarisedSurrogate
from tandem.pareto import simplex_grid
from tandem.policy.networks import ActorCritic, DeepSetActorCritic
from tandem.rng import LearnerStream, fold_stream
from tandem.tree import replicate, tree_stack


class ConditionedPPO(Algorithm):
    """``tandem``: a permutation-equivariant network that is given the preference."""

    name = "pc-ppo"
    summary = "ours: one network for any preference and any fleet size"
    config_type: ClassVar[type[AlgorithmConfig]] = ConditionedPPOConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "quick": {"budget": 300_000, "preference_divisions": 13, "validation_episodes": 2},
    }
    config: ConditionedPPOConfig

    @property
    def stages(self) -> tuple[Stage, ...]:
        per_step = self.config.num_envs * sum(system.rounds for system in self.systems)
        rounds = self.config.budget - self.validation_rounds
        return (Stage.from_steps("training", self.steps_within_budget(rounds, per_step, "training"), per_step),)

    @property
    def max_candidates(self) -> int:
        return (self.config.preference_divisions + 1) * (self.config.preference_divisions + 2) // 2

    def init_network(self, key: RandomKey) -> ActorCritic:
        return DeepSetActorCritic.init(self.system, key, conditioned=True, width=self.config.width)

    def settings(self) -> PPOConfig:
        """How it learns."""
        plan = self.stages[0]
        return self.config.ppo_config(plan.chunks * plan.steps * len(self.systems), self.config.dirichlet_alpha)

    def init(self, key: RandomKey) -> TrainState:
        """A population of one."""
        network = self.init_network(fold_stream(key, LearnerStream.NETWORK))
        return tree_stack(
            [init_train_state(network, self.system, ScalarisedSurrogate(), jnp.full(3, 1 / 3), key, self.settings())]
        )

    def run_chunk(self, stage: int, state: TrainState) -> tuple[TrainState, ChunkMetrics]:
        return conditioned_steps(self.systems, state, self.settings(), self.stages[stage].steps)

    def candidates(self, state: TrainState) -> Candidates:
        """Every preference of a grid."""
        grid: Float[Array, "candidates 3"] = jnp.asarray(simplex_grid(self.config.preference_divisions), float)
        count = grid.shape[0]
        nothing = jnp.full(count, -1, jnp.int32)
        return Candidates(
            networks=state.network,
            normalisers=state.normaliser,
            owner=jnp.zeros(count, jnp.int32),
            preferences=grid,
            stage=jnp.zeros(count, jnp.int32),
            objective=nothing,
            valid=jnp.ones(count, bool),
        )


def conditioned_steps(
    systems: tuple[System, ...], state: TrainState, settings: PPOConfig, steps: int
) -> tuple[TrainState, ChunkMetrics]:
    """Some training steps of a population of one, each on every fleet in turn."""
    mesh = population_mesh(systems[0], 1, settings)
    done: tuple[TrainState, ChunkMetrics] = _program(systems, replicate(state, mesh), settings, steps, mesh)
    return done


@eqx.filter_jit
def _program(
    systems: tuple[System, ...], state: TrainState, settings: PPOConfig, steps: int, mesh: Mesh
) -> tuple[TrainState, ChunkMetrics]:
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one_step(arrays: TrainState, _: None) -> tuple[TrainState, Any]:
        learner = eqx.combine(arrays, rest)
        reports = []
        for system in systems:
            learner, report = train_population(system, learner, settings)
            reports.append(report)
        seen = [(r.violation_rate, r.entropy, r.value_error, r.clipped) for r in reports]
        return eqx.filter(learner, eqx.is_array), (reports[-1].by_episode, jnp.asarray(seen))

    arrays, (episodes, seen) = jax.lax.scan(one_step, arrays, None, length=steps)
    points = episodes.reshape(-1, 3)
    means = jnp.mean(seen.reshape(steps * len(systems), 4), axis=0)
    return replicate(eqx.combine(arrays, rest), mesh), ChunkMetrics(points, jnp.ones(points.shape[0], bool), *means)
