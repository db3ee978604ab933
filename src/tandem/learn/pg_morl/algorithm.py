"""PG-MORL: generations of training where a model of past training predicts the largest gain (Xu et al., 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from tandem.feel.types import Array, Objectives, RandomKey, Scalar
from tandem.learn.algorithm import Stage
from tandem.learn.config import AlgorithmConfig, PGMORLConfig
from tandem.learn.pg_morl.history import History
from tandem.learn.pg_morl.improvement_model import predict_improvement
from tandem.learn.pg_morl.performance_buffer import PerformanceBuffer
from tandem.learn.ppo.ppo import PPOConfig, TrainState
from tandem.learn.scalarised_ppo import LITERAL, PopulationState, ScalarisedPPO
from tandem.objectives import to_maximised
from tandem.pareto import hypervolume_improvement, interior_simplex, sparsity_if_added
from tandem.pareto.scaling import ObjectiveScaler
from tandem.tree import tree_index


class PGMORLState(PopulationState):
    """A population, the policies that the next may set out from, and what training did so far."""

    buffers: PerformanceBuffer
    history: History
    origin: Float[Array, "members 3"]  # mean rewards where the present record began
    made: Int[Array, ""]  # steps since then
    generation: int = eqx.field(static=True)  # steps that a record is about

    def after_step(self, population: TrainState, rewards: Float[Array, "members 3"], stage: Int[Array, ""]) -> Self:
        """Every ``generation`` steps make a record, and every learner is offered to the buffers as the step left it.

        What it earned is an update old by then; in return no update is lost where it is gone on from.
        """
        origin = jnp.where(self.made == 0, rewards, self.origin)
        ends = (self.made == self.generation - 1) & jnp.all(jnp.isfinite(rewards - origin), axis=1)
        after = super().after_step(population, rewards, stage)
        return replace(
            after,
            buffers=self.buffers.insert(
                population, rewards, ObjectiveScaler.from_archive(after.policy_archive.archive)
            ),
            history=self.history.append(self.train_states.preference, origin, rewards - origin, ends),
            origin=origin,
            made=(self.made + 1) % self.generation,
        )


class PGMORL(ScalarisedPPO):
    """PG-MORL: which policies to train, and under which weights, is chosen by the front they are predicted to make."""

    name = "pg-morl"
    summary = "generations of the policies and weights that are predicted to improve the front most"
    config_type: ClassVar[type[AlgorithmConfig]] = PGMORLConfig
    # The paper gives its budget and its engine to all algorithms, and says no more of this one.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "literal": {**LITERAL, "generation_steps": 20},
        "quick": {"budget": 200_000, "generation_steps": 5},
    }
    config: PGMORLConfig

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._then(self._generation, self.config.initialisation, "generation_steps")

    @property
    def _generation(self) -> Stage:
        options = self.config
        return Stage.from_steps(
            "generation", options.generation_steps, options.num_tasks * options.num_envs * self.system.rounds
        )

    @property
    def max_candidates(self) -> int:
        return self.config.archive_size + max(self.config.num_preferences, self.config.num_tasks)

    def settings(self, stage: int) -> PPOConfig:
        """The learning rate falls with the steps that a learner has made in all its generations."""
        return self.config.ppo_config(sum(plan.chunks * plan.steps for plan in self.stages))

    def init(self, key: RandomKey) -> PGMORLState:
        """The warm-up: a fresh network for each of the preferences, which spread over the whole simplex."""
        begun, options = super().init(key), self.config
        records = max(options.history_size, options.num_preferences, options.num_tasks)
        return PGMORLState(
            **vars(begun),
            buffers=PerformanceBuffer.init(options.buffer_count, options.buffer_size, begun.train_states),
            history=History.init(records),
            origin=jnp.zeros((options.num_preferences, 3), float),
            made=jnp.zeros((), jnp.int32),
            generation=self._generation.chunks * self._generation.steps,
        )

    def begin_stage(self, stage: int, state: PGMORLState) -> PGMORLState:
        """The next generation: a learner for each of the tasks that promise most."""
        options = self.config
        weights = jnp.asarray(interior_simplex(options.num_weights, options.min_weight), float)
        reference = jnp.asarray(to_maximised(options.reference_point), float)
        guidance = TaskSelection(
            weights, reference, options.alpha, options.radius, options.num_neighbours, options.num_tasks
        )
        begun: PGMORLState = next_generation(state, guidance)
        return begun


class TaskSelection(eqx.Module):
    """What the choice of tasks goes by."""

    weights: Float[Array, "weights 3"]  # that a policy might be trained under
    reference: Objectives  # of the hypervolume, maximised
    alpha: Scalar | float
    radius: Scalar | float
    neighbours: int = eqx.field(static=True)
    tasks: int = eqx.field(static=True)


@eqx.filter_jit
def next_generation(state: PGMORLState, guidance: TaskSelection) -> PGMORLState:
    """A learner for each task: the one that was chosen for it, going on under another weight."""
    next_key, learner_key = jax.random.split(state.key)
    buffers, archive, history = state.buffers, state.policy_archive.archive, state.history
    space = ObjectiveScaler.from_archive(archive)
    predicted = predict_improvement(
        space.scale(buffers.points),
        guidance.weights,
        space.scale(history.before),
        history.weights,
        history.change / space.span,
        history.valid,
        guidance.radius,
        guidance.neighbours,
    )
    reference = space.scale(guidance.reference)
    front = space.scale(archive.points)
    policy, weight = choose_tasks(
        front, archive.valid, predicted, buffers.valid, reference, guidance.alpha, guidance.tasks
    )
    keys = jax.random.split(learner_key, guidance.tasks)
    return replace(
        state,
        train_states=replace(tree_index(buffers.kept, policy), preference=guidance.weights[weight], key=keys),
        objectives=jnp.full(guidance.tasks, -1, jnp.int32),
        key=next_key,
        origin=jnp.zeros((guidance.tasks, 3), float),
        made=jnp.zeros((), jnp.int32),
    )


class Tasks(NamedTuple):
    """Which policy is to be trained under which weight."""

    policy: Int[Array, " tasks"]
    weight: Int[Array, " tasks"]


def choose_tasks(
    front: Float[Array, "points 3"],
    valid: Bool[Array, " points"],
    predicted: Float[Array, "policies weights 3"],
    there: Bool[Array, " policies"],
    reference: Objectives,
    alpha: Scalar | float,
    tasks: int,
) -> Tasks:
    """One after another the pair that makes most of HV - alpha SP, given the front and where those before it lead.

    On rescaled objectives, with HV as a share of the box from the reference to 1. No pair is chosen twice, as long as
    there are others.
    """
    policies, weights = predicted.shape[:2]
    candidates = predicted.reshape(-1, 3)
    eligible = jnp.repeat(there, weights)
    room = len(front)
    points = jnp.concatenate([front, jnp.zeros((tasks, 3), front.dtype)])
    box = jnp.prod(jnp.maximum(1 - reference, 1e-6))  # a front below the reference has no volume, and gains none

    def next_task(
        carry: tuple[Array, Array, Array], number: Int[Array, ""]
    ) -> tuple[tuple[Array, Array, Array], Int[Array, ""]]:
        points, counts, taken = carry
        gains = hypervolume_improvement(points, counts, candidates, reference)
        merit = gains / box - alpha * sparsity_if_added(points, counts, candidates)
        # What is chosen already comes after everything else that is there.
        merit = jnp.where(eligible, jnp.where(taken, -1e30, merit), -jnp.inf)
        best = jnp.argmax(merit)
        points = points.at[room + number].set(candidates[best])
        return (points, counts.at[room + number].set(True), taken.at[best].set(True)), best

    start = (points, jnp.concatenate([valid, jnp.zeros(tasks, bool)]), jnp.zeros(policies * weights, bool))
    _, chosen = jax.lax.scan(next_task, start, jnp.arange(tasks))
    return Tasks(chosen // weights, chosen % weights)
