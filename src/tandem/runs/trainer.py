"""Training into run folders: the loop around compiled chunks of steps, with progress, checkpoints and resumption."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.feel.system import SystemBuilder, build_system
from tandem.io.atomic import explain_write_errors, folder_name
from tandem.io.tables import write_text
from tandem.learn.algorithm import Algorithm
from tandem.learn.config import AlgorithmConfig
from tandem.learn.registry import (
    DEFAULT_ALGORITHM,
    DEFAULT_PRESET,
    config_document,
    config_from_document,
    get_algorithm,
    make_config,
)
from tandem.learn.train_loop import (
    Checkpoint,
    ChunkProgress,
    init_checkpoint,
    is_finished,
    next_stage,
    select_run,
    step_checkpoint,
)
from tandem.rng import MAX_SEED
from tandem.runs.callbacks import Callback, ProgressFunction
from tandem.runs.checkpoint import canonical_placement, read_checkpoint
from tandem.runs.final_evaluation import EvaluationTarget
from tandem.runs.migrations import FORMAT
from tandem.runs.run import Run, open_run
from tandem.runs.run_dir import (
    RECORD,
    SCENARIO,
    RunRecord,
    continue_with,
    new_record,
    new_run_dir,
    read_record,
    read_scenario,
    remove_temp_files,
    run_lock,
    write_record,
)
from tandem.runs.run_writer import RunWriter
from tandem.scenario import Scenario, dump_scenario, load_scenario

CHECKPOINT_EVERY_S = 5.0  # at most this much work is repeated after a kill, unless a chunk takes longer


def train(
    scenario: str | Path | Scenario = "paper",
    algorithm: str = DEFAULT_ALGORITHM,
    preset: str = DEFAULT_PRESET,
    seed: int = 0,
    out: str | Path | None = None,
    options: Mapping[str, Any] | Sequence[str] = (),
    on_progress: Callable[[ChunkProgress], object] | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    target: EvaluationTarget | None = None,
    curve_points: int = 0,
    build_system: SystemBuilder = build_system,
) -> Run:
    """Train a front of policies and write it to a folder: ``out``, or one below ``runs``.

    ``options`` change hyperparameters of the preset, as in ``{"budget": 500_000}``. ``on_progress`` is called after
    each chunk. A run that was interrupted or killed can be continued with ``resume``. The front is measured on the
    scenario or, if one is given, on a ``target``; validation always uses the scenario. With ``curve_points``, the front
    is also measured that many times during training, into curve.csv.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed is {seed!r}; give a whole number from 0 to {MAX_SEED}.")
    scenario = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    folder = Path(out) if out is not None else default_folder(scenario.name, algorithm, preset, seed)
    plan = _Plan.make(scenario, algorithm, preset, options, build_system)
    with new_run_dir(folder):
        run = RunWriter(folder, plan.init_run_dir(folder, seed), _all(callbacks, on_progress), target, curve_points)
        _run_to_end(plan.algorithm, run)
    return open_run(folder, build_system=build_system)


def train_seeds(
    scenario: Scenario,
    algorithm: str,
    preset: str,
    folders: Mapping[int, Path],
    options: Mapping[str, Any] | Sequence[str] = (),
    callbacks: Mapping[int, Sequence[Callback]] | None = None,
    *,
    target: EvaluationTarget | None = None,
    curve_points: int = 0,
    build_system: SystemBuilder = build_system,
) -> tuple[Run, ...]:
    """Train one run for each seed, all in one program, into the folders given by seed.

    A GPU that one seed would leave partly idle trains several in about the same time; on a CPU there is no gain. No
    checkpoints are written: if the process may be killed, train the seeds one by one. The time of a run is its share of
    the total.
    """
    plan = _Plan.make(scenario, algorithm, preset, options, build_system)
    start_s = time.monotonic()

    def wall_s() -> float:
        return (time.monotonic() - start_s) / len(folders)

    with ExitStack() as stack:
        for folder in folders.values():
            stack.enter_context(new_run_dir(folder))
        runs = []
        for seed, folder in folders.items():
            record, own_callbacks = plan.init_run_dir(folder, seed), (callbacks or {}).get(seed, ())
            runs.append(RunWriter(folder, record, own_callbacks, target, curve_points, then="train again"))
        checkpoint = _train(plan.algorithm, init_checkpoint(plan.algorithm, list(folders)), runs, wall_s)
        for index, run in enumerate(runs):
            run.finish(plan.algorithm, select_run(checkpoint, index), wall_s)
    return tuple(open_run(folder, build_system=build_system) for folder in folders.values())


