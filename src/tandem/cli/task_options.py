"""The options --task and --data, and the display of results on a task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.cli.progress import spinner
from tandem.errors import InputError, did_you_mean
from tandem.scenario import Scenario
from tandem.scenario.plugins import TaskConfig

TASKS = " or ".join(TaskConfig.choices)
TaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help=f"Measure accuracy on a task: {TASKS}.", show_default=False),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Folder of the task's data (cifar10 only).", show_default=False),
]


def task_overrides(task: str | None, data: Path | None, option: str = "--task") -> dict[str, Any]:
    """Convert --task and --data into overrides of a scenario; ``option`` names the task's in messages."""
    if task is None:
        if data is not None:
            raise InputError(f"--data {data}: is the data of a task, but there is no --task; name the task.")
        return {}
    if task not in TaskConfig.choices:
        raise InputError(f"{option} {task}: is not a task; {did_you_mean(task, TaskConfig.choices)}.")
    needs_data = "path" in TaskConfig.choices[task].model_fields
    if data is None and needs_data:
        raise InputError(f"{option} {task}: needs a copy of its data; name the folder with --data FOLDER.")
    if data is not None and not needs_data:
        raise InputError(f"--data {data}: the task {task} needs no data; leave --data out.")
    return {"accuracy.task": {"kind": task} if data is None else {"kind": task, "path": str(data)}}


def task_spinner(scenario: Scenario) -> AbstractContextManager[None]:
    """Show progress while the system is built, if it has a task, whose data are read and model may be pre-trained."""
    task = scenario.accuracy.task
    return nullcontext() if task is None else spinner(f"Preparing the task {task.kind}")


def fidelity_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the table rows that compare measured with estimated accuracy; empty without a task."""
    fidelity = document.get("estimated_accuracy")
    if fidelity is None or fidelity["rounds"] == 0:
        return []

    def correlation(part: Mapping[str, Any]) -> str:
        return "none" if part["correlation"] is None else f"{part['correlation']:.2f}"

    return [
        ("measured accuracy", f"{fidelity['measured']:.4g}", f"share of correct answers on {document['task']}"),
        ("estimated accuracy", f"{fidelity['estimated']:.4g}", f"by the mapping; RMSE {fidelity['rmse']:.3f}"),
        (
            "correlation",
            correlation(fidelity),
            f"by device and round; of round means {correlation(fidelity['fleet_rounds'])}",
        ),
    ]
