"""C-MOPPO: Pareto initialisation, then rounds of selection and constrained extension (Algorithm 3 of the paper)."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.feel.types import Array, Objectives, RandomKey
from tandem.learn.algorithm import Stage
from tandem.learn.config import AlgorithmConfig, CMOPPOConfig, PPOConfig
from tandem.learn.policy_archive import PolicyArchive, Snapshot
from tandem.learn.ppo.optim import init_optimiser
from tandem.learn.ppo.ppo import TrainState
from tandem.learn.ppo.surrogate import BarrierSurrogate
from tandem.learn.scalarised_ppo import LITERAL, PopulationState, ScalarisedPPO
from tandem.objectives import NUM_OBJECTIVES
from tandem.pareto import Archive, select_for_extension
from tandem.pareto.scaling import ObjectiveScaler
from tandem.tree import tree_index

# Returns are normalised to 0 this far below the worst policy of the front, as a share of its range, so that the return
# of every policy is positive.
RANGE_MARGIN = 0.1


class CMOPPO(ScalarisedPPO):
    """The paper's algorithm: policies in sparse regions of the front are extended towards each objective."""

    name = "c-moppo"
    summary = "the paper's algorithm: initialise, select by crowding distance, extend under constraints"
    config_type: ClassVar[type[AlgorithmConfig]] = CMOPPOConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "literal": {**LITERAL, "extension_steps": 100},
        "quick": {"budget": 200_000, "extension_steps": 5},
    }
    config: CMOPPOConfig

    def plan_stages(self) -> tuple[Stage, ...]:
        config = self.config
        per_step = config.num_extended * NUM_OBJECTIVES * config.num_envs * self.environment.rounds
        extension = Stage.from_steps("extension", config.extension_steps, per_step)
        return self._plan_iterations(extension, config.initialisation, "extension_steps")

    @property
    def max_candidates(self) -> int:
        return self.config.archive_size + max(self.config.num_preferences, self.config.num_extended * NUM_OBJECTIVES)

    def begin_stage(self, stage: int, state: PopulationState) -> PopulationState:
        return self.begin_extension(state, self.ppo_config(stage))

    def begin_extension(self, state: PopulationState, config: PPOConfig) -> PopulationState:
        """Select policies (Algorithm 2), and start one train state for each of them and each objective."""
        next_key, member_key = jax.random.split(state.key)
        selected = _select_policies(state.policy_archive, self.config.num_extended)
        times_extended = state.policy_archive.times_extended.at[selected].add(1)
        archive = PolicyArchive(state.policy_archive.archive, state.policy_archive.kept, times_extended)
        parents = jnp.repeat(selected, NUM_OBJECTIVES)
        objectives = jnp.tile(jnp.arange(NUM_OBJECTIVES, dtype=jnp.int32), len(selected))
        train_states = _init_extensions(
            tree_index(archive.kept, parents),
            self._surrogates(archive.archive, parents, objectives),
            jax.random.split(member_key, len(parents)),
            config,
        )
        return PopulationState(train_states, objectives, archive, next_key)

    def _surrogates(self, archive: Archive, parents: Array, objectives: Array) -> BarrierSurrogate:
        """Return problem P3 for each parent and objective; the ranges of the current front normalise the returns."""
        low, span = normalisation_ranges(archive)
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


def normalisation_ranges(archive: Archive) -> tuple[Objectives, Objectives]:
    """Return the mean rewards that are normalised to 0, and the differences from there to 1."""
    front = ObjectiveScaler.from_archive(archive)
    return front.low - RANGE_MARGIN * front.span, (1 + RANGE_MARGIN) * front.span


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