def resume(
    folder: str | Path,
    on_progress: Callable[[ChunkProgress], object] | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    target: EvaluationTarget | None = None,
    curve_points: int = 0,
    build_system: SystemBuilder = build_system,
) -> Run:
    """Continue a run that was interrupted from its last checkpoint; a finished run is only read.

    With the same number of devices of the same kind, it ends with the same bytes as a run that was not interrupted.
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
    algorithm = load_algorithm(folder, build_system=build_system)
    with ExitStack() as stack:
        with explain_write_errors(folder, then=continue_with(folder)):
            stack.enter_context(run_lock(folder))
        remove_temp_files(folder)
        run = RunWriter(folder, read_record(folder), _all(callbacks, on_progress), target, curve_points)
        _run_to_end(algorithm, run)
    return open_run(folder, build_system=build_system)


def default_folder(scenario: str, algorithm: str, preset: str, seed: int) -> Path:
    """Return the default folder of a run."""
    return Path("runs") / f"{folder_name(scenario)}-{algorithm}-{preset}-seed{seed}"


def override_shield(config: AlgorithmConfig, scenario: Scenario) -> Scenario:
    """Return the scenario with its shield switched on or off, if the configuration sets it."""
    if config.shield is None:
        return scenario
    return scenario.model_copy(update={"shield": scenario.shield.model_copy(update={"enabled": config.shield})})


def build_algorithm(
    name: str, scenario: Scenario, config: AlgorithmConfig, *, build_system: SystemBuilder = build_system
) -> Algorithm:
    """Build an algorithm for a scenario, and for the other fleet sizes that its configuration names.

    Raises InputError if the configuration does not fit the scenario, or the budget is too small.
    """
    samples = config.num_envs * scenario.rounds
    if samples % config.num_minibatches:
        raise InputError(
            f"options of {name}: num_minibatches is {config.num_minibatches}, which does not divide the {samples} "
            f"rounds of a training step ({config.num_envs} episodes of {scenario.rounds}); choose a divisor."
        )
    sizes: tuple[int, ...] = getattr(config, "fleet_sizes", ())
    environments = tuple(Environment(build_system(_resized(scenario, size))) for size in sizes)
    return get_algorithm(name)(Environment(build_system(scenario)), config, environments)


def load_algorithm(folder: Path, *, build_system: SystemBuilder = build_system) -> Algorithm:
    """Build the algorithm of the run in a folder."""
    record = read_record(folder)
    config = config_from_document(record.algorithm, record.config, f"{folder / RECORD}: config")
    return build_algorithm(record.algorithm, read_scenario(folder), config, build_system=build_system)


def _resized(scenario: Scenario, size: int) -> Scenario:
    return scenario.model_copy(update={"fleet": scenario.fleet.model_copy(update={"size": size})})


def _all(callbacks: Sequence[Callback], on_progress: Callable[[ChunkProgress], object] | None) -> tuple[Callback, ...]:
    return (*callbacks, *(() if on_progress is None else (ProgressFunction(on_progress),)))


@dataclass(frozen=True)
class _Plan:
    """A validated request to train."""

    scenario: Scenario
    preset: str
    algorithm: Algorithm

    @classmethod
    def make(
        cls,
        scenario: Scenario,
        algorithm: str,
        preset: str,
        options: Mapping[str, Any] | Sequence[str],
        build_system: SystemBuilder,
    ) -> _Plan:
        config = make_config(algorithm, preset, options)
        scenario = override_shield(config, scenario)
        return cls(scenario, preset, build_algorithm(algorithm, scenario, config, build_system=build_system))

    def init_run_dir(self, folder: Path, seed: int) -> RunRecord:
        """Write the scenario and the record; a folder with both is a run that can be resumed."""
        config = config_document(self.algorithm.config)
        record = new_record(self.scenario.name, self.algorithm.name, self.preset, config, seed)
        with explain_write_errors(folder, then="train again"):
            write_text(folder / SCENARIO, dump_scenario(self.scenario))
            write_record(folder, record)
        return record


def _run_to_end(algorithm: Algorithm, run: RunWriter) -> None:
    """Train one seed from the checkpoint in its folder, or from the start, to the end."""
    start_s = time.monotonic()
    saved = read_checkpoint(run.folder, algorithm, run.record.seed)

    def wall_s() -> float:
        return saved.wall_s + time.monotonic() - start_s

    checkpoint = _train(algorithm, saved.checkpoint, [run], wall_s)
    run.finish(algorithm, checkpoint, wall_s)


def _train(
    algorithm: Algorithm, checkpoint: Checkpoint, runs: Sequence[RunWriter], wall_s: Callable[[], float]
) -> Checkpoint:
    """Run all remaining chunks, of one seed or of several.

    After each chunk, every run gets a row in progress.csv. A single seed also gets a checkpoint every few seconds, and
    when the loop ends, including by an error or Ctrl-C; several seeds get none.
    """
    single = checkpoint.seeds is None
    saved, saved_s = checkpoint, time.monotonic()
    compiled: set[str] = set()
    with ExitStack() as stack:
        tables = [stack.enter_context(run.start(algorithm, checkpoint)) for run in runs]
        try:
            while not is_finished(algorithm, checkpoint):
                stage = next_stage(algorithm, checkpoint).name
                if stage not in compiled:
                    compiled.add(stage)
                    for callback in (callback for run in runs for callback in run.callbacks):
                        callback.on_compile(stage)
                after, progress = step_checkpoint(algorithm, checkpoint)
                for run, table, row in zip(runs, tables, progress, strict=True):
                    with run.writing():
                        table.add(row, wall_s())
                # After the rows are written: a checkpoint is never ahead of progress.csv.
                checkpoint = canonical_placement(after) if single else after
                for index, (run, row) in enumerate(zip(runs, progress, strict=True)):
                    run.end_chunk(row, wall_s(), checkpoint, index)
                if single and time.monotonic() - saved_s >= CHECKPOINT_EVERY_S:
                    runs[0].save(algorithm, checkpoint, wall_s())
                    saved, saved_s = checkpoint, time.monotonic()
        finally:
            if single and checkpoint is not saved:
                runs[0].save(algorithm, checkpoint, wall_s())
    return checkpoint
