"""``tandem train``: train a front of policies into a run folder, from which an interrupted run can be resumed."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem import api
from tandem.cli.cores import use_cores
from tandem.cli.formatting import format_duration
from tandem.cli.options import JsonOption, SetOption, print_json
from tandem.cli.training_progress import TrainingProgress
from tandem.errors import InputError
from tandem.io.yaml_reader import read_assignment
from tandem.learn.registry import (
    ALGORITHMS,
    DEFAULT_ALGORITHM,
    DEFAULT_PRESET,
    config_from_document,
    override_config,
)
from tandem.runs.callbacks import Callback, TensorBoard, TrainingFront
from tandem.runs.front import describe_discarded, describe_tolerance
from tandem.runs.run import Run
from tandem.runs.run_dir import RECORD, RunRecord, continue_with, read_record, read_scenario
from tandem.runs.trainer import default_folder, override_shield
from tandem.scenario import load_scenario

PRESETS = list(dict.fromkeys(preset for algorithm in ALGORITHMS.values() for preset in algorithm.presets))


def train(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            help="A preset (see 'tandem scenario list') or a YAML file. Default: paper.",
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Algorithm: {', '.join(ALGORITHMS)}. Default: {DEFAULT_ALGORITHM}.",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Hyperparameter preset: {', '.join(PRESETS)}. Default: {DEFAULT_PRESET}.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**31, help="Random seed. Default: 0.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the run. Default: runs/SCENARIO-ALGORITHM-PRESET-seedN.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training budget in environment rounds, validation included. Default: the preset's.",
            show_default=False,
        ),
    ] = None,
    shield: Annotated[
        bool | None,
        typer.Option(
            "--shield/--no-shield",
            help="Turn the shield on or off. Default: as the preset and the scenario say.",
            show_default=False,
        ),
    ] = None,
    overrides: SetOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--train-set", metavar="NAME=VALUE", help="Override a hyperparameter, e.g. clip_eps=0.2. May be repeated."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Resume the unfinished run in this folder.", show_default=False),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard logs too; needs the extra 'tensorboard'.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a front of policies for a scenario.

    Writes run.json, scenario.yaml, progress.csv (one row per chunk of training steps), checkpoints, and at the end
    policies.safetensors and front.json, with the accuracy, latency (s) and energy (J) of every policy on new seeds.
    Ctrl-C, a crash or a kill loses a few seconds of work at most; continue with --resume.
    """
    options = dict(read_assignment(text, "--train-set", "clip_eps=0.2") for text in settings or ())
    if budget is not None:
        options["budget"] = budget
    if shield is not None:
        options["shield"] = shield
    changes = overrides or []
    if resume is None:
        run = _start(scenario, changes, algorithm, preset, seed, out, options, tensorboard)
    else:
        given = {"--algorithm": algorithm, "--preset": preset, "--seed": seed, "--out": out}
        run = _resume(resume, given, scenario, changes, options, tensorboard)
    if as_json:
        print_json(run.summary())
    else:
        _print(run)


def _start(
    scenario: str | None,
    changes: list[str],
    algorithm: str | None,
    preset: str | None,
    seed: int | None,
    out: Path | None,
    options: dict[str, Any],
    tensorboard: bool,
) -> Run:
    loaded = load_scenario("paper" if scenario is None else scenario, changes)
    use_cores()
    algorithm, preset, seed = algorithm or DEFAULT_ALGORITHM, preset or DEFAULT_PRESET, seed or 0
    folder = out or default_folder(loaded.name, algorithm, preset, seed)
    with _callbacks(folder, tensorboard) as callbacks:
        return api.train(loaded, algorithm, preset, seed, folder, options, callbacks=callbacks)


