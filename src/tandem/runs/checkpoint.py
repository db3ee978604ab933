"""checkpoint.safetensors: where a training stands, so that it can go on as if it had never stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from tandem.errors import InputError
from tandem.io.tree_io import flatten_arrays, read_arrays, restore_arrays, write_arrays
from tandem.learn.algorithm import Algorithm
from tandem.learn.train_loop import Checkpoint, abstract_state, init_checkpoint
from tandem.runs.run_dir import CHECKPOINT


@dataclass(frozen=True)
class TimedCheckpoint:
    """A checkpoint, and the time it took to get there."""

    now: Checkpoint
    wall_s: float


def chunks_done(algorithm: Algorithm, now: Checkpoint) -> int:
    """Chunks since the start of the run."""
    return sum(stage.chunks for stage in algorithm.stages[: now.stage]) + now.chunk


def write_checkpoint(folder: Path, standing: TimedCheckpoint) -> None:
    """Write where a run stands, all or nothing."""
    now = standing.now
    note = {"stage": now.stage, "chunk": now.chunk, "wall_s": standing.wall_s}
    write_arrays(folder / CHECKPOINT, flatten_arrays(now.state), note)


def read_checkpoint(folder: Path, algorithm: Algorithm, seed: int) -> TimedCheckpoint:
    """Where a run stands; at its start if it has written nothing yet."""
    path = folder / CHECKPOINT
    if not path.exists():
        return TimedCheckpoint(_settled(init_checkpoint(algorithm, seed)), 0.0)
    arrays, note = read_arrays(path)
    try:
        stage, chunk, wall_s = int(note["stage"]), int(note["chunk"]), float(note["wall_s"])
    except (KeyError, TypeError, ValueError):
        stage = chunk = -1
    if not (0 <= stage < len(algorithm.stages) and 0 <= chunk <= algorithm.stages[stage].chunks):
        raise InputError(f"{path}: stands where this run never is; restore it, or delete it to train from the start.")
    return TimedCheckpoint(
        Checkpoint(stage, chunk, restore_arrays(abstract_state(algorithm, stage), arrays, path)), wall_s
    )


def canonical_placement(now: Checkpoint) -> Checkpoint:
    """The same state, placed as one that was read from a file is.

    Arrays that several devices share out would compile to another program than those of a file, and another program
    may round differently: every chunk starts alike, so a resumed run repeats an undisturbed one bit for bit.
    """
    return _settled(now) if jax.device_count() > 1 else now


def _settled(now: Checkpoint) -> Checkpoint:
    state: Any = restore_arrays(now.state, flatten_arrays(now.state), Path(CHECKPOINT))
    return replace(now, state=state)
