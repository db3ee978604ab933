"""The driver: an algorithm from its start, or from where it stood, to its end, a chunk of steps at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.learn.algorithm import Algorithm, Candidates, ChunkMetrics
from tandem.learn.validation import ValidationResult, validate_candidates
from tandem.objectives import to_maximised
from tandem.pareto import cardinality, hypervolume
from tandem.policy.neural_policy import NeuralPolicy
from tandem.rng import SeedStream, stream_key
from tandem.tree import tree_index


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands, between two chunks."""

    stage: int
    chunk: int  # chunks done in this stage
    state: Any


@dataclass(frozen=True)
class Progress:
    """How far a run is, and how it goes."""

    stage: str
    number: int  # of the stage, from 0
    step: int  # in the stage
    steps: int  # of the stage
    rounds: int  # environment rounds spent since the start
    planned_rounds: int  # of training, in all
    hypervolume: float  # of the archive, or of the episodes of the last chunk
    policies: int  # non-dominated among those
    violation_rate: float
    entropy: float
    value_error: float
    clipped: float


def init_checkpoint(algorithm: Algorithm, seed: int) -> Checkpoint:
    """Before the first step."""
    return Checkpoint(0, 0, algorithm.init(stream_key(seed, SeedStream.TRAINING)))


def abstract_state(algorithm: Algorithm, stage: int) -> Any:
    """The shapes and types of a state in a stage, for a reader of saved ones; nothing is computed."""
    state = eqx.filter_eval_shape(algorithm.init, stream_key(0, SeedStream.TRAINING))
    if stage > 0:
        state = eqx.filter_eval_shape(lambda before: algorithm.begin_stage(stage, before), state)
    return state


def is_finished(algorithm: Algorithm, now: Checkpoint) -> bool:
    """Whether all steps are made."""
    return now.stage == len(algorithm.stages) - 1 and now.chunk == algorithm.stages[-1].chunks


def train(algorithm: Algorithm, now: Checkpoint) -> Iterator[tuple[Checkpoint, Progress]]:
    """Go on from a checkpoint to the end, and say after every chunk where it stands."""
    while not is_finished(algorithm, now):
        if now.chunk == algorithm.stages[now.stage].chunks:
            now = Checkpoint(now.stage + 1, 0, algorithm.begin_stage(now.stage + 1, now.state))
        state, seen = algorithm.run_chunk(now.stage, now.state)
        now = Checkpoint(now.stage, now.chunk + 1, state)
        yield now, _progress(algorithm, now, seen)


def train_seeds(algorithm: Algorithm, seeds: Sequence[int]) -> Iterator[tuple[Checkpoint, tuple[Progress, ...]]]:
    """From start to end for several seeds in one program: a GPU that one would leave idle has time for all.

    The state of a checkpoint is then a stack, a member a seed.
    """
    keys = jnp.stack([stream_key(seed, SeedStream.TRAINING) for seed in seeds])
    now = Checkpoint(0, 0, eqx.filter_vmap(algorithm.init)(keys))
    while not is_finished(algorithm, now):
        if now.chunk == algorithm.stages[now.stage].chunks:
            begin_stage = partial(algorithm.begin_stage, now.stage + 1)
            now = Checkpoint(now.stage + 1, 0, eqx.filter_vmap(begin_stage)(now.state))
        state, seen = eqx.filter_vmap(partial(algorithm.run_chunk, now.stage))(now.state)
        now = Checkpoint(now.stage, now.chunk + 1, state)
        seen = jax.device_get(seen)
        yield now, tuple(_progress(algorithm, now, tree_index(seen, run)) for run in range(len(seeds)))


def select_run(now: Checkpoint, index: int) -> Checkpoint:
    """One of several runs that are trained together, as if it were the only one."""
    return Checkpoint(now.stage, now.chunk, eqx.filter_jit(tree_index)(now.state, jnp.asarray(index)))


def _progress(algorithm: Algorithm, now: Checkpoint, seen: ChunkMetrics) -> Progress:
    """Where a run stands after a chunk, and what that chunk was like."""
    stages = algorithm.stages
    stage = stages[now.stage]
    points = np.asarray(seen.points, np.float64)[np.asarray(seen.valid)]
    return Progress(
        stage=stage.name,
        number=now.stage,
        step=now.chunk * stage.steps,
        steps=stage.chunks * stage.steps,
        rounds=rounds_done(algorithm, now),
        planned_rounds=sum(stage.rounds for stage in stages),
        hypervolume=hypervolume(points, reference_point(algorithm)),
        policies=cardinality(points),
        violation_rate=float(seen.violation_rate),
        entropy=float(seen.entropy),
        value_error=float(seen.value_error),
        clipped=float(seen.clipped),
    )


def rounds_done(algorithm: Algorithm, now: Checkpoint) -> int:
    """Environment rounds of training since the start of the run."""
    stage = algorithm.stages[now.stage]
    earlier = sum(stage.rounds for stage in algorithm.stages[: now.stage])
    return earlier + now.chunk * stage.steps * stage.rounds_per_step


def reference_point(algorithm: Algorithm) -> NDArray[np.float64]:
    """The reference of the hypervolume, maximised."""
    return to_maximised(algorithm.config.reference_point)


def validate(algorithm: Algorithm, now: Checkpoint, seed: int) -> ValidationResult:
    """Validate what was found and choose the front."""
    candidates, policies = extract_candidates(algorithm, now.state)
    return validate_candidates(
        algorithm.system, candidates, policies, validation_keys(algorithm, seed), algorithm.config.tolerance
    )


@eqx.filter_jit
def extract_candidates(algorithm: Algorithm, state: Any) -> tuple[Candidates, NeuralPolicy]:
    """What a state has to offer, and the policies of it, in one go: by itself each array would be a call."""
    candidates = algorithm.candidates(state)
    return candidates, algorithm.policies(candidates)


def validation_keys(algorithm: Algorithm, seed: int) -> Any:
    """The episodes that a run's candidates are validated by."""
    return jax.random.split(stream_key(seed, SeedStream.VALIDATION), algorithm.config.validation_episodes)