def _resume(
    folder: Path,
    given: dict[str, Any],
    scenario: str | None,
    changes: list[str],
    options: dict[str, Any],
    tensorboard: bool,
) -> Run:
    record = read_record(folder)
    _check_same_run(folder, record, given, scenario, changes, options)
    # With as many devices as it started with: sums over another number of shards may round differently.
    use_cores(record.device.count if record.device.platform == "cpu" else None)
    if record.status == "finished":
        typer.echo(f"{folder}: is already finished; nothing was done.", err=True)
        return api.resume(folder)
    with _callbacks(folder, tensorboard) as callbacks:
        return api.resume(folder, callbacks=callbacks)


def _check_same_run(
    folder: Path,
    record: RunRecord,
    given: dict[str, Any],
    scenario: str | None,
    changes: list[str],
    options: dict[str, Any],
) -> None:
    """Refuse arguments that contradict the run: it is resumed as it was started, or not at all."""
    fix = "leave that out, or train into another folder without --resume"
    known = {"--algorithm": record.algorithm, "--preset": record.preset, "--seed": record.seed, "--out": folder}
    for name, value in given.items():
        if value is not None and value != known[name]:
            raise InputError(f"{name} {value}: the run in {folder} was started with {known[name]}; {fix}.")
    config = config_from_document(record.algorithm, record.config, f"{folder / RECORD}: options")
    for name, value in options.items():
        if override_config(record.algorithm, config, {name: value}) != config:
            raise InputError(
                f"{name}={value}: the run in {folder} was started with {name}={getattr(config, name)}; {fix}."
            )
    if scenario is not None or changes:
        asked = read_scenario(folder, changes) if scenario is None else load_scenario(scenario, changes)
        if override_shield(config, asked) != read_scenario(folder):
            raise InputError(f"{folder}: its scenario differs from SCENARIO and --set; {fix}.")


@contextlib.contextmanager
def _callbacks(folder: Path, tensorboard: bool) -> Iterator[list[Callback]]:
    """Make the callbacks of a training run; if it does not come to its end, say how to continue."""
    extra: list[Callback] = [TensorBoard()] if tensorboard else []
    try:
        with TrainingProgress() as progress:
            yield [progress, TrainingFront(), *extra]
    except KeyboardInterrupt:
        if not (folder / RECORD).exists():
            raise
        typer.echo(f"tandem: interrupted; the run is saved, {continue_with(folder)}.", err=True)
        raise typer.Exit(130) from None


def _print(run: Run) -> None:
    document = run.summary()
    console = Console()
    console.print(
        f"[bold]{document['algorithm']}[/bold] on [bold]{escape(document['scenario'])}[/bold]: "
        f"preset {document['preset']}, seed {document['seed']}",
        highlight=False,
    )
    console.print(f"({ALGORITHMS[run.algorithm_name].summary})", style="dim", highlight=False)
    table = Table("", "", box=None, show_header=False)
    table.add_row("hypervolume", f"{document['hypervolume']:.5g}")
    table.add_row("sparsity", f"{document['sparsity']:.4g}")
    table.add_row("policies", f"{document['policies']}")
    table.add_row("rounds in violation", f"{document['violation_rate']:.2%}")
    if run.front.discards:
        table.add_row("discarded samples", f"{describe_discarded(run.front)} of those made")
    table.add_row("environment rounds", f"{document['rounds']:,}")
    table.add_row("time", format_duration(document["wall_s"]))
    table.add_row("rounds/s", f"{document['rounds_per_s'] or 0:,.0f}")
    console.print(table)
    if not document["within_tolerance"]:
        advice = "Train longer." if run.system().shielded else "Train longer, or with --shield."
        console.print(
            f"In validation no policy was within the tolerance of {100 * run.config.tolerance:g} % of rounds in "
            f"violation; the run has only the one with the lowest violation rate. {advice}",
            highlight=False,
            soft_wrap=True,
        )
    note = describe_tolerance(run.front)
    if note is not None:
        console.print(note, highlight=False, soft_wrap=True)
    folder = shlex.quote(document["folder"])
    console.print(f"Written to {document['folder']}/", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Next: tandem front {folder}, tandem pick {folder}", highlight=False, markup=False, soft_wrap=True)
