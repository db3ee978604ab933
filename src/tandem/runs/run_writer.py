"""The files of a run that are written during training: progress, checkpoints, the learning curve and the front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tandem.io.atomic import explain_write_errors
from tandem.io.tables import write_json
from tandem.learn.algorithm import Algorithm
from tandem.learn.train_loop import Checkpoint, ChunkProgress, rounds_done, validate
from tandem.runs.callbacks import Callback, RunStart
from tandem.runs.checkpoint import TimedCheckpoint, chunks_done, write_checkpoint
from tandem.runs.final_evaluation import EvaluationTarget, measure_front
from tandem.runs.learning_curve import LearningCurve
from tandem.runs.progress_csv import ProgressTable
from tandem.runs.run import front_document, write_policies
from tandem.runs.run_dir import FRONT, PROGRESS, RunRecord, continue_with, write_record


class RunWriter:
    """The writer of one run's files during its training, which also calls the callbacks."""

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        callbacks: Sequence[Callback],
        target: EvaluationTarget | None,
        curve_points: int,
        then: str | None = None,
    ) -> None:
        self.folder = folder
        self.record = record
        self.callbacks = callbacks
        self._target = target
        self._curve_points = curve_points
        self._curve: LearningCurve | None = None
        self._then = then or continue_with(folder)

    def writing(self) -> AbstractContextManager[None]:
        """Return a context that converts write errors to InputError, with the fix and how to continue afterwards."""
        return explain_write_errors(self.folder, then=self._then)

    def start(self, algorithm: Algorithm, checkpoint: Checkpoint) -> ProgressTable:
        """Call the callbacks for the start of training, and open progress.csv."""
        rounds, seed = rounds_done(algorithm, checkpoint), self.record.seed
        devices, planned = algorithm.environment.size, algorithm.training_rounds
        for callback in self.callbacks:
            callback.on_start(RunStart(self.folder, algorithm.name, seed, devices, rounds, planned))
        if self._curve_points:
            self._curve = LearningCurve(self.folder, algorithm, seed, self._curve_points, self._target, rounds)
        with self.writing():
            return ProgressTable(self.folder / PROGRESS, chunks_done(algorithm, checkpoint))

    def end_chunk(self, progress: ChunkProgress, wall_s: float, checkpoint: Checkpoint, index: int) -> None:
        """Evaluate the front if a point of the learning curve is due, and call callbacks."""
        if self._curve is not None:
            with self.writing():
                self._curve.update(checkpoint, index)
        for callback in self.callbacks:
            callback.on_chunk(progress, wall_s)

    def save(self, algorithm: Algorithm, checkpoint: Checkpoint, wall_s: float) -> None:
        """Write a checkpoint, and the progress of training in run.json."""
        with self.writing():
            write_checkpoint(self.folder, TimedCheckpoint(checkpoint, wall_s))
            rounds = rounds_done(algorithm, checkpoint)
            write_record(self.folder, self.record.updated(training_rounds=rounds, wall_s=round(wall_s, 3)))

    def finish(self, algorithm: Algorithm, checkpoint: Checkpoint, wall_s: Callable[[], float]) -> None:
        """Validate the candidates, choose and measure the front, and write the files of a finished run."""
        for callback in self.callbacks:
            callback.on_validate()
        validation = validate(algorithm, checkpoint, self.record.seed)
        for callback in self.callbacks:
            callback.on_measure(len(validation.chosen))
        target = self._target or EvaluationTarget(algorithm.environment.system)
        result = measure_front(algorithm, validation, target)
        front = result.front
        record = self.record.updated(
            status="finished",
            training_rounds=rounds_done(algorithm, checkpoint),
            validation_rounds=validation.rounds,
            measuring_rounds=result.rounds,
            wall_s=round(wall_s(), 3),
            policies=len(front.policies),
            hypervolume=front.hypervolume,
            sparsity=front.sparsity,
            violation_rate=sum(policy.violation_rate for policy in front.policies) / len(front.policies),
            within_tolerance=validation.within_tolerance,
        )
        with self.writing():
            write_policies(self.folder, algorithm.environment.system, result.saved)
            write_json(self.folder / FRONT, front_document(front, target.seeds))
            write_record(self.folder, record)  # last: a run is finished when all other files exist
            if self._curve is not None:
                self._curve.finish(record)
        for callback in self.callbacks:
            callback.on_end(record)
