"""MOEA/D and NSGA-II over the weights of networks, from policies that a short S-PPO has brought on their way.

Evolved from random weights, networks of thousands of numbers would get nowhere within a budget that PPO is compared at.
So a share of the rounds trains a policy for each of several preferences, all from one network: weights that have a
common origin can be crossed, those of strangers cannot. The last learners and the snapshots on the way are the first
generation. A child has the observation normaliser of the parent it is a variation of; no normaliser changes any more.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float, Int

from tandem.errors import InputError
from tandem.feel.system import System
from tandem.feel.types import Array, RandomKey, Scalar
from tandem.learn.algorithm import Candidates, ChunkMetrics, Stage
from tandem.learn.config import AlgorithmConfig, EvolutionConfig, MOEADConfig
from tandem.learn.evolution.operators import DifferentialEvolution, SimulatedBinaryCrossover, VariationOperator
from tandem.learn.evolution.param_vector import from_param_vector, param_scale, to_param_vector
from tandem.learn.evolution.selection import Decomposition, NonDominatedSorting, Offspring, Selection, run_generation
from tandem.learn.policy_archive import PolicyArchive, Snapshot, make_snapshots
from tandem.learn.ppo.population import BY_MEMBER
from tandem.learn.scalarised_ppo import PopulationState, ScalarisedPPO
from tandem.pareto import crowding_distance, interior_simplex
from tandem.policy.networks import ActorCritic
from tandem.policy.neural_policy import NeuralPolicy
from tandem.policy.rollout import EpisodeMeans, rollout_means
from tandem.tree import REPLICATED, member_mesh, replicate, tree_concat, tree_index

MIN_GENERATIONS = 2  # the first is the seeds themselves
VARIATIONS: dict[str, type[VariationOperator]] = {
    "differential": DifferentialEvolution,
    "simulated-binary": SimulatedBinaryCrossover,
}


class EvolutionState(eqx.Module):
    """A population of policies, what they are worth, and the snapshots worth keeping."""

    members: Snapshot  # stacked
    points: Float[Array, "members 3"]  # mean rewards, -inf before they were judged
    scale: Float[Array, " genes"]  # how large the weights of each layer were at the start
    policy_archive: PolicyArchive
    key: RandomKey


class Evolution(ScalarisedPPO):
    """A warm start, then generations."""

    config_type: ClassVar[type[AlgorithmConfig]] = EvolutionConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "quick": {"budget": 200_000}}
    config: EvolutionConfig

    @abstractmethod
    def selection(self) -> Selection:
        """Who mates and who survives."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """As many generations as their share of the rounds allows; the warm start has the rest."""
        options = self.config
        rounds, share = options.budget - self.validation_rounds, 1 - options.warm_start
        per_generation = options.population_size * options.episodes_per_eval * self.system.rounds
        needed = max(MIN_GENERATIONS * per_generation / share, self._rounds_per_step / options.warm_start)
        if rounds < needed:
            raise InputError(
                f"budget is {options.budget}, too few for {MIN_GENERATIONS} generations ({per_generation} rounds "
                f"each) beside a warm start and validation ({self.validation_rounds} rounds); give "
                f"{self.validation_rounds + math.ceil(needed)} or more, or a smaller population."
            )
        generations = max(MIN_GENERATIONS, int(share * rounds) // per_generation)
        evolution = Stage.from_steps("evolution", generations, per_generation)
        return self._initialisation(rounds - evolution.rounds), evolution

    @property
    def max_candidates(self) -> int:
        """The archive alone: all of the last population was judged as it would be deployed, and offered to it."""
        return self.config.archive_size

    def _fresh_networks(self, keys: RandomKey) -> list[ActorCritic]:
        return [super()._fresh_networks(keys[:1])[0]] * len(keys)

    def variation(self, scale: Array) -> VariationOperator:
        """How children differ from their parents."""
        return VARIATIONS[self.config.variation](
            step=self.config.mutation_scale * scale, rate=self.config.mutation_rate
        )

    def begin_stage(self, stage: int, state: PopulationState) -> EvolutionState:
        """The first generation, not yet judged."""
        begun: EvolutionState = _first_generation(state, self.variation, self.config.population_size, stage)
        return begun

    def run_chunk(self, stage: int, state: Any) -> tuple[Any, ChunkMetrics]:
        if stage == 0:
            return super().run_chunk(stage, state)
        mesh = member_mesh(self.config.population_size)
        how = (self.selection(), self.variation(state.scale))
        number = jnp.asarray(stage, jnp.int32)
        done: tuple[EvolutionState, ChunkMetrics] = _program(
            self.system,
            replicate(state, mesh),
            *how,
            number,
            self.config.episodes_per_eval,
            self.stages[stage].steps,
            mesh,
        )
        return done

    def candidates(self, state: PopulationState | EvolutionState) -> Candidates:
        """Every snapshot kept."""
        kept, archive = state.policy_archive.kept, state.policy_archive.archive
        return Candidates(
            networks=kept.network,
            normalisers=kept.normaliser,
            owner=jnp.arange(archive.capacity),
            preferences=kept.preference,
            stage=kept.stage,
            objective=kept.objective,
            valid=archive.valid,
        )


class MOEAD(Evolution):
    """Each policy answers to a preference, and mates with policies of neighbouring ones."""

    name = "moea-d"
    summary = "evolution by decomposition: a policy for each of many preferences, bred from its neighbours"
    config_type: ClassVar[type[AlgorithmConfig]] = MOEADConfig
    config: MOEADConfig

    def selection(self) -> Selection:
        options = self.config
        weights = interior_simplex(options.population_size, options.min_weight)
        return Decomposition.init(weights, options.num_neighbours, options.neighbour_prob, options.max_replaced)


class NSGA2(Evolution):
    """No preferences: what few dominate, and what has room around it, survives and mates."""

    name = "nsga2"
    summary = "evolution by non-dominated sorting and crowding distance"

    def selection(self) -> Selection:
        return NonDominatedSorting()


@eqx.filter_jit
def _first_generation(
    state: PopulationState, variation: Callable[[Array], VariationOperator], count: int, stage: int
) -> EvolutionState:
    """Learners and snapshots, and mutants of them where they are too few."""
    next_key, mutant_key = jax.random.split(state.key)
    seeds, again = _seeds(state, count)
    scale, genes = param_scale(seeds.network), to_param_vector(seeds.network)
    mutants = jax.vmap(variation(scale).mutate)(genes, jax.random.split(mutant_key, count))
    members = _changed(seeds, jnp.where(again[:, None], mutants, genes), jnp.where(again, stage, seeds.stage))
    return EvolutionState(members, jnp.full((count, 3), -jnp.inf, float), scale, state.policy_archive, next_key)


def _seeds(state: PopulationState, count: int) -> tuple[Snapshot, Array]:
    """The learners, then the snapshots, those with most room first, in turns if they are too few; and who is again."""
    last, kept = make_snapshots(state.train_states, 0, state.objectives), state.policy_archive.kept
    both = tree_concat(last, kept)
    archive, learners = state.policy_archive.archive, state.objectives.shape[0]
    room = jnp.concatenate([jnp.full(learners, jnp.inf), crowding_distance(archive.points, archive.valid)])
    turn = jnp.concatenate([jnp.zeros(learners, jnp.int32), jnp.where(archive.valid, 1, 2)])
    found = jnp.sum(turn < 2)
    places = jnp.arange(count)
    return tree_index(both, jnp.lexsort((-room, turn))[places % found]), places >= found


def _changed(parents: Snapshot, genes: Float[Array, "members genes"], stage: Int[Array, " members"]) -> Snapshot:
    """Stacked policies like their parents but for the weights, and the stage that these are from."""
    network = from_param_vector(parents.network, genes)
    nothing = jnp.full_like(parents.objective, -1)
    return Snapshot(network, parents.normaliser, parents.returns, parents.preference, stage.astype(jnp.int32), nothing)


@eqx.filter_jit
def _program(
    system: System,
    state: EvolutionState,
    selection: Selection,
    variation: VariationOperator,
    stage: Int[Array, ""],
    episodes: int,
    steps: int,
    mesh: Mesh,
) -> tuple[EvolutionState, ChunkMetrics]:
    """Some generations. The policies of one are all judged by the same episodes, those of the next by others."""
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one_step(arrays: EvolutionState, _: None) -> tuple[EvolutionState, Scalar]:
        now: EvolutionState = eqx.combine(arrays, rest)
        next_key, episode_key, breeding_key = jax.random.split(now.key, 3)
        keys = jax.random.split(episode_key, episodes)
        parents, first = now.members, ~jnp.any(jnp.isfinite(now.points))
        genes = to_param_vector(parents.network)

        def children(brood: Offspring) -> Snapshot:
            own = tree_index(parents, brood.base)
            return _changed(own, brood.genes, jnp.where(first, own.stage, stage))

        def evaluate(brood: Offspring) -> tuple[Float[Array, "members 3"], EpisodeMeans]:
            means = _played(system, children(brood), keys, mesh)
            return jnp.mean(means.reward, axis=1), means

        found, means = run_generation(selection, variation, evaluate, genes, now.points, breeding_key)
        offspring = children(found.brood)
        snapshots = now.policy_archive.insert(offspring, found.judged, jnp.ones(found.judged.shape[0], bool))
        members = tree_index(tree_concat(parents, offspring), found.survivors)
        after = EvolutionState(members, found.points, now.scale, snapshots, next_key)
        return eqx.filter(after, eqx.is_array), jnp.mean(means.violated_any)

    arrays, violated = jax.lax.scan(one_step, arrays, None, length=steps)
    after = replicate(eqx.combine(arrays, rest), mesh)
    archive = after.policy_archive.archive
    return after, ChunkMetrics(archive.points, archive.valid, jnp.mean(violated))


def _played(system: System, policies: Snapshot, keys: RandomKey, mesh: Mesh) -> EpisodeMeans:
    """An episode for every policy and key, in the form that is deployed; means, [members, keys, ...]."""
    stack = NeuralPolicy(policies.network, policies.normaliser, policies.preference)
    arrays, rest = eqx.partition(stack, eqx.is_array)

    def play(arrays: NeuralPolicy, keys: RandomKey) -> EpisodeMeans:
        return jax.vmap(lambda one: rollout_means(system, eqx.combine(one, rest), keys))(arrays)

    if mesh.size > 1:
        play = jax.shard_map(play, mesh=mesh, in_specs=(BY_MEMBER, REPLICATED), out_specs=BY_MEMBER, check_vma=False)
    return play(arrays, keys)
