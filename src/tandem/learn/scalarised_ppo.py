"""S-PPO and R+PPO: one policy for each of several preferences, all trained in one program.

C-MOPPO, PG-MORL and the evolutionary algorithms have the same first stage, so they are subclasses of ``ScalarisedPPO``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float, Int

from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.feel.types import Array, RandomKey
from tandem.learn.algorithm import NO_OBJECTIVE, Algorithm, Candidates, ChunkResult, Stage
from tandem.learn.config import AlgorithmConfig, PopulationConfig, PPOConfig, ScalarisedPPOConfig
from tandem.learn.policy_archive import PolicyArchive, Snapshot, make_snapshots
from tandem.learn.ppo.population import population_mesh, train_population
from tandem.learn.ppo.ppo import TrainingMetrics, TrainState, init_train_state
from tandem.learn.ppo.surrogate import ScalarisedSurrogate
from tandem.pareto import interior_simplex
from tandem.policy.networks import NETWORKS, ActorCritic, RandomModeActorCritic
from tandem.policy.neural_policy import Sampling
from tandem.rng import LearnerStream, fold_stream
from tandem.tree import replicate, tree_concat, tree_length, tree_stack

# The hyperparameters of the paper; those that it does not give (epochs, minibatches) are common practice.
LITERAL: dict[str, Any] = {
    "network": "mlp",
    "learning_rate": 1e-5,
    "anneal_lr": False,
    "clip_eps": 0.2,
    "ratio_scope": "fleet",
    "shared_credit": 1.0,
    "ent_coef": 0.0,
    "num_envs": 1,
    "update_epochs": 10,
    "num_minibatches": 4,
    "validation_episodes": 3,
    "shield": False,
}


# A fifth of the budget, in larger steps.
QUICK: dict[str, Any] = {"budget": 200_000, "num_envs": 4, "learning_rate": 4e-3}

State = TypeVar("State", bound="PopulationState")


class PopulationState(eqx.Module):
    """A population of policies in training, and the archive of policies so far."""

    train_states: TrainState  # stacked
    objectives: Int[Array, " members"]  # that each member is to improve, or NO_OBJECTIVE
    policy_archive: PolicyArchive
    key: RandomKey

    def after_step(self, train_states: TrainState, rewards: Float[Array, "members 3"], stage: Int[Array, ""]) -> Self:
        """Return the state after a step that led to ``train_states`` and whose episodes had these mean rewards.

        The archive gets the policies before the update: the episodes are theirs.
        """
        before = make_snapshots(self.train_states, stage, self.objectives)
        archive = self.policy_archive.insert(before, rewards, jnp.ones(rewards.shape[0], bool))
        return replace(self, train_states=train_states, policy_archive=archive)


class ScalarisedPPO(Algorithm):
    """S-PPO: Pareto initialisation for the whole budget."""

    name = "s-ppo"
    summary = "one policy for each of several fixed preferences, by PPO"
    config_type: ClassVar[type[AlgorithmConfig]] = ScalarisedPPOConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "literal": LITERAL, "quick": QUICK}
    config: PopulationConfig

    def plan_stages(self) -> tuple[Stage, ...]:
        return (self._initialisation(self.config.budget - self.validation_rounds),)

    def _plan_iterations(self, iteration: Stage, initialisation: float, shorten: str) -> tuple[Stage, ...]:
        """Plan as many whole iterations as their share of the budget allows; initialisation gets the rest."""
        rounds, share = self.config.budget - self.validation_rounds, 1 - initialisation
        needed = max(iteration.rounds / share, self._rounds_per_step / initialisation)
        if rounds < needed:
            raise InputError(
                f"budget is {self.config.budget}, too few rounds for one iteration of {iteration.name} "
                f"({iteration.rounds} rounds) beside initialisation and validation ({self.validation_rounds} rounds); "
                f"give {self.validation_rounds + math.ceil(needed)} or more, or fewer {shorten}."
            )
        iterations = max(1, int(share * rounds) // iteration.rounds)
        return (self._initialisation(rounds - iterations * iteration.rounds), *(iteration,) * iterations)

    def _initialisation(self, rounds: int) -> Stage:
        steps = self.steps_within_budget(rounds, self._rounds_per_step, "initialisation")
        return Stage.from_steps("initialisation", steps, self._rounds_per_step)

    @property
    def _rounds_per_step(self) -> int:
        """The number of environment rounds of one step of initialisation."""
        return self.config.num_preferences * self.config.num_envs * self.environment.rounds

    @property
    def max_candidates(self) -> int:
        return self.config.archive_size + self.config.num_preferences

    def init_network(self, key: RandomKey) -> ActorCritic:
        return NETWORKS[self.config.network].init(self.environment, key)

    def ppo_config(self, stage: int) -> PPOConfig:
        """Return the hyperparameters of a stage."""
        return self.config.ppo_config(self.stages[stage].total_steps)

    def init(self, key: RandomKey) -> PopulationState:
        """Create the state before Pareto initialisation: an untrained network for every preference."""
        preferences = jnp.asarray(interior_simplex(self.config.num_preferences, self.config.min_weight), float)
        keys = jax.random.split(key, self.config.num_preferences + 1)
        config = self.ppo_config(0)
        members = [
            init_train_state(network, self.environment, ScalarisedSurrogate(), preference, member_key, config)
            for network, preference, member_key in zip(
                self._init_networks(keys[1:]), preferences, keys[1:], strict=True
            )
        ]
        train_states = tree_stack(members)
        objectives = jnp.full(len(members), NO_OBJECTIVE, jnp.int32)
        # Without an archive there is one slot, which is no candidate.
        capacity = max(1, self.config.archive_size)
        archive = PolicyArchive.init(capacity, make_snapshots(train_states, 0, objectives))
        return PopulationState(train_states, objectives, archive, keys[0])

    def _init_networks(self, keys: RandomKey) -> list[ActorCritic]:
        return [self.init_network(fold_stream(key, LearnerStream.NETWORK)) for key in keys]

    def run_chunk(self, stage: int, state: PopulationState) -> tuple[PopulationState, ChunkResult]:
        number = jnp.asarray(stage, jnp.int32)  # an array: later iterations run the same program
        return run_population_steps(self.environment, state, self.ppo_config(stage), number, self.stages[stage].steps)

    def candidates(self, state: PopulationState) -> Candidates:
        """Return every policy of the archive, and those beside it."""
        kept, archive = state.policy_archive.kept, state.policy_archive.archive
        others = self.candidates_beside_archive(state)
        snapshots, members = tree_concat(kept, others), tree_length(others)
        return Candidates(
            networks=snapshots.network,
            normalisers=snapshots.normaliser,
            owner=jnp.arange(archive.capacity + members),
            preferences=snapshots.preference,
            stage=snapshots.stage,
            objective=snapshots.objective,
            valid=jnp.concatenate([archive.valid & (self.config.archive_size > 0), jnp.ones(members, bool)]),
        )

    def candidates_beside_archive(self, state: PopulationState) -> Snapshot:
        """Return the candidates that the archive may not contain: the current population."""
        return make_snapshots(state.train_states, len(self.stages) - 1, state.objectives)


class RandomModePPO(ScalarisedPPO):
    """R+PPO: S-PPO with random modes; only power and frequency are learned."""

    name = "r-ppo"
    summary = "as s-ppo, but modes are random"
    sampling: ClassVar[Sampling] = "sample-modes"

    def init_network(self, key: RandomKey) -> ActorCritic:
        return RandomModeActorCritic(super().init_network(key))


def run_population_steps(
    environment: Environment, state: State, config: PPOConfig, stage: Int[Array, ""], steps: int
) -> tuple[State, ChunkResult]:
    """Run some training steps of every member; each step offers the policies before the update to the archive."""
    mesh = population_mesh(environment, tree_length(state.train_states), config)
    result: tuple[State, ChunkResult] = _run_steps(environment, replicate(state, mesh), config, stage, steps, mesh)
    return result


@eqx.filter_jit
def _run_steps(
    environment: Environment, state: State, config: PPOConfig, stage: Int[Array, ""], steps: int, mesh: Mesh
) -> tuple[State, ChunkResult]:
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one_step(arrays: State, _: None) -> tuple[State, TrainingMetrics]:
        state = eqx.combine(arrays, rest)
        train_states, result = train_population(environment, state.train_states, config)
        state = state.after_step(train_states, result.reward, stage)
        return eqx.filter(state, eqx.is_array), result.metrics

    arrays, metrics = jax.lax.scan(one_step, arrays, None, length=steps)
    state = replicate(eqx.combine(arrays, rest), mesh)
    archive = state.policy_archive.archive
    return state, ChunkResult(archive.points, archive.valid, jax.tree.map(jnp.mean, metrics))
