"""The training loop: it runs an algorithm from its first or a saved state, one chunk of steps at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.learn.algorithm import Algorithm, Candidates, ChunkResult, Stage
from tandem.learn.validation import ValidationResult, validate_candidates
from tandem.objectives import to_maximised
from tandem.pareto import cardinality, hypervolume
from tandem.policy.neural_policy import NeuralPolicy
from tandem.rng import SeedStream, stream_key
from tandem.tree import tree_index


@dataclass(frozen=True)
class Checkpoint:
    """The state of training between two chunks, of one seed or of several."""

    stage: int
    chunk: int  # chunks done in this stage
    state: Any
    seeds: int | None = None  # number of seeds, whose states are stacked; None: one seed, whose state is not


@dataclass(frozen=True)
class ChunkProgress:
    """Position and metrics of a training after a chunk."""

    stage: str
    number: int  # of the stage, from 0
    step: int  # in the stage
    steps: int  # of the stage
    rounds: int  # environment rounds since the start
    planned_rounds: int  # environment rounds of the whole training
    hypervolume: float  # of the archive, or of the episodes of the chunk
    policies: int  # number of non-dominated points among them
    violation_rate: float
    entropy: float
    value_error: float
    clipped: float
    points: NDArray[np.float64] = field(repr=False, compare=False)  # [points, 3] of the hypervolume, maximised


def init_checkpoint(algorithm: Algorithm, seeds: int | Sequence[int]) -> Checkpoint:
    """Create the checkpoint before the first step, for one seed or for several that are trained in one program.

    A GPU that one seed would leave partly idle trains several in about the same time.
    """
    if isinstance(seeds, int):
        return Checkpoint(0, 0, algorithm.init(stream_key(seeds, SeedStream.TRAINING)))
    keys = jnp.stack([stream_key(seed, SeedStream.TRAINING) for seed in seeds])
    return Checkpoint(0, 0, eqx.filter_vmap(algorithm.init)(keys), len(seeds))


def step_checkpoint(algorithm: Algorithm, checkpoint: Checkpoint) -> tuple[Checkpoint, tuple[ChunkProgress, ...]]:
    """Run the next chunk of steps, after the beginning of the next stage if one has ended.

    Returns the new checkpoint and the progress of each seed.
    """
    over_seeds: Callable[[Any], Any] = (lambda function: function) if checkpoint.seeds is None else eqx.filter_vmap
    stage, chunk, state = checkpoint.stage, checkpoint.chunk, checkpoint.state
    if chunk == algorithm.stages[stage].chunks:
        stage, chunk = stage + 1, 0
        state = over_seeds(partial(algorithm.begin_stage, stage))(state)
    state, result = over_seeds(partial(algorithm.run_chunk, stage))(state)
    checkpoint = Checkpoint(stage, chunk + 1, state, checkpoint.seeds)
    result = jax.device_get(result)
    results = [result] if checkpoint.seeds is None else [tree_index(result, n) for n in range(checkpoint.seeds)]
    return checkpoint, tuple(_progress(algorithm, checkpoint, one) for one in results)


def train(algorithm: Algorithm, checkpoint: Checkpoint) -> Iterator[tuple[Checkpoint, tuple[ChunkProgress, ...]]]:
    """Train to the end, and yield the checkpoint and the progress of each seed after every chunk."""
    while not is_finished(algorithm, checkpoint):
        checkpoint, progress = step_checkpoint(algorithm, checkpoint)
        yield checkpoint, progress


def is_finished(algorithm: Algorithm, checkpoint: Checkpoint) -> bool:
    """Return whether all steps are done."""
    return checkpoint.stage == len(algorithm.stages) - 1 and checkpoint.chunk == algorithm.stages[-1].chunks


def next_stage(algorithm: Algorithm, checkpoint: Checkpoint) -> Stage:
    """Return the stage of the next chunk."""
    is_over = checkpoint.chunk == algorithm.stages[checkpoint.stage].chunks
    return algorithm.stages[checkpoint.stage + is_over]


def rounds_done(algorithm: Algorithm, checkpoint: Checkpoint) -> int:
    """Return the environment rounds of training since the start."""
    stage = algorithm.stages[checkpoint.stage]
    earlier = sum(stage.rounds for stage in algorithm.stages[: checkpoint.stage])
    return earlier + stage.rounds_before + checkpoint.chunk * stage.steps * stage.rounds_per_step


def select_run(checkpoint: Checkpoint, index: int) -> Checkpoint:
    """Return the checkpoint of one of several seeds."""
    state = eqx.filter_jit(tree_index)(checkpoint.state, jnp.asarray(index))
    return Checkpoint(checkpoint.stage, checkpoint.chunk, state)


def abstract_state(algorithm: Algorithm, stage: int) -> Any:
    """Return the shapes and types of the state in a stage, for reading saved ones; nothing is computed."""
    state = eqx.filter_eval_shape(algorithm.init, stream_key(0, SeedStream.TRAINING))
    if stage > 0:
        state = eqx.filter_eval_shape(lambda before: algorithm.begin_stage(stage, before), state)
    return state


def _progress(algorithm: Algorithm, checkpoint: Checkpoint, result: ChunkResult) -> ChunkProgress:
    stage = algorithm.stages[checkpoint.stage]
    points = np.asarray(result.points, np.float64)[np.asarray(result.valid)]
    return ChunkProgress(
        stage=stage.name,
        number=checkpoint.stage,
        step=checkpoint.chunk * stage.steps,
        steps=stage.total_steps,
        rounds=rounds_done(algorithm, checkpoint),
        planned_rounds=algorithm.training_rounds,
        hypervolume=hypervolume(points, reference_point(algorithm)),
        policies=cardinality(points),
        **{name: float(value) for name, value in vars(result.metrics).items()},
        points=points,
    )


def reference_point(algorithm: Algorithm) -> NDArray[np.float64]:
    """Return the reference point of the hypervolume, for maximised objectives."""
    return to_maximised(algorithm.config.reference_point)


def validate(algorithm: Algorithm, checkpoint: Checkpoint, seed: int) -> ValidationResult:
    """Validate the candidates of one seed and choose the front."""
    candidates, policies = extract_candidates(algorithm, checkpoint.state)
    keys = validation_keys(algorithm, seed)
    return validate_candidates(algorithm.environment, candidates, policies, keys, algorithm.config.tolerance)


@eqx.filter_jit
def extract_candidates(algorithm: Algorithm, state: Any) -> tuple[Candidates, NeuralPolicy]:
    """Return the candidates of a state and their policies. One compiled program extracts all arrays."""
    candidates = algorithm.candidates(state)
    return candidates, algorithm.policies(candidates)


def validation_keys(algorithm: Algorithm, seed: int) -> Any:
    """Return the keys of the episodes of validation."""
    return jax.random.split(stream_key(seed, SeedStream.VALIDATION), algorithm.config.validation_episodes)
