"""``tandem reproduce``: the paper's figures and tables, and the report that puts our numbers beside its statements."""

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

# As text: what they are is only known to modules that import JAX, and help should not wait for it.
NAMES = (
    "pareto-fronts, devices, arrivals, convergence, beta, latency-cdf, top3, all of these, or reference; on a task "
    "accuracy-mapping, top3 or all of these"
)
SCALES = (
    "smoke (minutes: whether it runs), cpu (an hour or two on two cores) or full (10 seeds of 10^6 rounds, on a GPU)"
)


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help=f"{NAMES}; default: all.", show_default=False)
    ] = None,
    scale: Annotated[str, typer.Option(metavar="NAME", help=f"{SCALES}.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for cells, data, figures and report; default: reproduced/SCALE, or SCALE-TASK.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Measure accuracy on a task: digits or cifar10; accuracy-mapping does, on digits if not said.",
            show_default=False,
        ),
    ] = None,
    data: DataOption = None,
    algorithms: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            help="Compare only this one, or with it if repeated; default: all seven; c-moppo and pc-ppo for "
            "accuracy-mapping.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes to run at a time on this machine.")] = 1,
    together: Annotated[
        int | None,
        typer.Option(
            min=1, help="Seeds to train in one program; default: all on a GPU, 1 on a CPU.", show_default=False
        ),
    ] = None,
    engine: Annotated[str, typer.Option(metavar="NAME", help="Where cells run: here, or ray (a cluster).")] = "here",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Of the Ray cluster; without one, Ray starts on this machine.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        float, typer.Option(min=0.0, help="GPUs that a job asks a Ray cluster for; a share of one is allowed.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Reproduce figures and tables of the paper: data (CSV), figures (PNG, SVG) and a report (Markdown, HTML).

    Every training is a cell, in a folder of its own below OUT/cells. Finished cells are never run again: interrupted or
    killed, the same command goes on where it stopped; several commands may share a folder one after another.
    """
    from tandem.experiments.scale import scale_named

    chosen = scale_named(scale)
    task = "digits" if task is None and "accuracy-mapping" in (names or []) else task
    task_overrides(task, data)  # refuses what is no task, or lacks its data
    if engine == "ray" and "reference" in (names or []):
        raise InputError("reference: measures policies again, and a Ray cluster keeps them; leave --engine ray out.")
    where = _engine(engine, address, gpus, workers)
    if engine == "here" and workers == 1:
        from tandem.cli.commands.train import use_cores

        use_cores()
    from tandem.experiments.executors import seeds_together
    from tandem.experiments.reproduce import experiments_named, plan
    from tandem.experiments.reproduce import reproduce as carry_out

    folder = out or Path("reproduced") / (scale if task is None else f"{scale}-{task}")
    if task is not None:
        from tandem.experiments.task_calibration import calibrate_scale

        experiments_named(names or [], True, algorithms or [])  # before anything is measured for them
        with progress_bar(f"Calibrating on {task}, unless that is done") as progress:
            chosen = calibrate_scale(chosen, task, data, folder, lambda done, of: progress(done, of, "cells"))
    what = plan(names or [], chosen, algorithms or [])
    with SweepProgress(folder) as watcher:
        report = carry_out(what, folder, where, together or seeds_together(chosen.seeds), watcher)
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
        self._task = self._bar.add_task("cells", total=None) if self._bar else None
        self._finished = self._cells = self._begun_with = 0
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
        if kind is KeyboardInterrupt and self._cells:
            self._say(f"{self._finished} of {self._cells} cells are finished; the same command goes on from there.")

    def on_start(self, finished: int, cells: int) -> None:
        self._finished = self._begun_with = finished
        self._cells = cells
        self._began = time.monotonic()
        self._say(f"{cells} cells, {finished} of them finished already, into {self._folder}")
        if self._bar and self._task is not None:
            self._bar.update(self._task, total=cells, completed=finished)

    def on_job_end(self, done: JobOutcome) -> None:
        self._finished += len(done.job) if done.failure is None else 0
        seeds = f" and {len(done.job) - 1} more seeds" if len(done.job) > 1 else ""
        how = f"failed: {done.failure}" if done.failure else "done"
        self._say(f"{done.job[0].name}{seeds}: {how} ({self._finished} of {self._cells}{self._left()})")
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=self._finished)

    def _left(self) -> str:
        from tandem.cli.progress import duration

        done = self._finished - self._begun_with
        if done == 0 or self._finished == self._cells:
            return ""
        each = (time.monotonic() - self._began) / done
        return f", {duration(each * (self._cells - self._finished))} left"

    def _say(self, line: str) -> None:
        console = self._bar.console if self._bar else self._console
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _engine(name: str, address: str | None, gpus: float, workers: int) -> Executor:
    if name == "ray":
        from tandem.experiments.ray_executor import RayExecutor

        return RayExecutor(address, gpus=gpus)
    if name != "here":
        raise InputError(f"--engine {name}: is not known; choose here or ray.")
    if address is not None or gpus:
        raise InputError("--address and --gpus are for a Ray cluster; add --engine ray, or leave them out.")
    from tandem.experiments.executors import ProcessExecutor, SerialExecutor

    return SerialExecutor() if workers == 1 else ProcessExecutor(workers)


def _document(report: Report, folder: Path) -> dict[str, object]:
    return {
        "folder": str(folder),
        "verdicts": report.verdicts(),
        "statements": [
            {"experiment": section.name, "stated": one.stated, "found": one.found, "verdict": one.verdict}
            for section in report.sections
            for one in section.claims
        ],
    }


def _print(report: Report, folder: Path) -> None:
    console = Console()
    colours = {"agrees": "green", "disagrees": "red", "open": "yellow"}
    for section in report.sections:
        console.print(f"[bold]{section.title}[/bold] ({section.name})", highlight=False)
        for one in section.claims:
            console.print(f"  [{colours[one.verdict]}]{one.verdict:9}[/] ", one.stated, highlight=False, soft_wrap=True)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.verdicts().items())
    console.print(f"Statements: {counts}.", highlight=False)
    console.print(f"Written to {folder}/report.html and report.md", highlight=False, markup=False, soft_wrap=True)
