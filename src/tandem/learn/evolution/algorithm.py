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
from tandem.learn.algorithm import Candidates, Seen, Stage
from tandem.learn.config import DecompositionOptions, EvolutionOptions, Options
from tandem.learn.evolution.operators import Differential, SimulatedBinary, Variation
from tandem.learn.evolution.param_vector import genes_of, scale_of, with_genes
from tandem.learn.evolution.selection import Brood, Decomposition, NonDominatedSorting, Selection, one_generation
from tandem.learn.policy_archive import Snapshot, Snapshots, snapshots_of
from tandem.learn.ppo.population import BY_MEMBER
from tandem.learn.scalarised_ppo import PopulationState, ScalarisedPPO
from tandem.pareto import crowding_distance, interior_simplex
from tandem.policy.networks import Network
from tandem.policy.neural_policy import NeuralPolicy
from tandem.policy.rollout import EpisodeMeans, mean_outcome
from tandem.tree import UNDIVIDED, concatenated, everywhere, member, members_mesh

FEWEST_GENERATIONS = 2  # the first is the seeds themselves
VARIATIONS: dict[str, type[Variation]] = {"differential": Differential, "simulated-binary": SimulatedBinary}


class EvolutionState(eqx.Module):
    """A population of policies, what they are worth, and the snapshots worth keeping."""

    members: Snapshot  # stacked
    points: Float[Array, "members 3"]  # mean rewards, -inf before they were judged
    scale: Float[Array, " genes"]  # how large the weights of each layer were at the start
    snapshots: Snapshots
    key: RandomKey


