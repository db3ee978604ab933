"""PG-MORL: each generation trains the tasks that are predicted to improve the front most (Xu et al., 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from tandem.feel.types import Array, Objectives, RandomKey, Scalar
from tandem.learn.algorithm import NO_OBJECTIVE, Stage
from tandem.learn.config import AlgorithmConfig, PGMORLConfig, PPOConfig
from tandem.learn.pg_morl.history import History
from tandem.learn.pg_morl.improvement_model import predict_improvement
from tandem.learn.pg_morl.performance_buffer import PerformanceBuffer
from tandem.learn.ppo.ppo import TrainState
from tandem.learn.scalarised_ppo import LITERAL, QUICK, PopulationState, ScalarisedPPO
from tandem.objectives import to_maximised
from tandem.pareto import hypervolume_improvement, interior_simplex, sparsity_if_added
from tandem.pareto.scaling import ObjectiveScaler
from tandem.tree import tree_index

MIN_BOX = 1e-6  # volume between a reference point above the front and 1: such a front has no hypervolume
ALREADY_CHOSEN = (
    -1e30
)  # merit of a pair that is chosen already: after all others, but before policies that do not exist


class PGMORLState(PopulationState):
    """A population, the policies that the next one may start from, and the history of training."""

    buffers: PerformanceBuffer
    history: History
    origin: Float[Array, "members 3"]  # mean rewards at the start of the current record
    made: Int[Array, ""]  # steps of the current record
    generation: int = eqx.field(static=True)  # steps of a record

    def after_step(self, train_states: TrainState, rewards: Float[Array, "members 3"], stage: Int[Array, ""]) -> Self:
        """Return the state after a step. Every ``generation`` steps make a record of the history.

        The buffers get the policies after the update, though the rewards are those before it: so training that
        continues from a buffer loses no update.
        """
        origin = jnp.where(self.made == 0, rewards, self.origin)
        ends = (self.made == self.generation - 1) & jnp.all(jnp.isfinite(rewards - origin), axis=1)
        after = super().after_step(train_states, rewards, stage)
        return replace(
            after,
            buffers=self.buffers.insert(
                train_states, rewards, ObjectiveScaler.from_archive(after.policy_archive.archive)
            ),
            history=self.history.append(self.train_states.preference, origin, rewards - origin, ends),
            origin=origin,
            made=(self.made + 1) % self.generation,
        )


class PGMORL(ScalarisedPPO):
    """PG-MORL: the pairs of policy and weight to train are chosen by the front that they are predicted to give."""

    name = "pg-morl"
    summary = "trains the pairs of policy and weight that are predicted to improve the front most"
    config_type: ClassVar[type[AlgorithmConfig]] = PGMORLConfig
    # The paper uses the same budget and PPO for all algorithms, and gives no other hyperparameters of this one.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "literal": {**LITERAL, "generation_steps": 20},
        "quick": {**QUICK, "initialisation": 0.6, "generation_steps": 5},
    }
    config: PGMORLConfig

    def plan_stages(self) -> tuple[Stage, ...]:
        return self._plan_iterations(self._generation, self.config.initialisation, "generation_steps")

    @property
    def _generation(self) -> Stage:
        per_step = self.config.num_tasks * self.config.num_envs * self.environment.rounds
        return Stage.from_steps("generation", self.config.generation_steps, per_step)

    @property
    def max_candidates(self) -> int:
        return self.config.archive_size + max(self.config.num_preferences, self.config.num_tasks)

    def ppo_config(self, stage: int) -> PPOConfig:
        """Return the hyperparameters; the learning rate decays over the steps of a policy in all generations."""
        return self.config.ppo_config(sum(stage.total_steps for stage in self.stages))

    def init(self, key: RandomKey) -> PGMORLState:
        """Create the state before the warm-up: an untrained network for each preference of the whole simplex."""
        population, config = super().init(key), self.config
        records = max(config.history_size, config.num_preferences, config.num_tasks)
        return PGMORLState(
            **vars(population),
            buffers=PerformanceBuffer.init(config.buffer_count, config.buffer_size, population.train_states),
            history=History.init(records),
            origin=jnp.zeros((config.num_preferences, 3), float),
            made=jnp.zeros((), jnp.int32),
            generation=self._generation.total_steps,
        )

    def begin_stage(self, stage: int, state: PGMORLState) -> PGMORLState:
        """Start the next generation: one train state for each of the best tasks."""
        config = self.config
        weights = jnp.asarray(interior_simplex(config.num_weights, config.min_weight), float)
        reference = jnp.asarray(to_maximised(config.reference_point), float)
        selection = TaskSelection(
            weights, reference, config.alpha, config.radius, config.num_neighbours, config.num_tasks
        )
        first: PGMORLState = next_generation(state, selection)
        return first


class TaskSelection(eqx.Module):
    """Parameters of the choice of tasks."""

    weights: Float[Array, "weights 3"]  # that a policy might be trained with
    reference: Objectives  # point of the hypervolume, for maximised objectives
    alpha: Scalar | float
    radius: Scalar | float
    neighbours: int = eqx.field(static=True)
    tasks: int = eqx.field(static=True)


@eqx.filter_jit
def next_generation(state: PGMORLState, selection: TaskSelection) -> PGMORLState:
    """Start the tasks of the next generation: each continues the policy that was chosen for it with another weight."""
    next_key, member_key = jax.random.split(state.key)
    buffers, archive, history = state.buffers, state.policy_archive.archive, state.history
    scaler = ObjectiveScaler.from_archive(archive)
    predicted = predict_improvement(
        scaler.scale(buffers.points),
        selection.weights,
        scaler.scale(history.before),
        history.weights,
        history.change / scaler.span,
        history.valid,
        selection.radius,
        selection.neighbours,
    )
    reference = scaler.scale(selection.reference)
    front = scaler.scale(archive.points)
    policy, weight = choose_tasks(
        front, archive.valid, predicted, buffers.valid, reference, selection.alpha, selection.tasks
    )
    keys = jax.random.split(member_key, selection.tasks)
    return replace(
        state,
        train_states=replace(tree_index(buffers.kept, policy), preference=selection.weights[weight], key=keys),
        objectives=jnp.full(selection.tasks, NO_OBJECTIVE, jnp.int32),
        key=next_key,
        origin=jnp.zeros((selection.tasks, 3), float),
        made=jnp.zeros((), jnp.int32),
    )


class Tasks(NamedTuple):
    """Pairs of a policy and the weight to train it with, as indices."""

    policy: Int[Array, " tasks"]
    weight: Int[Array, " tasks"]


def choose_tasks(
    front: Float[Array, "points 3"],
    valid: Bool[Array, " points"],
    predicted: Float[Array, "policies weights 3"],
    available: Bool[Array, " policies"],
    reference: Objectives,
    alpha: Scalar | float,
    tasks: int,
) -> Tasks:
    """Choose greedily the pair with the largest HV - alpha SP of the front together with all predictions chosen so far.

    Objectives are normalised, and HV is a share of the box from the reference point to 1. No pair is chosen twice, as
    long as there are others.
    """
    policies, weights = predicted.shape[:2]
    candidates = predicted.reshape(-1, 3)
    eligible = jnp.repeat(available, weights)
    size = len(front)
    points = jnp.concatenate([front, jnp.zeros((tasks, 3), front.dtype)])
    box = jnp.prod(jnp.maximum(1 - reference, MIN_BOX))

    def next_task(
        carry: tuple[Array, Array, Array], number: Int[Array, ""]
    ) -> tuple[tuple[Array, Array, Array], Int[Array, ""]]:
        points, valid, chosen = carry
        gains = hypervolume_improvement(points, valid, candidates, reference)
        merit = gains / box - alpha * sparsity_if_added(points, valid, candidates)
        merit = jnp.where(eligible, jnp.where(chosen, ALREADY_CHOSEN, merit), -jnp.inf)
        best = jnp.argmax(merit)
        points = points.at[size + number].set(candidates[best])
        return (points, valid.at[size + number].set(True), chosen.at[best].set(True)), best

    start = (points, jnp.concatenate([valid, jnp.zeros(tasks, bool)]), jnp.zeros(policies * weights, bool))
    _, pairs = jax.lax.scan(next_task, start, jnp.arange(tasks))
    return Tasks(pairs // weights, pairs % weights)
