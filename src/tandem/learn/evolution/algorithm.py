"""MOEA/D and NSGA-II over the weights of networks, with a warm start by S-PPO.

From random weights, evolution of networks with thousands of parameters would not progress within the budget that it is
compared at. So a share of the budget trains one policy for each of several preferences, all from the same initial
network: weights with a common origin can be crossed, unrelated ones cannot. The trained policies and the archive are
the first generation. A child has the observation normaliser of its first parent; normalisers no longer change.
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
from tandem.feel.environment import Environment
from tandem.feel.types import Array, RandomKey, Scalar
from tandem.learn.algorithm import NO_OBJECTIVE, Candidates, ChunkResult, Stage
from tandem.learn.config import AlgorithmConfig, EvolutionConfig, MOEADConfig
from tandem.learn.evolution.operators import DifferentialEvolution, SimulatedBinaryCrossover, VariationOperator
from tandem.learn.evolution.param_vector import from_param_vector, param_scale, to_param_vector
from tandem.learn.evolution.selection import Decomposition, NonDominatedSorting, Offspring, Selection, run_generation
from tandem.learn.policy_archive import PolicyArchive, Snapshot, evaluate_snapshots, make_snapshots
from tandem.learn.ppo.ppo import TrainingMetrics
from tandem.learn.scalarised_ppo import QUICK, PopulationState, ScalarisedPPO
from tandem.pareto import crowding_distance, interior_simplex
from tandem.policy.networks import ActorCritic
from tandem.policy.rollout import EpisodeMeans
from tandem.tree import member_mesh, replicate, tree_concat, tree_index

MIN_GENERATIONS = 2  # the first only evaluates the policies of the warm start
VARIATIONS: dict[str, type[VariationOperator]] = {
    "differential": DifferentialEvolution,
    "simulated-binary": SimulatedBinaryCrossover,
}


class EvolutionState(eqx.Module):
    """A population of policies with their rewards, and the archive of policies so far."""

    members: Snapshot  # stacked
    points: Float[Array, "members 3"]  # mean rewards, -inf before the first evaluation
    scale: Float[Array, " genes"]  # root mean square of the weights of each layer at the start
    policy_archive: PolicyArchive
    key: RandomKey


class Evolution(ScalarisedPPO):
    """Base class of the evolutionary algorithms: a warm start, then generations."""

    config_type: ClassVar[type[AlgorithmConfig]] = EvolutionConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "quick": QUICK}
    config: EvolutionConfig

    @abstractmethod
    def selection(self) -> Selection:
        """Return the scheme that selects parents and survivors."""

    def plan_stages(self) -> tuple[Stage, ...]:
        """Plan as many generations as their share of the budget allows; the warm start gets the rest."""
        config = self.config
        rounds, share = config.budget - self.validation_rounds, 1 - config.warm_start
        per_generation = config.population_size * config.episodes_per_eval * self.environment.rounds
        fewest = MIN_GENERATIONS * per_generation
        needed = max(fewest / share, fewest + self._rounds_per_step)
        if config.warm_start > 0:
            needed = max(needed, self._rounds_per_step / config.warm_start)
        if rounds < needed:
            raise InputError(
                f"budget is {config.budget}, too few rounds for {MIN_GENERATIONS} generations ({per_generation} rounds "
                f"each) beside a warm start and validation ({self.validation_rounds} rounds); give "
                f"{self.validation_rounds + math.ceil(needed)} or more, or a smaller population_size."
            )
        evolving = min(int(share * rounds), rounds - self._rounds_per_step)
        generations = max(MIN_GENERATIONS, evolving // per_generation)
        evolution = Stage.from_steps("evolution", generations, per_generation)
        return self._initialisation(rounds - evolution.rounds), evolution

    @property
    def max_candidates(self) -> int:
        """The size of the archive: every member was evaluated as it is deployed, and offered to it."""
        return self.config.archive_size

    def _init_networks(self, keys: RandomKey) -> list[ActorCritic]:
        """Create the same network for all preferences."""
        return super()._init_networks(keys[:1]) * len(keys)

    def variation(self, scale: Array) -> VariationOperator:
        """Return the operator that makes children from their parents."""
        return VARIATIONS[self.config.variation](
            step=self.config.mutation_scale * scale, rate=self.config.mutation_rate
        )

    def begin_stage(self, stage: int, state: PopulationState) -> EvolutionState:
        """Create the first generation, not yet evaluated."""
        first: EvolutionState = _first_generation(state, self.variation, self.config.population_size, stage)
        return first

    def run_chunk(self, stage: int, state: Any) -> tuple[Any, ChunkResult]:
        if stage == 0:
            return super().run_chunk(stage, state)
        mesh = member_mesh(self.config.population_size)
        result: tuple[EvolutionState, ChunkResult] = _run_generations(
            self.environment,
            replicate(state, mesh),
            self.selection(),
            self.variation(state.scale),
            jnp.asarray(stage, jnp.int32),
            self.config.episodes_per_eval,
            self.stages[stage].steps,
            mesh,
        )
        return result

    def candidates(self, state: PopulationState | EvolutionState) -> Candidates:
        """Return every policy of the archive."""
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
    """MOEA/D: each policy has a preference, and mates with policies of neighbouring preferences."""

    name = "moea-d"
    summary = "evolution by decomposition: one policy for each of many preferences, bred from its neighbours"
    config_type: ClassVar[type[AlgorithmConfig]] = MOEADConfig
    config: MOEADConfig

    def selection(self) -> Selection:
        config = self.config
        weights = interior_simplex(config.population_size, config.min_weight)
        return Decomposition.init(weights, config.num_neighbours, config.neighbour_prob, config.max_replaced)


class NSGA2(Evolution):
    """NSGA-II: selection by dominance, and among equals by crowding distance, without preferences."""

    name = "nsga2"
    summary = "evolution by non-dominated sorting and crowding distance"

    def selection(self) -> Selection:
        return NonDominatedSorting()


@eqx.filter_jit
def _first_generation(
    state: PopulationState, variation: Callable[[Array], VariationOperator], count: int, stage: int
) -> EvolutionState:
    """Return the population and the archive, and mutants of them if they are too few."""
    next_key, mutant_key = jax.random.split(state.key)
    parents, repeated = _first_parents(state, count)
    scale, genes = param_scale(parents.network), to_param_vector(parents.network)
    mutants = jax.vmap(variation(scale).mutate)(genes, jax.random.split(mutant_key, count))
    genes = jnp.where(repeated[:, None], mutants, genes)
    members = _with_genes(parents, genes, jnp.where(repeated, stage, parents.stage))
    return EvolutionState(members, jnp.full((count, 3), -jnp.inf, float), scale, state.policy_archive, next_key)


def _first_parents(state: PopulationState, count: int) -> tuple[Snapshot, Array]:
    """Return the population, then the archive in the order of crowding distance, and the mask of repeated policies."""
    last, kept = make_snapshots(state.train_states, 0, state.objectives), state.policy_archive.kept
    snapshots = tree_concat(last, kept)
    archive, members = state.policy_archive.archive, state.objectives.shape[0]
    crowding = jnp.concatenate([jnp.full(members, jnp.inf), crowding_distance(archive.points, archive.valid)])
    group = jnp.concatenate([jnp.zeros(members, jnp.int32), jnp.where(archive.valid, 1, 2)])
    available = jnp.sum(group < 2)
    indices = jnp.arange(count)
    order = jnp.lexsort((-crowding, group))
    return tree_index(snapshots, order[indices % available]), indices >= available


def _with_genes(parents: Snapshot, genes: Float[Array, "members genes"], stage: Int[Array, " members"]) -> Snapshot:
    """Return stacked policies like their parents, but with other weights, which were made in ``stage``."""
    network = from_param_vector(parents.network, genes)
    objective = jnp.full_like(parents.objective, NO_OBJECTIVE)
    return Snapshot(
        network, parents.normaliser, parents.returns, parents.preference, stage.astype(jnp.int32), objective
    )


@eqx.filter_jit
def _run_generations(
    environment: Environment,
    state: EvolutionState,
    selection: Selection,
    variation: VariationOperator,
    stage: Int[Array, ""],
    episodes: int,
    steps: int,
    mesh: Mesh,
) -> tuple[EvolutionState, ChunkResult]:
    """Run some generations. All policies of a generation are evaluated in the same episodes, which change with it."""
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one_step(arrays: EvolutionState, _: None) -> tuple[EvolutionState, Scalar]:
        state: EvolutionState = eqx.combine(arrays, rest)
        next_key, episode_key, breeding_key = jax.random.split(state.key, 3)
        keys = jax.random.split(episode_key, episodes)
        parents, first = state.members, ~jnp.any(jnp.isfinite(state.points))
        genes = to_param_vector(parents.network)

        def make_children(offspring: Offspring) -> Snapshot:
            base = tree_index(parents, offspring.base)
            return _with_genes(base, offspring.genes, jnp.where(first, base.stage, stage))

        def evaluate(offspring: Offspring) -> tuple[Float[Array, "members 3"], EpisodeMeans]:
            means = evaluate_snapshots(environment, make_children(offspring), keys, mesh)
            return jnp.mean(means.reward, axis=1), means

        result, means = run_generation(selection, variation, evaluate, genes, state.points, breeding_key)
        children = make_children(result.offspring)
        archive = state.policy_archive.insert(
            children, result.offspring_points, jnp.ones(result.offspring_points.shape[0], bool)
        )
        members = tree_index(tree_concat(parents, children), result.survivors)
        state = EvolutionState(members, result.points, state.scale, archive, next_key)
        return eqx.filter(state, eqx.is_array), jnp.mean(means.violated_any)

    arrays, violation_rates = jax.lax.scan(one_step, arrays, None, length=steps)
    state = replicate(eqx.combine(arrays, rest), mesh)
    archive = state.policy_archive.archive
    return state, ChunkResult(archive.points, archive.valid, TrainingMetrics(jnp.mean(violation_rates)))
