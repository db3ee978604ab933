"""C-MOPPO: Pareto initialisation, then rounds of selection and constrained extension (Algorithm 3 of the paper)."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.feel.types import Array, Objectives, RandomKey
from tandem.learn.algorithm import Stage
from tandem.learn.config import ExtensionOptions, Options
from tandem.learn.policy_archive import Snapshot, Snapshots
from tandem.learn.ppo.ppo import Learner, Settings, fresh_optimiser
from tandem.learn.ppo.surrogate import Constrained
from tandem.learn.scalarised_ppo import LITERAL, PopulationState, ScalarisedPPO
from tandem.pareto import Archive, select_for_extension
from tandem.pareto.scaling import Space
from tandem.tree import member

GOALS = 3
# Below the worst policy of the front, as a share of its range, a return counts as 0: so every policy has more than 0.
MARGIN = 0.1


class CMOPPO(ScalarisedPPO):
    """The paper's algorithm: what has room around it on the front is extended in the direction of each objective."""

    name = "c-moppo"
    summary = "the paper's: initialise, select by crowding distance, extend under constraints"
    options_type: ClassVar[type[Options]] = ExtensionOptions
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "paper": {**LITERAL, "extension_steps": 100},
        "quick": {"rounds": 200_000, "extension_steps": 5},
    }
    options: ExtensionOptions

    @property
    def stages(self) -> tuple[Stage, ...]:
        options = self.options
        per_step = options.extended * GOALS * options.episodes * self.system.rounds
        extension = Stage.of("extension", options.extension_steps, per_step)
        return self._then(extension, options.initialisation, "extension_steps")

    @property
    def most_candidates(self) -> int:
        return self.options.archive + max(self.options.preferences, self.options.extended * GOALS)

    def begin(self, stage: int, state: PopulationState) -> PopulationState:
        return self.begin_extension(state, self.settings(stage))

    def begin_extension(self, state: PopulationState, settings: Settings) -> PopulationState:
        """Policy selection (Algorithm 2), and for each policy selected a learner in the direction of each objective."""
        next_key, learner_key = jax.random.split(state.key)
        chosen = _selected(state.snapshots, self.options.extended)
        times = state.snapshots.times_extended.at[chosen].add(1)
        snapshots = Snapshots(state.snapshots.archive, state.snapshots.kept, times)
        parents, objectives = jnp.repeat(chosen, GOALS), jnp.tile(jnp.arange(GOALS, dtype=jnp.int32), len(chosen))
        learners = _extending(
            member(snapshots.kept, parents),
            self._aims(snapshots.archive, parents, objectives),
            jax.random.split(learner_key, len(parents)),
            settings,
        )
        return PopulationState(learners, objectives, snapshots, next_key)

    def _aims(self, archive: Archive, parents: Array, objectives: Array) -> Constrained:
        """Problem P3 for each parent and objective, with returns normalised by the ranges of the front as it is."""
        low, span = _ranges(archive)
        count = len(parents)

        def everyone(value: float | Array) -> Array:
            return jnp.broadcast_to(jnp.asarray(value, float), (count, *jnp.shape(value)))

        return Constrained(
            objective=jax.nn.one_hot(objectives, GOALS),
            low=everyone(low),
            span=everyone(span),
            selected=archive.points[parents],
            beta=everyone(self.options.beta),
            # No barrier is one without influence.
            mu=everyone(jnp.inf if self.options.barrier == "none" else self.options.mu),
            anchored=everyone(float(self.options.barrier == "selected")),
        )


def _selected(snapshots: Snapshots, count: int) -> Array:
    """The slots of the policies to extend; those chosen take turns where the archive holds fewer than ``count``."""
    archive = snapshots.archive
    chosen = select_for_extension(archive.points, archive.valid, count, snapshots.times_extended)
    found = jnp.maximum(jnp.sum(chosen >= 0), 1)
    taking_turns: Array = chosen[jnp.arange(count) % found]
    return taking_turns


def _ranges(archive: Archive) -> tuple[Objectives, Objectives]:
    front = Space.around(archive)
    return front.low - MARGIN * front.span, (1 + MARGIN) * front.span


def _extending(parents: Snapshot, aims: Constrained, keys: RandomKey, settings: Settings) -> Learner:
    """Learners that start as their parents were, with an optimiser and a learning rate of their own."""

    @eqx.filter_vmap
    def one(parent: Snapshot, aim: Constrained, key: RandomKey) -> Learner:
        return Learner(
            network=parent.network,
            optimiser=fresh_optimiser(parent.network, settings),
            normaliser=parent.normaliser,
            returns=parent.returns,
            aim=aim,
            preference=parent.preference,
            key=key,
            steps=jnp.zeros((), jnp.int32),
        )

    learners: Learner = one(parents, aims, keys)
    return learners
