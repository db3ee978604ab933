"""Ours: one network for every preference and every fleet size.

Each episode draws a preference, the network is told it, and its advantages are weighed by it. What is learned for one
preference serves its neighbours, so all rounds train one network; afterwards any preference can be asked for.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float

from tandem.feel.system import System
from tandem.feel.types import Array, RandomKey
from tandem.learn.algorithm import Algorithm, Candidates, Seen, Stage
from tandem.learn.config import ConditionedOptions, Options
from tandem.learn.ppo.population import mesh_for, train_population
from tandem.learn.ppo.ppo import Learner, Settings, start
from tandem.learn.ppo.surrogate import Weighted
from tandem.pareto import simplex_grid
from tandem.policy.networks import FleetNetwork, Network
from tandem.tree import everywhere, stacked


class Conditioned(Algorithm):
    """``tandem``: a permutation-equivariant network that is given the preference."""

    name = "tandem"
    summary = "ours: one network for any preference and any fleet size"
    options_type: ClassVar[type[Options]] = ConditionedOptions
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "quick": {"rounds": 300_000, "divisions": 13, "validation_episodes": 2},
    }
    options: ConditionedOptions

    @property
    def stages(self) -> tuple[Stage, ...]:
        per_step = self.options.episodes * sum(system.rounds for system in self.systems)
        rounds = self.options.rounds - self.validation_rounds
        return (Stage.of("training", self.steps_within(rounds, per_step, "training"), per_step),)

    @property
    def most_candidates(self) -> int:
        return (self.options.divisions + 1) * (self.options.divisions + 2) // 2

    def network(self, key: RandomKey) -> Network:
        return FleetNetwork.create(self.system, key, conditioned=True, width=self.options.width)

    def settings(self) -> Settings:
        """How it learns."""
        plan = self.stages[0]
        return self.options.settings(plan.chunks * plan.steps * len(self.systems), self.options.concentration)

    def start(self, key: RandomKey) -> Learner:
        """A population of one."""
        network = self.network(jax.random.fold_in(key, 1))
        return stacked([start(network, self.system, Weighted(), jnp.full(3, 1 / 3), key, self.settings())])

    def advance(self, stage: int, state: Learner) -> tuple[Learner, Seen]:
        return conditioned_steps(self.systems, state, self.settings(), self.stages[stage].steps)

    def candidates(self, state: Learner) -> Candidates:
        """Every preference of a grid."""
        grid: Float[Array, "candidates 3"] = jnp.asarray(simplex_grid(self.options.divisions), float)
        count = grid.shape[0]
        nothing = jnp.full(count, -1, jnp.int32)
        return Candidates(
            networks=state.network,
            normalisers=state.normaliser,
            owner=jnp.zeros(count, jnp.int32),
            preferences=grid,
            stage=jnp.zeros(count, jnp.int32),
            objective=nothing,
            valid=jnp.ones(count, bool),
        )


def conditioned_steps(
    systems: tuple[System, ...], state: Learner, settings: Settings, steps: int
) -> tuple[Learner, Seen]:
    """Some training steps of a population of one, each on every fleet in turn."""
    mesh = mesh_for(systems[0], 1, settings)
    done: tuple[Learner, Seen] = _program(systems, everywhere(state, mesh), settings, steps, mesh)
    return done


@eqx.filter_jit
def _program(
    systems: tuple[System, ...], state: Learner, settings: Settings, steps: int, mesh: Mesh
) -> tuple[Learner, Seen]:
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one_step(arrays: Learner, _: None) -> tuple[Learner, Any]:
        learner = eqx.combine(arrays, rest)
        reports = []
        for system in systems:
            learner, report = train_population(system, learner, settings)
            reports.append(report)
        seen = [(r.violation_rate, r.entropy, r.value_error, r.clipped) for r in reports]
        return eqx.filter(learner, eqx.is_array), (reports[-1].by_episode, jnp.asarray(seen))

    arrays, (episodes, seen) = jax.lax.scan(one_step, arrays, None, length=steps)
    points = episodes.reshape(-1, 3)
    means = jnp.mean(seen.reshape(steps * len(systems), 4), axis=0)
    return everywhere(eqx.combine(arrays, rest), mesh), Seen(points, jnp.ones(points.shape[0], bool), *means)
