"""S-PPO and R+PPO: a policy for each of several preferences, side by side in one program.

The first stage of C-MOPPO is the same, so it builds on this.
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
from tandem.feel.system import System
from tandem.feel.types import Array, RandomKey
from tandem.learn.algorithm import Algorithm, Candidates, ChunkMetrics, Stage
from tandem.learn.config import AlgorithmConfig, PopulationConfig
from tandem.learn.policy_archive import PolicyArchive, make_snapshots
from tandem.learn.ppo.population import population_mesh, train_population
from tandem.learn.ppo.ppo import PPOConfig, TrainState, init_train_state
from tandem.learn.ppo.surrogate import ScalarisedSurrogate
from tandem.pareto import interior_simplex
from tandem.policy.networks import NETWORKS, ActorCritic, RandomModeActorCritic
from tandem.policy.neural_policy import Sampling
from tandem.rng import LearnerStream, fold_stream
from tandem.tree import replicate, tree_concat, tree_length, tree_stack

# The paper's settings to the letter; what it does not say (epochs, minibatches) is common practice.
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


State = TypeVar("State", bound="PopulationState")


class PopulationState(eqx.Module):
    """A population of learners, and the snapshots worth keeping."""

    train_states: TrainState
    objectives: Int[Array, " members"]  # which each is to improve, -1 if it follows its preference
    policy_archive: PolicyArchive
    key: RandomKey

    def after_step(self, population: TrainState, rewards: Float[Array, "members 3"], stage: Int[Array, ""]) -> Self:
        """With every learner as a step left it, and offered to the archive as it was before it learned.

        The episodes were played by the policies as they were before the update: it is those that earned the rewards.
        """
        before = make_snapshots(self.train_states, stage, self.objectives)
        snapshots = self.policy_archive.insert(before, rewards, jnp.ones(rewards.shape[0], bool))
        return replace(self, train_states=population, policy_archive=snapshots)


class ScalarisedPPO(Algorithm):
    """S-PPO: the rounds are shared out evenly over the preferences."""

    name = "s-ppo"
    summary = "a policy for each of ten preferences, trained side by side"
    config_type: ClassVar[type[AlgorithmConfig]] = PopulationConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "literal": LITERAL, "quick": {"budget": 200_000}}
    config: PopulationConfig

    @property
    def stages(self) -> tuple[Stage, ...]:
        rounds = self.config.budget - self.validation_rounds
        return (self._initialisation(rounds),)

    def _then(self, iteration: Stage, initialisation: float, shorten: str) -> tuple[Stage, ...]:
        """As many whole iterations as their share of the rounds allows; initialisation has the rest."""
        rounds, share = self.config.budget - self.validation_rounds, 1 - initialisation
        needed = max(iteration.rounds / share, self._rounds_per_step / initialisation)
        if rounds < needed:
            raise InputError(
                f"budget is {self.config.budget}, too few for one iteration of {iteration.name} ({iteration.rounds} "
                f"rounds) beside initialisation and validation ({self.validation_rounds} rounds); give "
                f"{self.validation_rounds + math.ceil(needed)} or more, or fewer {shorten}."
            )
        iterations = max(1, int(share * rounds) // iteration.rounds)
        return (self._initialisation(rounds - iterations * iteration.rounds), *(iteration,) * iterations)

    def _initialisation(self, rounds: int) -> Stage:
        steps = self.steps_within_budget(rounds, self._rounds_per_step, "initialisation")
        return Stage.from_steps("initialisation", steps, self._rounds_per_step)

    @property
    def _rounds_per_step(self) -> int:
        """Of initialisation."""
        return self.config.num_preferences * self.config.num_envs * self.system.rounds

    @property
    def max_candidates(self) -> int:
        return self.config.archive_size + self.config.num_preferences

    def init_network(self, key: RandomKey) -> ActorCritic:
        return NETWORKS[self.config.network].init(self.system, key)

    def settings(self, stage: int) -> PPOConfig:
        """How the learners of a stage learn."""
        plan = self.stages[stage]
        return self.config.ppo_config(plan.chunks * plan.steps)

    def init(self, key: RandomKey) -> PopulationState:
        """Pareto initialisation begins: a fresh network for every preference."""
        preferences = jnp.asarray(interior_simplex(self.config.num_preferences, self.config.min_weight), float)
        keys = jax.random.split(key, self.config.num_preferences + 1)
        settings = self.settings(0)
        members = [
            init_train_state(network, self.system, ScalarisedSurrogate(), preference, one, settings)
            for network, preference, one in zip(self._fresh_networks(keys[1:]), preferences, keys[1:], strict=True)
        ]
        population = tree_stack(members)
        nothing = jnp.full(len(members), -1, jnp.int32)
        empty = PolicyArchive.init(self.config.archive_size, make_snapshots(population, 0, nothing))
        return PopulationState(population, nothing, empty, keys[0])

    def _fresh_networks(self, keys: RandomKey) -> list[ActorCritic]:
        return [self.init_network(fold_stream(one, LearnerStream.NETWORK)) for one in keys]

    def run_chunk(self, stage: int, state: PopulationState) -> tuple[PopulationState, ChunkMetrics]:
        number = jnp.asarray(stage, jnp.int32)  # an array: later iterations run the same program
        return population_steps(self.system, state, self.settings(stage), number, self.stages[stage].steps)

    def candidates(self, state: PopulationState) -> Candidates:
        """Every snapshot kept, and the population as it is now."""
        kept, archive = state.policy_archive.kept, state.policy_archive.archive
        last = make_snapshots(state.train_states, _last_stage(self), state.objectives)
        everyone = tree_concat(kept, last)
        members = tree_length(state.train_states)
        return Candidates(
            networks=everyone.network,
            normalisers=everyone.normaliser,
            owner=jnp.arange(archive.capacity + members),
            preferences=everyone.preference,
            stage=everyone.stage,
            objective=everyone.objective,
            valid=jnp.concatenate([archive.valid, jnp.ones(members, bool)]),
        )


class RandomModePPO(ScalarisedPPO):
    """R+PPO: as S-PPO, but modes are left to chance, and only power and frequency are learned."""

    name = "r-ppo"
    summary = "as s-ppo, with modes by the toss of a coin"
    sampling: ClassVar[Sampling] = "sample-modes"

    def init_network(self, key: RandomKey) -> ActorCritic:
        return RandomModeActorCritic(super().init_network(key))


def _last_stage(algorithm: Algorithm) -> int:
    return len(algorithm.stages) - 1


def population_steps(
    system: System, state: State, settings: PPOConfig, stage: Int[Array, ""], steps: int
) -> tuple[State, ChunkMetrics]:
    """Some training steps of every learner, each offered to the archive as it was before it learned."""
    mesh = population_mesh(system, tree_length(state.train_states), settings)
    done: tuple[State, ChunkMetrics] = _program(system, replicate(state, mesh), settings, stage, steps, mesh)
    return done


@eqx.filter_jit
def _program(
    system: System, state: State, settings: PPOConfig, stage: Int[Array, ""], steps: int, mesh: Mesh
) -> tuple[State, ChunkMetrics]:
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one_step(arrays: State, _: None) -> tuple[State, Any]:
        now = eqx.combine(arrays, rest)
        population, report = train_population(system, now.train_states, settings)
        after = now.after_step(population, report.reward, stage)
        seen = (report.violation_rate, report.entropy, report.value_error, report.clipped)
        return eqx.filter(after, eqx.is_array), seen

    arrays, seen = jax.lax.scan(one_step, arrays, None, length=steps)
    after = replicate(eqx.combine(arrays, rest), mesh)
    archive = after.policy_archive.archive
    return after, ChunkMetrics(archive.points, archive.valid, *(jnp.mean(values) for values in seen))
