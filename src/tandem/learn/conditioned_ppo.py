"""Preference-conditioned PPO: one network for every preference and every fleet size.

Each episode samples a preference, which is an input of the network and weights the advantages. Training for one
preference also improves similar ones, so the whole budget trains one network, which supports any preference.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float

from tandem.feel.environment import Environment
from tandem.feel.types import Array, RandomKey
from tandem.learn.algorithm import NO_OBJECTIVE, Algorithm, Candidates, ChunkResult, Stage
from tandem.learn.config import AlgorithmConfig, ConditionedPPOConfig, PPOConfig
from tandem.learn.ppo.population import population_mesh, train_population
from tandem.learn.ppo.ppo import TrainingMetrics, TrainState, init_train_state
from tandem.learn.ppo.surrogate import ScalarisedSurrogate
from tandem.pareto import simplex_grid
from tandem.policy.networks import ActorCritic, DeepSetActorCritic
from tandem.rng import LearnerStream, fold_stream
from tandem.tree import replicate, tree_stack


class ConditionedPPO(Algorithm):
    """PC-PPO: a permutation-equivariant network that receives the preference."""

    name = "pc-ppo"
    summary = "our algorithm: one network for any preference and any fleet size"
    config_type: ClassVar[type[AlgorithmConfig]] = ConditionedPPOConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "quick": {"budget": 200_000, "num_envs": 8, "preference_divisions": 13, "validation_episodes": 2},
    }
    conditioned = True
    config: ConditionedPPOConfig

    def plan_stages(self) -> tuple[Stage, ...]:
        per_step = self.config.num_envs * sum(environment.rounds for environment in self.environments)
        rounds = self.config.budget - self.validation_rounds
        return (Stage.from_steps("training", self.steps_within_budget(rounds, per_step, "training"), per_step),)

    @property
    def max_candidates(self) -> int:
        return (self.config.preference_divisions + 1) * (self.config.preference_divisions + 2) // 2

    def init_network(self, key: RandomKey) -> ActorCritic:
        return DeepSetActorCritic.init(self.environment, key, conditioned=True, width=self.config.width)

    def ppo_config(self) -> PPOConfig:
        """Return the hyperparameters of training."""
        return self.config.ppo_config(self.stages[0].total_steps * len(self.environments), self.config.dirichlet_alpha)

    def init(self, key: RandomKey) -> TrainState:
        """Create the state before the first step: a population of one."""
        network = self.init_network(fold_stream(key, LearnerStream.NETWORK))
        equal = jnp.full(3, 1 / 3)
        return tree_stack(
            [init_train_state(network, self.environment, ScalarisedSurrogate(), equal, key, self.ppo_config())]
        )

    def run_chunk(self, stage: int, state: TrainState) -> tuple[TrainState, ChunkResult]:
        return run_conditioned_steps(self.environments, state, self.ppo_config(), self.stages[stage].steps)

    def candidates(self, state: TrainState) -> Candidates:
        """Return the network with every preference of a grid."""
        grid: Float[Array, "candidates 3"] = jnp.asarray(simplex_grid(self.config.preference_divisions), float)
        count = grid.shape[0]
        return Candidates(
            networks=state.network,
            normalisers=state.normaliser,
            owner=jnp.zeros(count, jnp.int32),
            preferences=grid,
            stage=jnp.zeros(count, jnp.int32),
            objective=jnp.full(count, NO_OBJECTIVE, jnp.int32),
            valid=jnp.ones(count, bool),
        )


def run_conditioned_steps(
    environments: tuple[Environment, ...], state: TrainState, config: PPOConfig, steps: int
) -> tuple[TrainState, ChunkResult]:
    """Run some training steps of a population of one; each step uses every environment in turn."""
    mesh = population_mesh(environments[0], 1, config)
    result: tuple[TrainState, ChunkResult] = _run_steps(environments, replicate(state, mesh), config, steps, mesh)
    return result


@eqx.filter_jit
def _run_steps(
    environments: tuple[Environment, ...], state: TrainState, config: PPOConfig, steps: int, mesh: Mesh
) -> tuple[TrainState, ChunkResult]:
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one_step(arrays: TrainState, _: None) -> tuple[TrainState, Any]:
        state = eqx.combine(arrays, rest)
        metrics = []
        for environment in environments:
            state, result = train_population(environment, state, config)
            metrics.append(jnp.stack(jax.tree.leaves(result.metrics)))
        return eqx.filter(state, eqx.is_array), (result.reward_by_episode, jnp.stack(metrics))

    arrays, (rewards, metrics) = jax.lax.scan(one_step, arrays, None, length=steps)
    points = rewards.reshape(-1, 3)
    means = jnp.mean(metrics.reshape(steps * len(environments), -1), axis=0)
    state = replicate(eqx.combine(arrays, rest), mesh)
    return state, ChunkResult(points, jnp.ones(points.shape[0], bool), TrainingMetrics(*means))
