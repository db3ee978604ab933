"""Training into a folder, and going on there: the loop around the compiled chunks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tandem.errors import InputError
from tandem.feel.system import SystemBuilder, build_system
from tandem.io.tables import write_json, write_text
from tandem.learn import train_loop as engine
from tandem.learn.algorithm import Algorithm
from tandem.learn.config import AlgorithmConfig
from tandem.learn.registry import DEFAULT_ALGORITHM, DEFAULT_PRESET, config_document, config_from_document, make_config
from tandem.learn.train_loop import Progress, rounds_done
from tandem.rng import FINAL_EVALUATION_SEEDS, MAX_SEED
from tandem.runs.checkpoint import TimedCheckpoint, canonical_placement, chunks_done, read_checkpoint, write_checkpoint
from tandem.runs.final_evaluation import EvaluationTarget, measure_front
from tandem.runs.migrations import FORMAT
from tandem.runs.problem import build_algorithm, override_shield
from tandem.runs.progress_csv import ProgressTable
from tandem.runs.run import Run, front_document, open_run, write_policies
from tandem.runs.run_dir import (
    FRONT,
    PROGRESS,
    RECORD,
    SCENARIO,
    RunRecord,
    new_record,
    new_run_dir,
    read_record,
    read_scenario,
    remove_temp_files,
    run_lock,
    write_record,
)
from tandem.scenario import Scenario, dump_scenario, load_scenario

CHECKPOINT_EVERY_S = 5.0  # at most this much work is done again after a kill, or a chunk where chunks last longer


class Callback:
    """Told how a training goes, between chunks. This one does nothing; its heirs show it."""

    def on_start(self, folder: Path, algorithm: Algorithm, rounds: int) -> None:
        """Training begins, or goes on after so many rounds."""

    def on_compile(self, stage: str) -> None:
        """The first chunk of a kind of stage is about to be run, and its program has to be compiled before."""

    def on_chunk(self, progress: Progress, wall_s: float) -> None:
        """A chunk is done."""

    def on_checkpoint(self, algorithm: Algorithm, now: engine.Checkpoint, seed: int, index: int | None = None) -> None:
        """The state that the chunk has left; if several seeds are trained together, the one of it at the index."""

    def on_validate(self) -> None:
        """Training is done, candidates for the front are played."""

    def on_measure(self, policies: int) -> None:
        """The front is chosen, and is measured."""

    def on_end(self, record: RunRecord) -> None:
        """Everything is written."""


class _Calling(Callback):
    def __init__(self, function: Callable[[Progress], object]) -> None:
        self._function = function

    def on_chunk(self, progress: Progress, wall_s: float) -> None:
        self._function(progress)


def train(
    scenario: str | Path | Scenario = "paper",
    algorithm: str = DEFAULT_ALGORITHM,
    preset: str = DEFAULT_PRESET,
    seed: int = 0,
    out: str | Path | None = None,
    options: Mapping[str, Any] | Sequence[str] = (),
    on_progress: Callable[[Progress], object] | None = None,
    listeners: Sequence[Callback] = (),
    yardstick: EvaluationTarget | None = None,
    *,
    build_system: SystemBuilder = build_system,
) -> Run:
    """Train a front of policies and write it to a folder: ``out``, or one below ``runs`` named after what is trained.

    ``options`` change the preset's, as in ``{"rounds": 500_000}``. ``on_progress`` is called after every chunk of
    steps. Interrupted or killed, it goes on with ``resume``. The front is measured on the scenario, unless a
    ``yardstick`` is given; what is validated and chosen is always so by the scenario.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed is {seed!r}; give a whole number from 0 to {MAX_SEED}.")
    chosen = make_config(algorithm, preset, options)
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    loaded = override_shield(chosen, loaded)
    ready = build_algorithm(algorithm, loaded, chosen, build_system=build_system)
    folder = Path(out) if out is not None else default_folder(loaded.name, algorithm, preset, seed)
    with new_run_dir(folder):
        record = init_run_dir(folder, loaded, algorithm, preset, chosen, seed)
        _run_to_end(folder, record, ready, _all(listeners, on_progress), yardstick)
    return open_run(folder, build_system=build_system)


def resume(
    folder: str | Path,
    on_progress: Callable[[Progress], object] | None = None,
    listeners: Sequence[Callback] = (),
    yardstick: EvaluationTarget | None = None,
    *,
    build_system: SystemBuilder = build_system,
) -> Run:
    """Go on with a run that was interrupted, from its last checkpoint; a finished one is only read.

    On as many devices of the same kind it ends with the same bytes as a run that was never interrupted.
    """
    folder = Path(folder)
    record = read_record(folder)
    if record.status == "finished":
        return open_run(folder, build_system=build_system)
    if record.format < FORMAT:
        raise InputError(
            f"{folder}: is an unfinished run of format {record.format}, which this Tandem cannot continue; train again "
            f"into another folder, or continue it with Tandem {record.tandem}."
        )
    ready = _algorithm_of(folder, record, build_system)
    with run_lock(folder):
        remove_temp_files(folder)
        _run_to_end(folder, read_record(folder), ready, _all(listeners, on_progress), yardstick)
    return open_run(folder, build_system=build_system)


