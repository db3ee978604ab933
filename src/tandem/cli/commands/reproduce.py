"""``tandem reproduce``: the paper's figures and tables, and the report that puts our numbers beside its claims."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from tandem.cli.options import JsonOption, print_json
from tandem.cli.task_options import DataOption, progress_bar, task_overrides
from tandem.errors import InputError

if TYPE_CHECKING:
    from tandem.experiments.report import Report
    from tandem.experiments.sweep import Executor, JobOutcome

# Written out: the modules that define these names import JAX, and --help should not wait for it.
NAMES = (
    "pareto-fronts, devices, arrivals, convergence, beta, latency-cdf, top3, all of these, or reference; on a task "
    "accuracy-mapping, top3 or all of these"
)
SCALES = (
    "smoke (minutes; checks that it runs), cpu (an hour or two on two cores) or full (ten seeds of 10^6 rounds; a GPU)"
)
EXECUTORS = "serial (in this process), process (--workers processes on this machine) or ray (a cluster)"


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help=f"Experiments: {NAMES}; default: all.", show_default=False),
    ] = None,
    scale: Annotated[str, typer.Option(metavar="NAME", help=f"{SCALES}.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for trials, data, figures and report; default: reproduced/SCALE, or SCALE-TASK.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Measure accuracy on a task: digits or cifar10; default for accuracy-mapping: digits.",
            show_default=False,
        ),
    ] = None,
    data: DataOption = None,
    algorithms: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            help="Algorithm to include; may be repeated; default: all seven; c-moppo and pc-ppo for accuracy-mapping.",
            show_default=False,
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Where trials run: {EXECUTORS}; default: process if --workers is given, else serial.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes on this machine; default: 1.", show_default=False)
    ] = None,
    seeds_per_job: Annotated[
        int | None,
        typer.Option(
            min=1, help="Seeds to train in one program; default: all on a GPU, 1 on a CPU.", show_default=False
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the Ray cluster; default: start Ray on this machine.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        float, typer.Option(min=0.0, help="GPUs per job that are requested from Ray; may be a fraction.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Reproduce figures and tables of the paper: data (CSV), figures (PNG, SVG) and a report (Markdown).

    Every training is a trial with its own folder below OUT/trials. Finished trials are never run again: after an
    interruption the same command continues where it stopped. Several commands may use a folder one after another.
    """
    from tandem.experiments.scale import load_scale

    chosen = load_scale(scale)
    task = "digits" if task is None and "accuracy-mapping" in (names or []) else task
    task_overrides(task, data)  # refuses unknown tasks and missing data
    executor = executor or ("serial" if workers in (None, 1) else "process")
    if executor == "ray" and "reference" in (names or []):
        raise InputError("reference: needs the run folders, which stay on a Ray cluster; leave --executor ray out.")
    chosen_executor = _make_executor(executor, workers, address, gpus)
    if executor == "serial":
        from tandem.cli.commands.train import use_cores

        use_cores()
    from tandem.experiments.executors import default_seeds_per_job
    from tandem.experiments.plan import make_plan, select_experiments
    from tandem.experiments.plan import reproduce as run_plan

    folder = out or Path("reproduced") / (scale if task is None else f"{scale}-{task}")
    if task is not None:
        from tandem.experiments.task_calibration import calibrate_scale

        select_experiments(names or [], True, algorithms or [])  # refuse unknown names before calibrating
        with progress_bar(f"Calibrating on {task}, unless that is done") as progress:
            chosen = calibrate_scale(chosen, task, data, folder, lambda done, of: progress(done, of, "cells"))
    plan = make_plan(names or [], chosen, algorithms or [])
    with SweepProgress(folder) as callback:
        per_job = seeds_per_job or default_seeds_per_job(chosen.seeds)
        report = run_plan(plan, folder, chosen_executor, per_job, callback)
    if as_json:
        print_json(_document(report, folder))
    else:
        _print(report, folder)


class SweepProgress:
    """How a sweep looks while it goes on: a bar on a terminal, a line for each job elsewhere, both on stderr."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=self._console) if self._console.is_terminal else None
        self._task = self._bar.add_task("trials", total=None) if self._bar else None
        self._finished = self._trials = self._begun_with = 0
        self._began = time.monotonic()

    def __enter__(self) -> SweepProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        if kind is KeyboardInterrupt and self._trials:
            self._say(f"{self._finished} of {self._trials} trials are finished; the same command continues from there.")

    def on_start(self, finished: int, trials: int) -> None:
        self._finished = self._begun_with = finished
        self._trials = trials
        self._began = time.monotonic()
        self._say(f"{trials} trials, {finished} already finished, into {self._folder}")
        if self._bar and self._task is not None:
            self._bar.update(self._task, total=trials, completed=finished)

    def on_job_end(self, outcome: JobOutcome) -> None:
        self._finished += len(outcome.job) if outcome.failure is None else 0
        seeds = f" and {len(outcome.job) - 1} more seeds" if len(outcome.job) > 1 else ""
        how = f"failed: {outcome.failure}" if outcome.failure else "done"
        self._say(f"{outcome.job[0].name}{seeds}: {how} ({self._finished} of {self._trials}{self._left()})")
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=self._finished)

    def _left(self) -> str:
        from tandem.cli.progress import duration

        done = self._finished - self._begun_with
        if done == 0 or self._finished == self._trials:
            return ""
        each = (time.monotonic() - self._began) / done
        return f", {duration(each * (self._trials - self._finished))} left"

    def _say(self, line: str) -> None:
        console = self._bar.console if self._bar else self._console
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _make_executor(name: str, workers: int | None, address: str | None, gpus: float) -> Executor:
    if name not in ("serial", "process", "ray"):
        raise InputError(f"--executor {name}: unknown executor; choose serial, process or ray.")
    if name != "process" and workers not in (None, 1):
        raise InputError(f"--workers {workers}: is for --executor process; leave one of them out.")
    if name != "ray" and (address is not None or gpus):
        raise InputError("--address and --gpus are for a Ray cluster; add --executor ray, or leave them out.")
    from tandem.experiments.executors import ProcessExecutor, RayExecutor, SerialExecutor

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
    console.print(f"Claims: {counts}.", highlight=False)
    console.print(f"Written to {folder}/report.md", highlight=False, markup=False, soft_wrap=True)
