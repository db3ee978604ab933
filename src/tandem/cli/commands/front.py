"""``tandem front``: the policies of a run as a table, a CSV file and a figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.formatting import (
    RunArgument,
    check_writable,
    format_objectives,
    make_console,
    plural_policies,
    print_table,
    writing,
)
from tandem.cli.options import JsonOption, print_json, spinner
from tandem.errors import InputError, did_you_mean
from tandem.objectives import AXIS_LABELS, OBJECTIVE_KEYS, OBJECTIVE_LABELS

if TYPE_CHECKING:
    from tandem.runs.front import PolicyRecord
    from tandem.runs.run import Run

NUMBERS = ("policy", *AXIS_LABELS, "violations")
SPARE = ("improved", "stage", "weights (%)")


def front(
    run: RunArgument,
    csv: Annotated[Path | None, typer.Option(help="File for the table; default: RUN/front.csv.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="File for the figure, .png, .pdf or .svg; default: RUN/front.png.")
    ] = None,
    sort: Annotated[
        str | None, typer.Option(help=f"Best first in this objective: {', '.join(OBJECTIVE_LABELS)}.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the policies of a run's front, and write them as a table and a figure."""
    if sort is not None and sort not in OBJECTIVE_LABELS:
        raise InputError(f"--sort {sort}: is not an objective; {did_you_mean(sort, OBJECTIVE_LABELS)}.")
    for path, option in ((csv, "--csv"), (figure, "--figure")):
        if path is not None:
            check_writable(path, option)

    from tandem.api import open_run
    from tandem.runs.front import sorted_by, write_front_csv

    opened = open_run(run)
    table = _write(csv, "--csv", run / "front.csv", lambda path: write_front_csv(path, opened.front))
    with spinner("Drawing the front"):
        drawing = _write(figure, "--figure", run / "front.png", lambda path: _draw(path, opened))
    rows = list(opened.front.policies) if sort is None else sorted_by(opened.front, sort)
    if as_json:
        print_json(
            {
                "run": str(run),
                "policies": [policy.document() for policy in rows],
                "hypervolume": opened.front.hypervolume,
                "sparsity": opened.front.sparsity,
                "reference": dict(zip(OBJECTIVE_KEYS, opened.front.reference, strict=True)),
                "csv": None if table is None else str(table),
                "figure": None if drawing is None else str(drawing),
            }
        )
        return
    _print(opened, rows)
    written = [str(path) for path in (table, drawing) if path is not None]
    if written:
        typer.echo(f"Written to {' and '.join(written)}")


def _write(path: Path | None, option: str, otherwise: Path, write: Callable[[Path], None]) -> Path | None:
    """Write where the user asked, or else into the run; a run that cannot be written to can still be looked at."""
    if path is not None:
        with writing(path, option):
            write(path)
        return path
    try:
        write(otherwise)
    except OSError as error:
        typer.echo(f"{otherwise}: cannot be written ({error.strerror}); name a file with {option}.", err=True)
        return None
    return otherwise


def _draw(path: Path, run: Run) -> None:
    from tandem.runs.plot_front import write_front_figure

    title = f"{run.algorithm_name} on {run.scenario.name}, {run.system().size} devices, seed {run.seed}"
    write_front_figure(path, title, run.front, run.config.tolerance)


def _print(run: Run, rows: list[PolicyRecord]) -> None:
    out = make_console()
    cells = [_cells(policy) for policy in rows]
    if not any(policy.improved for policy in rows):  # only some algorithms do that
        for cell in cells:
            del cell["improved"]
    print_table(out, cells, NUMBERS, [name for name in SPARE if name in cells[0]])
    accuracy, latency_s, energy_j = run.front.reference
    out.print(
        f"{plural_policies(len(rows))}, hypervolume {run.front.hypervolume:.4g} (from accuracy {accuracy:g}, "
        f"{latency_s:g} s, {energy_j:g} J), sparsity {run.front.sparsity:.4g}. Intervals are of 95 %; weights are "
        "those of accuracy, latency and energy that a policy was trained or asked for.",
        highlight=False,
    )


def _cells(policy: PolicyRecord) -> dict[str, str]:
    return {
        "policy": str(policy.index),
        **format_objectives(policy.objectives, policy.half_width),
        "violations": f"{policy.violation_rate:.2%}",
        "weights (%)": " ".join(f"{100 * weight:.0f}" for weight in policy.preference),
        "stage": policy.stage,
        "improved": (policy.improved or "").partition("_")[0],  # without its unit
    }