def init_run_dir(
    folder: Path, scenario: Scenario, algorithm: str, preset: str, options: AlgorithmConfig, seed: int
) -> RunRecord:
    """Write what a run is known by from its beginning."""
    write_text(folder / SCENARIO, dump_scenario(scenario))
    record = new_record(scenario.name, algorithm, preset, config_document(options), seed)
    write_record(folder, record)
    return record


def default_folder(scenario: str, algorithm: str, preset: str, seed: int) -> Path:
    """Where a run goes if nobody says where."""
    name = re.sub(r"[^\w.-]+", "-", scenario)
    return Path("runs") / f"{name}-{algorithm}-{preset}-seed{seed}"


def _algorithm_of(folder: Path, record: RunRecord, build_system: SystemBuilder) -> Algorithm:
    options = config_from_document(record.algorithm, record.config, f"{folder / RECORD}: config")
    return build_algorithm(record.algorithm, read_scenario(folder), options, build_system=build_system)


def _all(listeners: Sequence[Callback], on_progress: Callable[[Progress], object] | None) -> list[Callback]:
    return [*listeners, *([] if on_progress is None else [_Calling(on_progress)])]


def _run_to_end(
    folder: Path, record: RunRecord, algorithm: Algorithm, listeners: list[Callback], yardstick: EvaluationTarget | None
) -> None:
    """From where the folder says it stands to the end."""
    began = time.monotonic()
    standing = read_checkpoint(folder, algorithm, record.seed)

    def wall_s(before: float = standing.wall_s) -> float:
        return before + time.monotonic() - began

    now = _train(folder, record, algorithm, standing, listeners, wall_s)
    finish_run(folder, record, algorithm, now, listeners, wall_s, yardstick)


def finish_run(
    folder: Path,
    record: RunRecord,
    algorithm: Algorithm,
    now: engine.Checkpoint,
    listeners: Sequence[Callback],
    wall_s: Callable[[], float],
    yardstick: EvaluationTarget | None = None,
) -> None:
    """Validate, choose, measure, and write what a finished run has."""
    for listener in listeners:
        listener.on_validate()
    delivery = engine.validate(algorithm, now, record.seed)
    for listener in listeners:
        listener.on_measure(len(delivery.chosen))
    result = measure_front(algorithm, delivery, yardstick)
    write_policies(folder, algorithm.environment.system, result.stored)
    write_json(
        folder / FRONT, front_document(result.front, FINAL_EVALUATION_SEEDS if yardstick is None else yardstick.seeds)
    )
    front = result.front
    record = record.updated(
        status="finished",
        training_rounds=rounds_done(algorithm, now),
        validation_rounds=delivery.rounds,
        measuring_rounds=result.rounds,
        wall_s=round(wall_s(), 3),
        policies=len(front.policies),
        hypervolume=front.hypervolume,
        sparsity=front.sparsity,
        violation_rate=sum(policy.violation_rate for policy in front.policies) / len(front.policies),
        within_tolerance=delivery.within_tolerance,
    )
    write_record(folder, record)  # last of all: a run is finished when everything else is there
    for listener in listeners:
        listener.on_end(record)


def _train(
    folder: Path,
    record: RunRecord,
    algorithm: Algorithm,
    standing: TimedCheckpoint,
    listeners: list[Callback],
    wall_s: Callable[[], float],
) -> engine.Checkpoint:
    """The loop: after each chunk a row of progress, and now and then, and whenever it ends, a checkpoint."""
    now = saved = standing.checkpoint
    saved_at = time.monotonic()

    def save() -> None:
        nonlocal saved, saved_at
        if now is not saved:
            write_checkpoint(folder, TimedCheckpoint(now, wall_s()))
            write_record(folder, record.updated(training_rounds=rounds_done(algorithm, now), wall_s=round(wall_s(), 3)))
            saved, saved_at = now, time.monotonic()

    compiled: set[str] = set()
    for listener in listeners:
        listener.on_start(folder, algorithm, rounds_done(algorithm, now))
    with ProgressTable(folder / PROGRESS, chunks_done(algorithm, now)) as table:
        try:
            while not engine.is_finished(algorithm, now):
                stage = engine.next_stage(algorithm, now).name
                if stage not in compiled:
                    for listener in listeners:
                        listener.on_compile(stage)
                    compiled.add(stage)
                after, (progress,) = engine.step_checkpoint(algorithm, now)
                table.add(progress, wall_s())
                now = canonical_placement(after)  # after its row: a checkpoint never stands beyond the table
                for listener in listeners:
                    listener.on_chunk(progress, wall_s())
                    listener.on_checkpoint(algorithm, now, record.seed)
                if time.monotonic() - saved_at >= CHECKPOINT_EVERY_S:
                    save()
        finally:
            save()
    return now
