"""``tandem runs``: what has been trained, below a folder."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.formatting import make_console, print_table
from tandem.cli.options import JsonOption, print_json
from tandem.errors import InputError

if TYPE_CHECKING:
    from tandem.runs.run_dir import Entry

DEFAULT = Path("runs")  # where 'tandem train' puts them
NUMBERS = ("devices", "seed", "rounds", "hypervolume", "policies", "time")
SPARE = ("preset", "time", "scenario", "seed", "when", "devices", "algorithm", "rounds")


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to look in and below.")] = DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """List the runs below a folder, oldest first, with what each achieved; broken ones with what is wrong."""
    if not folder.is_dir() and (folder != DEFAULT or folder.exists()):
        raise InputError(f"{folder}: is not a folder; name one with runs in it, such as '{DEFAULT}'.")

    from tandem.runs.run_dir import list_runs

    entries = list_runs(folder)
    if as_json:
        print_json({"folder": str(folder), "runs": [entry.document() for entry in entries]})
        return
    if not entries:
        typer.echo(f"There are no runs in {folder}; 'tandem train' makes one.")
        return
    out = make_console()
    print_table(out, [_cells(entry) for entry in entries], NUMBERS, SPARE)
    for entry in entries:
        if entry.problem is not None:
            out.print(entry.problem, highlight=False, markup=False, soft_wrap=True)


def _cells(entry: Entry) -> dict[str, str]:
    record = entry.record
    return {
        "name": entry.name,
        "scenario": record.scenario if record else "",
        "devices": str(entry.devices) if record else "",
        "algorithm": record.algorithm if record else "",
        "preset": record.preset if record else "",
        "seed": str(record.seed) if record else "",
        "status": entry.status,
        "rounds": f"{record.rounds:,}" if record else "",
        "hypervolume": f"{record.hypervolume:.4g}" if record and record.hypervolume is not None else "",
        "policies": str(record.policies) if record and record.policies is not None else "",
        "time": _duration(record.wall_s) if record else "",
        "when": _when(record.created) if record else "",
    }


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if hours < 1.5 else f"{hours:.1f} h"


def _when(created: str) -> str:
    """In the reader's own time."""
    try:
        return datetime.datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return created
