"""``tandem front``: the policies of a run as a table, a CSV file and a figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tandem.api import open_run
from tandem.cli.formatting import format_objectives, make_console, plural_policies, print_table
from tandem.cli.options import JsonOption, RunArgument, check_writable, print_json, report_write_errors
from tandem.cli.progress import spinner
from tandem.errors import InputError, did_you_mean
from tandem.objectives import AXIS_LABELS, OBJECTIVE_KEYS, OBJECTIVE_LABELS
from tandem.runs.front import (
    PolicyRecord,
    describe_discarded,
    describe_tolerance,
    keeps_samples,
    landmarks,
    representatives,
    sorted_by,
    write_front_csv,
)
from tandem.runs.plot_front import write_front_figure
from tandem.runs.run import Run

NUMBERS = ("policy", *AXIS_LABELS, "violations", "discarded")
SPARE = ("improved", "stage", "weights (%)")
SHOWN = 12  # policies, unless --all


def front(
    run: RunArgument,
    show_all: Annotated[
        bool, typer.Option("--all", help=f"Show all policies instead of {SHOWN} that cover the front evenly.")
    ] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Sort by an objective, best first: {', '.join(OBJECTIVE_LABELS)}. Default: by policy number.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for all policies as CSV. Default: RUN/front.csv.", show_default=False),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File for the figure (.png, .pdf or .svg). Default: RUN/front.png.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the policies of a run's front, and write them as a table and a figure.

    Shows the knee, the best policy of each objective and others spread over the front; the CSV file and --json have all
    policies.
    """
    if sort is not None and sort not in OBJECTIVE_LABELS:
        raise InputError(f"--sort {sort}: is not an objective; {did_you_mean(sort, OBJECTIVE_LABELS)}.")
    for path, option in ((csv, "--csv"), (figure, "--figure")):
        if path is not None:
            check_writable(path, option)
    if csv is not None and figure is not None and csv.resolve() == figure.resolve():
        raise InputError(f"--csv and --figure both name {csv}; name two files.")
    opened = open_run(run)
    table = _write(csv, "--csv", run / "front.csv", lambda path: write_front_csv(path, opened.front))
    with spinner("Drawing the front"):
        drawing = _write(figure, "--figure", run / "front.png", lambda path: _draw(path, opened))
    policies = list(opened.front.policies) if sort is None else sorted_by(opened.front, sort)
    if as_json:
        print_json(
            {
                "run": str(run),
                "policies": [policy.document() for policy in policies],
                "hypervolume": opened.front.hypervolume,
                "sparsity": opened.front.sparsity,
                "tolerance": opened.front.tolerance,
                "within_tolerance": int(opened.front.counted.sum()),
                "reference": dict(zip(OBJECTIVE_KEYS, opened.front.reference, strict=True)),
                "csv": None if table is None else str(table),
                "figure": None if drawing is None else str(drawing),
            }
        )
        return
    if not show_all:
        shown = representatives(opened.front, opened.config.tolerance, SHOWN)
        policies = [policy for policy in policies if policy.index in shown]
    _print(opened, policies)
    written = [str(path) for path in (table, drawing) if path is not None]
    if written:
        typer.echo(f"Written to {' and '.join(written)}")


def _write(path: Path | None, option: str, default: Path, write: Callable[[Path], None]) -> Path | None:
    """Write to the file that the user named, or into the run; a run in a read-only folder can still be shown."""
    if path is not None:
        with report_write_errors(path, option):
            write(path)
        return path
    try:
        write(default)
    except (OSError, InputError) as error:
        problem = f"{default}: cannot be written ({error.strerror})" if isinstance(error, OSError) else str(error)
        typer.echo(f"{problem.rstrip('.')}; name a file with {option}.", err=True)
        return None
    return default


def _draw(path: Path, run: Run) -> None:
    title = f"{run.algorithm_name} on {run.scenario.name}, {run.scenario.fleet.size} devices, seed {run.seed}"
    write_front_figure(path, title, run.front, run.config.tolerance)


def _print(run: Run, policies: list[PolicyRecord]) -> None:
    out = make_console()
    marks: dict[int, list[str]] = {}
    for name, index in landmarks(run.front, run.config.tolerance).items():
        marks.setdefault(index, []).append(name)
    rows = [_cells(policy, marks.get(policy.index, [])) for policy in policies]
    if not any(policy.improved for policy in policies):  # only some algorithms improve one objective at a time
        for row in rows:
            del row["improved"]
    if not run.front.discards:
        for row in rows:
            del row["discarded"]
    print_table(out, rows, NUMBERS, [name for name in SPARE if name in rows[0]])
    accuracy, latency_s, energy_j = run.front.reference
    number = len(run.front.policies)
    shown = "" if len(policies) == number else f", of which {len(policies)} are shown (--all shows all)"
    out.print(
        f"{plural_policies(number)}{shown}. Hypervolume {run.front.hypervolume:.4g} (reference point: accuracy "
        f"{accuracy:g}, {latency_s:g} s, {energy_j:g} J), sparsity {run.front.sparsity:.4g}. Intervals have 95 % "
        "confidence; weights are the preference (accuracy, latency, energy) that a policy was trained or asked for.",
        highlight=False,
    )
    note = describe_tolerance(run.front)
    if note is not None:
        out.print(note, highlight=False)
    if run.front.discards or not keeps_samples(run.system()):
        out.print(f"Discarded samples, as a share of those made: {describe_discarded(run.front)}.", highlight=False)


def _cells(policy: PolicyRecord, marks: list[str]) -> dict[str, str]:
    return {
        "policy": str(policy.index),
        **format_objectives(policy.objectives, policy.half_width),
        "violations": f"{policy.violation_rate:.2%}",
        "discarded": "" if policy.discarded_share is None else f"{policy.discarded_share:.1%}",
        "weights (%)": " ".join(f"{100 * weight:.0f}" for weight in policy.preference),
        "stage": policy.stage,
        "improved": (policy.improved or "").partition("_")[0],  # without its unit
        "": ", ".join(marks),
    }