class Evolution(ScalarisedPPO):
    """A warm start, then generations."""

    options_type: ClassVar[type[Options]] = EvolutionOptions
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "quick": {"rounds": 200_000}}
    options: EvolutionOptions

    @abstractmethod
    def selection(self) -> Selection:
        """Who mates and who survives."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """As many generations as their share of the rounds allows; the warm start has the rest."""
        options = self.options
        rounds, share = options.rounds - self.validation_rounds, 1 - options.warm_start
        per_generation = options.population * options.judged_by * self.system.rounds
        needed = max(FEWEST_GENERATIONS * per_generation / share, self._rounds_per_step / options.warm_start)
        if rounds < needed:
            raise InputError(
                f"rounds is {options.rounds}, too few for {FEWEST_GENERATIONS} generations ({per_generation} rounds "
                f"each) beside a warm start and validation ({self.validation_rounds} rounds); give "
                f"{self.validation_rounds + math.ceil(needed)} or more, or a smaller population."
            )
        generations = max(FEWEST_GENERATIONS, int(share * rounds) // per_generation)
        evolution = Stage.of("evolution", generations, per_generation)
        return self._initialisation(rounds - evolution.rounds), evolution

    @property
    def most_candidates(self) -> int:
        """The archive alone: all of the last population was judged as it would be deployed, and offered to it."""
        return self.options.archive

    def _fresh_networks(self, keys: RandomKey) -> list[Network]:
        return [super()._fresh_networks(keys[:1])[0]] * len(keys)

    def variation(self, scale: Array) -> Variation:
        """How children differ from their parents."""
        return VARIATIONS[self.options.variation](step=self.options.mutation * scale, rate=self.options.mutated)

    def begin(self, stage: int, state: PopulationState) -> EvolutionState:
        """The first generation, not yet judged."""
        begun: EvolutionState = _first_generation(state, self.variation, self.options.population, stage)
        return begun

    def advance(self, stage: int, state: Any) -> tuple[Any, Seen]:
        if stage == 0:
            return super().advance(stage, state)
        mesh = members_mesh(self.options.population)
        how = (self.selection(), self.variation(state.scale))
        number = jnp.asarray(stage, jnp.int32)
        done: tuple[EvolutionState, Seen] = _program(
            self.system, everywhere(state, mesh), *how, number, self.options.judged_by, self.stages[stage].steps, mesh
        )
        return done

    def candidates(self, state: PopulationState | EvolutionState) -> Candidates:
        """Every snapshot kept."""
        kept, archive = state.snapshots.kept, state.snapshots.archive
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
    options_type: ClassVar[type[Options]] = DecompositionOptions
    options: DecompositionOptions

    def selection(self) -> Selection:
        options = self.options
        weights = interior_simplex(options.population, options.lowest_weight)
        return Decomposition.of(weights, options.neighbours, options.nearby, options.replaced)


class NSGA2(Evolution):
    """No preferences: what few dominate, and what has room around it, survives and mates."""

    name = "nsga2"
    summary = "evolution by non-dominated sorting and crowding distance"

    def selection(self) -> Selection:
        return NonDominatedSorting()


@eqx.filter_jit
def _first_generation(
    state: PopulationState, variation: Callable[[Array], Variation], count: int, stage: int
) -> EvolutionState:
    """Learners and snapshots, and mutants of them where they are too few."""
    next_key, mutant_key = jax.random.split(state.key)
    seeds, again = _seeds(state, count)
    scale, genes = scale_of(seeds.network), genes_of(seeds.network)
    mutants = jax.vmap(variation(scale).mutated)(genes, jax.random.split(mutant_key, count))
    members = _changed(seeds, jnp.where(again[:, None], mutants, genes), jnp.where(again, stage, seeds.stage))
    return EvolutionState(members, jnp.full((count, 3), -jnp.inf, float), scale, state.snapshots, next_key)


def _seeds(state: PopulationState, count: int) -> tuple[Snapshot, Array]:
    """The learners, then the snapshots, those with most room first, in turns if they are too few; and who is again."""
    last, kept = snapshots_of(state.population, 0, state.objectives), state.snapshots.kept
    both = concatenated(last, kept)
    archive, learners = state.snapshots.archive, state.objectives.shape[0]
    room = jnp.concatenate([jnp.full(learners, jnp.inf), crowding_distance(archive.points, archive.valid)])
    turn = jnp.concatenate([jnp.zeros(learners, jnp.int32), jnp.where(archive.valid, 1, 2)])
    found = jnp.sum(turn < 2)
    places = jnp.arange(count)
    return member(both, jnp.lexsort((-room, turn))[places % found]), places >= found


def _changed(parents: Snapshot, genes: Float[Array, "members genes"], stage: Int[Array, " members"]) -> Snapshot:
    """Stacked policies like their parents but for the weights, and the stage that these are from."""
    network = with_genes(parents.network, genes)
    nothing = jnp.full_like(parents.objective, -1)
    return Snapshot(network, parents.normaliser, parents.returns, parents.preference, stage.astype(jnp.int32), nothing)


@eqx.filter_jit
def _program(
    system: System,
    state: EvolutionState,
    selection: Selection,
    variation: Variation,
    stage: Int[Array, ""],
    episodes: int,
    steps: int,
    mesh: Mesh,
) -> tuple[EvolutionState, Seen]:
    """Some generations. The policies of one are all judged by the same episodes, those of the next by others."""
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one_step(arrays: EvolutionState, _: None) -> tuple[EvolutionState, Scalar]:
        now: EvolutionState = eqx.combine(arrays, rest)
        next_key, episode_key, breeding_key = jax.random.split(now.key, 3)
        keys = jax.random.split(episode_key, episodes)
        parents, first = now.members, ~jnp.any(jnp.isfinite(now.points))
        genes = genes_of(parents.network)

        def children(brood: Brood) -> Snapshot:
            own = member(parents, brood.base)
            return _changed(own, brood.genes, jnp.where(first, own.stage, stage))

        def evaluate(brood: Brood) -> tuple[Float[Array, "members 3"], EpisodeMeans]:
            means = _played(system, children(brood), keys, mesh)
            return jnp.mean(means.reward, axis=1), means

        found, means = one_generation(selection, variation, evaluate, genes, now.points, breeding_key)
        offspring = children(found.brood)
        snapshots = now.snapshots.with_seen(offspring, found.judged, jnp.ones(found.judged.shape[0], bool))
        members = member(concatenated(parents, offspring), found.survivors)
        after = EvolutionState(members, found.points, now.scale, snapshots, next_key)
        return eqx.filter(after, eqx.is_array), jnp.mean(means.violated_any)

    arrays, violated = jax.lax.scan(one_step, arrays, None, length=steps)
    after = everywhere(eqx.combine(arrays, rest), mesh)
    archive = after.snapshots.archive
    return after, Seen(archive.points, archive.valid, jnp.mean(violated))


def _played(system: System, policies: Snapshot, keys: RandomKey, mesh: Mesh) -> EpisodeMeans:
    """An episode for every policy and key, in the form that is deployed; means, [members, keys, ...]."""
    stack = NeuralPolicy(policies.network, policies.normaliser, policies.preference)
    arrays, rest = eqx.partition(stack, eqx.is_array)

    def play(arrays: NeuralPolicy, keys: RandomKey) -> EpisodeMeans:
        return jax.vmap(lambda one: mean_outcome(system, eqx.combine(one, rest), keys))(arrays)

    if mesh.size > 1:
        play = jax.shard_map(play, mesh=mesh, in_specs=(BY_MEMBER, UNDIVIDED), out_specs=BY_MEMBER, check_vma=False)
    return play(arrays, keys)
