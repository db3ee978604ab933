"""How commands name a task, and how they show work that goes on for a while."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tandem.cli.options import spinner
from tandem.errors import InputError, did_you_mean
from tandem.scenario import Scenario
from tandem.scenario.plugins import TaskConfig

EVERY_S = 5.0  # a line of progress, where there is no terminal to draw a bar on

TaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="Measure accuracy on a task: digits or cifar10.", show_default=False),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Where the task's data are, if it needs any.", show_default=False),
]


def task_overrides(task: str | None, data: Path | None) -> list[str]:
    """--task and --data as overrides of a scenario."""
    if task is None:
        if data is not None:
            raise InputError(f"--data {data}: says where a task's data are, and there is no --task; name it.")
        return []
    if task not in TaskConfig.choices:
        raise InputError(f"--task {task}: is not a task; {did_you_mean(task, TaskConfig.choices)}.")
    if data is None and "path" in TaskConfig.choices[task].model_fields:
        raise InputError(f"--task {task}: needs your copy of its data; say where it is with --data FOLDER.")
    fields = {"kind": task} if data is None else {"kind": task, "path": str(data)}
    return [f"accuracy.task={json.dumps(fields)}"]


def task_spinner(scenario: Scenario) -> AbstractContextManager[None]:
    """While the system is built: with a task its data are read, and at first its model is pre-trained."""
    task = scenario.accuracy.task
    return nullcontext() if task is None else spinner(f"Preparing the task {task.kind}")


def fidelity_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return rows of a table on how well the estimate follows measured accuracy; none without a task."""
    found = document.get("estimated_accuracy")
    if found is None or found["rounds"] == 0:
        return []

    def correlation(part: Mapping[str, Any]) -> str:
        return "none" if part["correlation"] is None else f"{part['correlation']:.2f}"

    return [
        ("accuracy of answers", f"{found['measured']:.4g}", f"measured on {document['task']}"),
        ("estimated", f"{found['estimated']:.4g}", f"by the mapping; RMSE {found['rmse']:.3f}"),
        (
            "correlation",
            correlation(found),
            f"by device and round; of round means {correlation(found['fleet_rounds'])}",
        ),
    ]


@contextmanager
def progress_bar(message: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show on stderr how much of how much is done, and a word on it: a bar on a terminal, a line elsewhere."""
    printed = Console(stderr=True)
    if printed.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=printed, transient=True) as bar:
            row = bar.add_task(message, total=None)
            yield lambda done, of, said: bar.update(row, completed=done, total=of, description=f"{message} {said}")
        return
    printed.print(message, highlight=False, soft_wrap=True)
    last = time.monotonic()

    def line(done: int, of: int, said: str) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_S:
            printed.print(f"{done} of {of} {said}".rstrip(), highlight=False)
            last = time.monotonic()

    yield line
