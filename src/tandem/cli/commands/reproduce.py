"""``tandem reproduce``: the paper's figures and tables, and a report that compares our numbers with its claims."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console

from tandem.cli.cores import use_cores
from tandem.cli.formatting import format_duration
from tandem.cli.options import JsonOption, print_json
from tandem.cli.progress import ProgressDisplay, progress_bar
from tandem.cli.task_options import TASKS, DataOption, task_overrides
from tandem.errors import InputError
from tandem.experiments.executors import ProcessExecutor, RayExecutor, SerialExecutor, default_seeds_per_job
from tandem.experiments.plan import make_plan, select_experiments
from tandem.experiments.plan import reproduce as run_plan
from tandem.experiments.registry import BY_NAME_ONLY, PAPER_EXPERIMENTS, TASK_EXPERIMENTS
from tandem.experiments.report import Report
from tandem.experiments.scale import SCALES, load_scale
from tandem.experiments.sweep import Executor, JobOutcome
from tandem.experiments.task_calibration import calibrate_scale
from tandem.learn.registry import ALGORITHMS

PAPER_NAMES = ", ".join(experiment.name for experiment in PAPER_EXPERIMENTS)
TASK_NAMES = ", ".join(experiment.name for experiment in TASK_EXPERIMENTS)
EXTRA_NAMES = ", ".join(experiment.name for experiment in BY_NAME_ONLY)


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help=f"Experiments: {PAPER_NAMES} or all (of these); {EXTRA_NAMES}; with --task {TASK_NAMES} or all. "
            "Default: all.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Scale: {', '.join(SCALES)}. smoke takes minutes and only shows that everything runs, cpu takes one "
            "or two hours on two cores, full (10 seeds, 10^6 rounds) needs a GPU.",
        ),
    ] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for trials, data, figures and report. Default: reproduced/SCALE or reproduced/SCALE-TASK.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Measure accuracy on a task: {TASKS}. Default: none, but digits for accuracy-mapping.",
            show_default=False,
        ),
    ] = None,
    data: DataOption = None,
    algorithms: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            help=f"Algorithm to include; may be repeated: {', '.join(ALGORITHMS)}. Default: those of each experiment.",
            show_default=False,
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Where trials run: serial (in this process), process (--workers processes on this machine) or ray (a "
            "cluster). Default: process if --workers is given, else serial.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes on this machine. Default: 1.", show_default=False)
    ] = None,
    seeds_per_job: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of seeds to train in one program. Default: all on a GPU, 1 on a CPU.",
            show_default=False,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the Ray cluster. Default: start Ray on this machine.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[float, typer.Option(min=0.0, help="GPUs per job on a Ray cluster; may be a fraction.")] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Reproduce the figures and tables of the paper.

    Writes data (CSV), figures (PNG, SVG) and a report (Markdown). Every training run is a trial with its own folder
    below OUT/trials. Finished trials are never run again: after an interruption the same command continues where it
    stopped. Several commands may use a folder one after another.
    """
    chosen = load_scale(scale)
    task = "digits" if task is None and "accuracy-mapping" in (names or []) else task
    task_overrides(task, data)  # raises InputError for unknown tasks and missing data
    executor = executor or ("serial" if workers in (None, 1) else "process")
    if executor == "ray" and "reference" in (names or []):
        raise InputError("reference: needs the run folders, which stay on a Ray cluster; leave --executor ray out.")
    chosen_executor = _make_executor(executor, workers, address, gpus)
    if executor == "serial":
        use_cores()
    folder = out or Path("reproduced") / (scale if task is None else f"{scale}-{task}")
    if task is not None:
        select_experiments(names or [], True, algorithms or [])  # check the names before the calibration
        with progress_bar(f"Calibrating on {task}, unless that is done") as update:
            chosen = calibrate_scale(chosen, task, data, folder, lambda done, total: update(done, total, "cells"))
    plan = make_plan(names or [], chosen, algorithms or [])
    with SweepProgress(folder) as progress:
        report = run_plan(plan, folder, chosen_executor, seeds_per_job or default_seeds_per_job(chosen.seeds), progress)
    if as_json:
        print_json(_document(report, folder))
    else:
        _print(report, folder)


class SweepProgress:
    """The progress display of a sweep: a count of finished trials, and a line for each job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._display = ProgressDisplay()
        self._finished = self._total = self._finished_before = 0
        self._started_at = time.monotonic()

    def __enter__(self) -> SweepProgress:
        self._display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)
        if kind is KeyboardInterrupt and self._total:
            self._display.print(f"{self._finished} of {self._total} trials are finished; the same command continues.")

    def on_start(self, finished: int, total: int) -> None:
        self._finished = self._finished_before = finished
        self._total = total
        self._started_at = time.monotonic()
        self._display.print(f"{total} trials, {finished} of them already finished, into {self._folder}")
        self._display.update(finished, total, "trials")

    def on_job_end(self, outcome: JobOutcome) -> None:
        self._finished += len(outcome.job) if outcome.failure is None else 0
        seeds = f" and {len(outcome.job) - 1} more seeds" if len(outcome.job) > 1 else ""
        result = f"failed: {outcome.failure}" if outcome.failure else "done"
        counts = f"{self._finished} of {self._total}{self._time_left()}"
        self._display.print(f"{outcome.job[0].name}{seeds}: {result} ({counts})")
        self._display.update(self._finished, self._total, "trials")

    def _time_left(self) -> str:
        """Estimate the time left from all jobs of this sweep, since there are few jobs of different lengths."""
        done = self._finished - self._finished_before
        if done == 0 or self._finished == self._total:
            return ""
        each = (time.monotonic() - self._started_at) / done
        return f", {format_duration(each * (self._total - self._finished))} left"


def _make_executor(name: str, workers: int | None, address: str | None, gpus: float) -> Executor:
    if name not in ("serial", "process", "ray"):
        raise InputError(f"--executor {name}: unknown executor; choose serial, process or ray.")
    if name != "process" and workers not in (None, 1):
        raise InputError(f"--workers {workers}: is for --executor process; leave one of them out.")
    if name != "ray" and (address is not None or gpus):
        raise InputError("--address and --gpus are for a Ray cluster; add --executor ray, or leave them out.")
    if name == "ray":
        return RayExecutor(address, gpus=gpus)
    return SerialExecutor() if name == "serial" else ProcessExecutor(workers or 1)


def _document(report: Report, folder: Path) -> dict[str, object]:
    statements = [
        {"experiment": row["experiment"], "id": row["id"], "stated": row["claim"], "paper": row["paper"]}
        | {"found": row["ours"], "verdict": row["verdict"]}
        for row in report.claims()
    ]
    return {"folder": str(folder), "verdicts": report.verdicts(), "statements": statements}


def _print(report: Report, folder: Path) -> None:
    console = Console()
    colours = {"agrees": "green", "disagrees": "red", "open": "yellow"}
    for section in report.sections:
        console.print(f"[bold]{section.title}[/bold] ({section.name})", highlight=False)
        for one in section.claims:
            console.print(
                f"  [{colours[one.verdict]}]{one.verdict:9}[/] ", one.claim.text, highlight=False, soft_wrap=True
            )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.verdicts().items())
    console.print(f"Claims of the paper: {counts}.", highlight=False)
    console.print(f"Written to {folder}/report.md", highlight=False, markup=False, soft_wrap=True)
