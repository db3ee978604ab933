"""C-MOPPO: Pareto initialisation, then rounds of selection and constrained extension (Algorithm 3 of the paper)."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.feel.types import Array, Objectives, RandomKey
from tandem.learn.algorithm import Stage
from tandem.learn.config import AlgorithmConfig, CMOPPOConfig
from tandem.learn.policy_archive import PolicyArchive, Snapshot
from tandem.learn.ppo.ppo import PPOConfig, TrainState, init_optimiser
from tandem.learn.ppo.surrogate import BarrierSurrogate
from tandem.learn.scalarised_ppo import LITERAL, PopulationState, ScalarisedPPO
from tandem.objectives import NUM_OBJECTIVES
from tandem.pareto import Archive, select_for_extension
from tandem.pareto.scaling import ObjectiveScaler
from tandem.tree import tree_index

# Below the worst policy of the front, as a share of its range, a return counts as 0: so every policy has more than 0.
MARGIN = 0.1


class CMOPPO(ScalarisedPPO):
    """The paper's algorithm: what has room around it on the front is extended in the direction of each objective."""

    name = "c-moppo"
    summary = "the paper's: initialise, select by crowding distance, extend under constraints"
    config_type: ClassVar[type[AlgorithmConfig]] = CMOPPOConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "literal": {**LITERAL, "extension_steps": 100},
        "quick": {"budget": 200_000, "extension_steps": 5},
    }
    config: CMOPPOConfig

    @property
    def stages(self) -> tuple[Stage, ...]:
        options = self.config
        per_step = options.num_extended * NUM_OBJECTIVES * options.num_envs * self.system.rounds
        extension = Stage.from_steps("extension", options.extension_steps, per_step)
        return self._then(extension, options.initialisation, "extension_steps")

    @property
    def max_candidates(self) -> int:
        return self.config.archive_size + max(self.config.num_preferences, self.config.num_extended * NUM_OBJECTIVES)

    def begin_stage(self, stage: int, state: PopulationState) -> PopulationState:
        return self.begin_extension(state, self.settings(stage))

    def begin_extension(self, state: PopulationState, settings: PPOConfig) -> PopulationState:
        """Policy selection (Algorithm 2), and for each policy selected a learner in the direction of each objective."""
        next_key, learner_key = jax.random.split(state.key)
        chosen = _selected(state.policy_archive, self.config.num_extended)
        times = state.policy_archive.times_extended.at[chosen].add(1)
        snapshots = PolicyArchive(state.policy_archive.archive, state.policy_archive.kept, times)
        parents = jnp.repeat(chosen, NUM_OBJECTIVES)
        objectives = jnp.tile(jnp.arange(NUM_OBJECTIVES, dtype=jnp.int32), len(chosen))
        learners = _extending(
            tree_index(snapshots.kept, parents),
            self._aims(snapshots.archive, parents, objectives),
            jax.random.split(learner_key, len(parents)),
            settings,
        )
        return PopulationState(learners, objectives, snapshots, next_key)

    def _aims(self, archive: Archive, parents: Array, objectives: Array) -> BarrierSurrogate:
        """Problem P3 for each parent and objective, with returns normalised by the ranges of the front as it is."""
        low, span = _ranges(archive)
        count = len(parents)

        def everyone(value: float | Array) -> Array:
            return jnp.broadcast_to(jnp.asarray(value, float), (count, *jnp.shape(value)))

        return BarrierSurrogate(
            target=jax.nn.one_hot(objectives, NUM_OBJECTIVES),
            low=everyone(low),
            span=everyone(span),
            selected=archive.points[parents],
            beta=everyone(self.config.beta),
            # No barrier is one without influence.
            mu=everyone(jnp.inf if self.config.barrier == "none" else self.config.mu),
            anchored=everyone(float(self.config.barrier == "selected")),
        )


def _selected(snapshots: PolicyArchive, count: int) -> Array:
    """The slots of the policies to extend; those chosen take turns where the archive holds fewer than ``count``."""
    archive = snapshots.archive
    chosen = select_for_extension(archive.points, archive.valid, count, snapshots.times_extended)
    found = jnp.maximum(jnp.sum(chosen >= 0), 1)
    taking_turns: Array = chosen[jnp.arange(count) % found]
    return taking_turns


def _ranges(archive: Archive) -> tuple[Objectives, Objectives]:
    front = ObjectiveScaler.from_archive(archive)
    return front.low - MARGIN * front.span, (1 + MARGIN) * front.span


def _extending(parents: Snapshot, aims: BarrierSurrogate, keys: RandomKey, settings: PPOConfig) -> TrainState:
    """Learners that start as their parents were, with an optimiser and a learning rate of their own."""

    @eqx.filter_vmap
    def one(parent: Snapshot, aim: BarrierSurrogate, key: RandomKey) -> TrainState:
        return TrainState(
            network=parent.network,
            optimiser=init_optimiser(parent.network, settings),
            normaliser=parent.normaliser,
            returns=parent.returns,
            surrogate=aim,
            preference=parent.preference,
            key=key,
            steps=jnp.zeros((), jnp.int32),
        )

    learners: TrainState = one(parents, aims, keys)
    return learners
