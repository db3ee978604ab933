"""``tandem pick``: one policy of a run's front, and why that one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from tandem.cli.formatting import RunArgument, format_objectives, make_console, plural_policies
from tandem.cli.options import JsonOption, print_json
from tandem.errors import InputError, did_you_mean
from tandem.objectives import OBJECTIVE_LABELS

if TYPE_CHECKING:
    from tandem.pareto import Choice
    from tandem.runs.front import PolicyRecord
    from tandem.runs.run import Run

EXAMPLE = "accuracy=0.5,latency=0.3,energy=0.2"
# What the geometry calls a limit, and what the user typed.
OPTIONS = {"min_accuracy": "--min-accuracy", "max_latency_s": "--max-latency", "max_energy_j": "--max-energy"}


def pick(
    run: RunArgument,
    prefer: Annotated[
        str | None, typer.Option(metavar="NAME=WEIGHT,...", help=f"What matters how much, such as {EXAMPLE}.")
    ] = None,
    min_accuracy: Annotated[float | None, typer.Option(metavar="A", help="At least this accuracy.")] = None,
    max_latency: Annotated[float | None, typer.Option(metavar="S", help="At most this latency, in seconds.")] = None,
    max_energy: Annotated[float | None, typer.Option(metavar="J", help="At most this energy, in joules.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Choose a policy of a run's front: the best for a preference, or the knee, within limits.

    Policies that broke constraints more often than the run tolerates are left out, unless all did.
    """
    preference = None if prefer is None else weights(prefer)
    limits = {"min_accuracy": min_accuracy, "max_latency_s": max_latency, "max_energy_j": max_energy}

    from tandem.api import open_run

    opened = open_run(run)
    choice = _choose(opened, preference, limits)
    record = opened.front.policies[choice.index]
    lines = [f"run = tandem.open_run({str(run)!r})", f"policy = run.policy({record.index})"]
    exact = None
    if preference is not None and opened.conditioned:
        exact = f"run.policy_for(({', '.join(f'{weight:.6g}' for weight in preference)}))"
    if as_json:
        document: dict[str, Any] = {
            "run": str(run),
            "policy": record.document(),
            "reason": choice.reason,
            "preference": None if preference is None else dict(zip(OBJECTIVE_LABELS, preference, strict=True)),
            "limits": limits,
            "python": lines,
            "python_for_preference": exact,
        }
        print_json(document)
        return
    _print(run, opened, record, choice.reason, lines, exact)


def weights(text: str) -> tuple[float, float, float]:
    """From ``accuracy=0.5,latency=0.3``; what is not named counts as 0. The weights come out adding up to 1."""
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InputError(f"--prefer {text}: {part.strip()!r} is not NAME=WEIGHT; write it as in {EXAMPLE}.")
        if name not in OBJECTIVE_LABELS:
            raise InputError(f"--prefer {text}: {name!r} is not an objective; {did_you_mean(name, OBJECTIVE_LABELS)}.")
        if name in given:
            raise InputError(f"--prefer {text}: {name} is there twice; give each objective one weight.")
        given[name] = _weight(text, name, value)
    total = sum(given.values())
    if total <= 0:
        raise InputError(f"--prefer {text}: every weight is 0; give at least one objective more, as in {EXAMPLE}.")
    accuracy, latency, energy = (given.get(name, 0.0) / total for name in OBJECTIVE_LABELS)
    return accuracy, latency, energy


def _weight(text: str, name: str, value: str) -> float:
    try:
        weight = float(value)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise InputError(f"--prefer {text}: {value!r} is not a number; write it as in {EXAMPLE}.")
    if weight < 0:
        raise InputError(f"--prefer {text}: the weight of {name} is negative; give 0 or more.")
    return weight


def _choose(run: Run, preference: tuple[float, float, float] | None, limits: dict[str, float | None]) -> Choice:
    from tandem.pareto import pick as choose
    from tandem.runs.front import selectable_points

    try:
        return choose(selectable_points(run.front, run.config.tolerance), preference, **limits)
    except InputError as error:
        said = str(error)
        for name, option in OPTIONS.items():
            said = said.replace(name, option)
        raise InputError(f"{run.folder}: {said[0].lower()}{said[1:]}") from None


def _print(path: Path, run: Run, record: PolicyRecord, reason: str, lines: list[str], exact: str | None) -> None:
    from tandem.learn.validation import within_tolerance

    out = make_console()
    out.print(f"[bold]Policy {record.index}[/bold] of {escape(str(path))}", highlight=False)
    table = Table("", "mean ± 95 %", box=None, header_style="bold")
    for label, value in format_objectives(record.objectives, record.half_width).items():
        table.add_row(label, value)
    table.add_row("rounds in violation", f"{record.violation_rate:.2%}")
    out.print(table)
    out.print(reason, highlight=False)
    safe = within_tolerance(run.front.violation_rate, run.config.tolerance)
    if not safe.all():
        beyond = f"more than {run.config.tolerance:.3g} of rounds in violation"
        left_out = f"{plural_policies(int((~safe).sum()))} with {beyond} left out."
        out.print(left_out if safe.any() else f"Beware: every policy of this front has {beyond}.", highlight=False)
    out.print("\nTo use it in Python:", highlight=False)
    for line in lines:
        out.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)
    if exact:
        said = "One network holds this front and follows any preference; the policy for exactly this one is"
        out.print(f"{said}\n    {exact}", highlight=False, markup=False, soft_wrap=True)
