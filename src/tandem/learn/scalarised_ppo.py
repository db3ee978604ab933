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
from tandem.learn.algorithm import Algorithm, Candidates, Seen, Stage
from tandem.learn.config import Options, PopulationOptions
from tandem.learn.policy_archive import Snapshots, snapshots_of
from tandem.learn.ppo.population import mesh_for, train_population
from tandem.learn.ppo.ppo import Learner, Settings, start
from tandem.learn.ppo.surrogate import Weighted
from tandem.pareto import interior_simplex
from tandem.policy.networks import NETWORKS, CoinFlip, Network
from tandem.policy.neural_policy import Sampling
from tandem.tree import concatenated, everywhere, size, stacked

# The paper's settings to the letter; what it does not say (epochs, minibatches) is common practice.
LITERAL: dict[str, Any] = {
    "network": "paper",
    "learning_rate": 1e-5,
    "anneal": False,
    "clip": 0.2,
    "ratio": "fleet",
    "credit": 1.0,
    "entropy": 0.0,
    "episodes": 1,
    "epochs": 10,
    "minibatches": 4,
    "validation_episodes": 3,
    "shield": False,
}


State = TypeVar("State", bound="PopulationState")


class PopulationState(eqx.Module):
    """A population of learners, and the snapshots worth keeping."""

    population: Learner
    objectives: Int[Array, " members"]  # which each is to improve, -1 if it follows its preference
    snapshots: Snapshots
    key: RandomKey

    def after_step(self, population: Learner, rewards: Float[Array, "members 3"], stage: Int[Array, ""]) -> Self:
        """With every learner as a step left it, and offered to the archive as it was before it learned.

        The episodes were played by the policies as they were before the update: it is those that earned the rewards.
        """
        before = snapshots_of(self.population, stage, self.objectives)
        snapshots = self.snapshots.with_seen(before, rewards, jnp.ones(rewards.shape[0], bool))
        return replace(self, population=population, snapshots=snapshots)


class ScalarisedPPO(Algorithm):
    """S-PPO: the rounds are shared out evenly over the preferences."""

    name = "s-ppo"
    summary = "a policy for each of ten preferences, trained side by side"
    options_type: ClassVar[type[Options]] = PopulationOptions
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "paper": LITERAL, "quick": {"rounds": 200_000}}
    options: PopulationOptions

    @property
    def stages(self) -> tuple[Stage, ...]:
        rounds = self.options.rounds - self.validation_rounds
        return (self._initialisation(rounds),)

    def _then(self, iteration: Stage, initialisation: float, shorten: str) -> tuple[Stage, ...]:
        """As many whole iterations as their share of the rounds allows; initialisation has the rest."""
        rounds, share = self.options.rounds - self.validation_rounds, 1 - initialisation
        needed = max(iteration.rounds / share, self._rounds_per_step / initialisation)
        if rounds < needed:
            raise InputError(
                f"rounds is {self.options.rounds}, too few for one iteration of {iteration.name} ({iteration.rounds} "
                f"rounds) beside initialisation and validation ({self.validation_rounds} rounds); give "
                f"{self.validation_rounds + math.ceil(needed)} or more, or fewer {shorten}."
            )
        iterations = max(1, int(share * rounds) // iteration.rounds)
        return (self._initialisation(rounds - iterations * iteration.rounds), *(iteration,) * iterations)

    def _initialisation(self, rounds: int) -> Stage:
        steps = self.steps_within(rounds, self._rounds_per_step, "initialisation")
        return Stage.of("initialisation", steps, self._rounds_per_step)

    @property
    def _rounds_per_step(self) -> int:
        """Of initialisation."""
        return self.options.preferences * self.options.episodes * self.system.rounds

    @property
    def most_candidates(self) -> int:
        return self.options.archive + self.options.preferences

    def network(self, key: RandomKey) -> Network:
        return NETWORKS[self.options.network].create(self.system, key)

    def settings(self, stage: int) -> Settings:
        """How the learners of a stage learn."""
        plan = self.stages[stage]
        return self.options.settings(plan.chunks * plan.steps)

    def start(self, key: RandomKey) -> PopulationState:
        """Pareto initialisation begins: a fresh network for every preference."""
        preferences = jnp.asarray(interior_simplex(self.options.preferences, self.options.lowest_weight), float)
        keys = jax.random.split(key, self.options.preferences + 1)
        settings = self.settings(0)
        members = [
            start(network, self.system, Weighted(), preference, one, settings)
            for network, preference, one in zip(self._fresh_networks(keys[1:]), preferences, keys[1:], strict=True)
        ]
        population = stacked(members)
        nothing = jnp.full(len(members), -1, jnp.int32)
        empty = Snapshots.empty(self.options.archive, snapshots_of(population, 0, nothing))
        return PopulationState(population, nothing, empty, keys[0])

    def _fresh_networks(self, keys: RandomKey) -> list[Network]:
        return [self.network(jax.random.fold_in(one, 1)) for one in keys]

    def advance(self, stage: int, state: PopulationState) -> tuple[PopulationState, Seen]:
        number = jnp.asarray(stage, jnp.int32)  # an array: later iterations run the same program
        return population_steps(self.system, state, self.settings(stage), number, self.stages[stage].steps)

    def candidates(self, state: PopulationState) -> Candidates:
        """Every snapshot kept, and the population as it is now."""
        kept, archive = state.snapshots.kept, state.snapshots.archive
        last = snapshots_of(state.population, _last_stage(self), state.objectives)
        everyone = concatenated(kept, last)
        members = size(state.population)
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
    sampling: ClassVar[Sampling] = "modes"

    def network(self, key: RandomKey) -> Network:
        return CoinFlip(super().network(key))


def _last_stage(algorithm: Algorithm) -> int:
    return len(algorithm.stages) - 1


def population_steps(
    system: System, state: State, settings: Settings, stage: Int[Array, ""], steps: int
) -> tuple[State, Seen]:
    """Some training steps of every learner, each offered to the archive as it was before it learned."""
    mesh = mesh_for(system, size(state.population), settings)
    done: tuple[State, Seen] = _program(system, everywhere(state, mesh), settings, stage, steps, mesh)
    return done


@eqx.filter_jit
def _program(
    system: System, state: State, settings: Settings, stage: Int[Array, ""], steps: int, mesh: Mesh
) -> tuple[State, Seen]:
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one_step(arrays: State, _: None) -> tuple[State, Any]:
        now = eqx.combine(arrays, rest)
        population, report = train_population(system, now.population, settings)
        after = now.after_step(population, report.reward, stage)
        seen = (report.violation_rate, report.entropy, report.value_error, report.clipped)
        return eqx.filter(after, eqx.is_array), seen

    arrays, seen = jax.lax.scan(one_step, arrays, None, length=steps)
    after = everywhere(eqx.combine(arrays, rest), mesh)
    archive = after.snapshots.archive
    return after, Seen(archive.points, archive.valid, *(jnp.mean(values) for values in seen))
