"""checkpoint.safetensors: the state of training, from which it continues as if it had not stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from tandem.errors import InputError
from tandem.io.array_file import read_arrays, write_arrays
from tandem.io.tree_io import flatten_arrays, restore_arrays
from tandem.learn.algorithm import Algorithm
from tandem.learn.train_loop import Checkpoint, abstract_state, init_checkpoint
from tandem.runs.run_dir import CHECKPOINT


@dataclass(frozen=True)
class TimedCheckpoint:
    """A checkpoint, and the time that training took until then."""

    checkpoint: Checkpoint
    wall_s: float


def chunks_done(algorithm: Algorithm, checkpoint: Checkpoint) -> int:
    """Return the number of chunks since the start of the run."""
    return sum(stage.chunks for stage in algorithm.stages[: checkpoint.stage]) + checkpoint.chunk


def write_checkpoint(folder: Path, timed: TimedCheckpoint) -> None:
    """Write checkpoint.safetensors."""
    checkpoint = timed.checkpoint
    note = {"stage": checkpoint.stage, "chunk": checkpoint.chunk, "wall_s": timed.wall_s}
    write_arrays(folder / CHECKPOINT, flatten_arrays(checkpoint.state), note)


def read_checkpoint(folder: Path, algorithm: Algorithm, seed: int) -> TimedCheckpoint:
    """Read the checkpoint of a run, or create that of its start if it has not written one."""
    path = folder / CHECKPOINT
    if not path.exists():
        return TimedCheckpoint(_as_if_read(init_checkpoint(algorithm, seed)), 0.0)
    arrays, note = read_arrays(path)
    try:
        stage, chunk, wall_s = int(note["stage"]), int(note["chunk"]), float(note["wall_s"])
    except (KeyError, TypeError, ValueError):
        stage = chunk = -1
    if not (0 <= stage < len(algorithm.stages) and 0 <= chunk <= algorithm.stages[stage].chunks):
        raise InputError(
            f"{path}: its stage or chunk is out of range; restore it, or delete it to train from the start."
        )
    return TimedCheckpoint(
        Checkpoint(stage, chunk, restore_arrays(abstract_state(algorithm, stage), arrays, path)), wall_s
    )


def canonical_placement(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with its arrays placed on devices as if they had been read from a file.

    Arrays that are sharded over devices compile to another program than arrays that were read, and another program may
    round differently. All chunks start from the same placement, so that a resumed run is equal to an uninterrupted one
    to the bit.
    """
    return _as_if_read(checkpoint) if jax.device_count() > 1 else checkpoint


def _as_if_read(checkpoint: Checkpoint) -> Checkpoint:
    state: Any = restore_arrays(checkpoint.state, flatten_arrays(checkpoint.state), Path(CHECKPOINT))
    return replace(checkpoint, state=state)
