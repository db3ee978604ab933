"""C-MOPPO: Pareto initialisation, then rounds of selection and constrained extension (Algorithm 3 of the paper)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.feel.types import Array, Objectives, RandomKey
from tandem.learn.algorithm import Stage
from tandem.learn.config import AlgorithmConfig, CMOPPOConfig, PPOConfig
from tandem.learn.policy_archive import PolicyArchive, Snapshot, evaluate_again, make_snapshots
from tandem.learn.ppo.optim import init_optimiser
from tandem.learn.ppo.ppo import TrainState
from tandem.learn.ppo.surrogate import BarrierSurrogate
from tandem.learn.scalarised_ppo import LITERAL, QUICK, PopulationState, ScalarisedPPO
from tandem.objectives import NUM_OBJECTIVES, to_maximised
from tandem.pareto import Archive, select_for_extension
from tandem.pareto.scaling import ObjectiveScaler
from tandem.tree import tree_concat, tree_index

# Returns are normalised to 0 this far below the worst policy of the front, as a share of its range, so that the return
# of every policy is positive.
RANGE_MARGIN = 0.1
BEST_CONCEIVABLE = (1.0, 0.0, 0.0)  # accuracy, latency (s), energy (J)


class ExtensionState(PopulationState):
    """Policies in extension, the archive, and the policies at the end of the initialisation."""

    initial: Snapshot  # stacked


class CMOPPO(ScalarisedPPO):
    """The paper's algorithm: policies in sparse regions of the front are extended towards each objective."""

    name = "c-moppo"
    summary = "the paper's algorithm: initialise, select by crowding distance, extend under constraints"
    config_type: ClassVar[type[AlgorithmConfig]] = CMOPPOConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        # The paper evaluates no policy again, and normalises by ranges that are fixed when policies are selected.
        "literal": {**LITERAL, "extension_steps": 100, "selection_episodes": 0, "return_range": "front"},
        "quick": {**QUICK, "extension_steps": 5, "archive_size": 50, "selection_episodes": 1},
    }
    config: CMOPPOConfig

    def plan_stages(self) -> tuple[Stage, ...]:
        config = self.config
        per_step = config.num_extended * NUM_OBJECTIVES * config.num_envs * self.environment.rounds
        evaluated = (config.archive_size + config.num_preferences) * config.selection_episodes
        extension = Stage.from_steps("extension", config.extension_steps, per_step, evaluated * self.environment.rounds)
        return self._plan_iterations(extension, config.initialisation, "extension_steps")

    @property
    def max_candidates(self) -> int:
        return self.config.archive_size + self.config.num_preferences + self.config.num_extended * NUM_OBJECTIVES

    def begin_stage(self, stage: int, state: PopulationState) -> ExtensionState:
        return self.begin_extension(state, self.ppo_config(stage))

    def begin_extension(self, state: PopulationState, config: PPOConfig) -> ExtensionState:
        """Select policies (Algorithm 2), and start one train state for each of them and each objective.

        The policies to select from are the archive and the initial policies, all evaluated again.
        """
        next_key, member_key, episode_key = jax.random.split(state.key, 3)
        initial = (
            state.initial
            if isinstance(state, ExtensionState)
            else make_snapshots(state.train_states, 0, state.objectives)
        )
        archive = state.policy_archive
        if self.config.selection_episodes:
            keys = jax.random.split(episode_key, self.config.selection_episodes)
            archive = evaluate_again(self.environment, archive, initial, keys)
        selected = _select_policies(archive, self.config.num_extended)
        archive = replace(archive, times_extended=archive.times_extended.at[selected].add(1))
        parents = jnp.repeat(selected, NUM_OBJECTIVES)
        objectives = jnp.tile(jnp.arange(NUM_OBJECTIVES, dtype=jnp.int32), len(selected))
        train_states = _init_extensions(
            tree_index(archive.kept, parents),
            self._surrogates(archive.archive, parents, objectives),
            jax.random.split(member_key, len(parents)),
            config,
        )
        return ExtensionState(train_states, objectives, archive, next_key, initial)

    def candidates_beside_archive(self, state: PopulationState) -> Snapshot:
        """Return the current population and, during the extension, the initial policies."""
        current = super().candidates_beside_archive(state)
        return tree_concat(current, state.initial) if isinstance(state, ExtensionState) else current

    def _surrogates(self, archive: Archive, parents: Array, objectives: Array) -> BarrierSurrogate:
        """Return problem P3 for each parent and objective."""
        if self.config.return_range == "front":
            low, span = front_ranges(archive)
        else:
            low, span = box_ranges(archive, jnp.asarray(to_maximised(self.config.reference_point), float))
        count = len(parents)

        def repeat(value: float | Array) -> Array:
            return jnp.broadcast_to(jnp.asarray(value, float), (count, *jnp.shape(value)))

        return BarrierSurrogate(
            target=jax.nn.one_hot(objectives, NUM_OBJECTIVES),
            low=repeat(low),
            span=repeat(span),
            selected=archive.points[parents],
            beta=repeat(self.config.beta),
            # An infinite mu removes the barrier.
            mu=repeat(jnp.inf if self.config.barrier == "none" else self.config.mu),
            anchored=repeat(float(self.config.barrier == "selected")),
        )


def front_ranges(archive: Archive) -> tuple[Objectives, Objectives]:
    """Return the mean rewards that are normalised to 0, and the differences from there to 1, by the current front."""
    front = ObjectiveScaler.from_archive(archive)
    return front.low - RANGE_MARGIN * front.span, (1 + RANGE_MARGIN) * front.span


def box_ranges(archive: Archive, reference: Objectives) -> tuple[Objectives, Objectives]:
    """Return the same by a box: from the reference point to the best conceivable values.

    The box includes all policies of the front, some of which may be below the reference point. Unlike the range of the
    front, it does not make the slope of the barrier, 1 / (mu (1 - beta) J), large for the policies at its ends.
    """
    front = ObjectiveScaler.from_archive(archive)
    low = jnp.minimum(reference, front.low - RANGE_MARGIN * front.span)
    return low, jnp.asarray(to_maximised(BEST_CONCEIVABLE), float) - low


def _select_policies(policies: PolicyArchive, count: int) -> Array:
    """Return the slots of the policies to extend; they are repeated if the archive holds fewer than ``count``."""
    archive = policies.archive
    selected = select_for_extension(archive.points, archive.valid, count, policies.times_extended)
    available = jnp.maximum(jnp.sum(selected >= 0), 1)
    slots: Array = selected[jnp.arange(count) % available]
    return slots


def _init_extensions(parents: Snapshot, surrogates: BarrierSurrogate, keys: RandomKey, config: PPOConfig) -> TrainState:
    """Start train states from their parents, each with a new optimiser and learning-rate schedule."""

    @eqx.filter_vmap
    def init_extension(parent: Snapshot, surrogate: BarrierSurrogate, key: RandomKey) -> TrainState:
        return TrainState(
            network=parent.network,
            optimiser=init_optimiser(parent.network, config),
            normaliser=parent.normaliser,
            returns=parent.returns,
            surrogate=surrogate,
            preference=parent.preference,
            key=key,
            steps=jnp.zeros((), jnp.int32),
        )

    train_states: TrainState = init_extension(parents, surrogates, keys)
    return train_states
