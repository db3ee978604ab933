"""``tandem runs``: the training runs below a folder."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.formatting import format_duration, make_console, print_table
from tandem.cli.options import JsonOption, print_json
from tandem.errors import InputError
from tandem.runs.run_dir import Entry, list_runs

DEFAULT = Path("runs")  # where 'tandem train' writes
NUMBERS = ("devices", "seed", "rounds", "hypervolume", "policies", "time")
SPARE = ("preset", "time", "scenario", "seed", "when", "devices", "algorithm", "rounds")


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to search, with its subfolders.")] = DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """List the training runs below a folder, oldest first.

    Shows the results of each run, or the error of a broken one.
    """
    if not folder.is_dir() and (folder != DEFAULT or folder.exists()):
        raise InputError(f"{folder}: is not a folder; name one that contains runs, such as '{DEFAULT}'.")
    entries = list_runs(folder)
    if as_json:
        print_json({"folder": str(folder), "runs": [entry.document() for entry in entries]})
        return
    if not entries:
        typer.echo(f"There are no runs in {folder}; 'tandem train' creates one.")
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
        "time": format_duration(record.wall_s) if record else "",
        "when": _when(record.created) if record else "",
    }


def _when(created: str) -> str:
    """Format a time of the record in the local time zone."""
    try:
        return datetime.datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return created
