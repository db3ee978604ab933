"""``tandem pick``: one policy of a run's front, and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from tandem.api import open_run
from tandem.cli.formatting import format_objectives, make_console, plural_policies
from tandem.cli.options import JsonOption, PreferOption, RunArgument, parse_preference, print_json
from tandem.errors import InputError
from tandem.objectives import OBJECTIVE_LABELS
from tandem.pareto import Choice
from tandem.pareto import pick as pick_policy
from tandem.runs.front import PolicyRecord, selectable_points
from tandem.runs.run import Run

# The arguments of tandem.pareto.pick, and the options they come from.
OPTIONS = {"min_accuracy": "--min-accuracy", "max_latency_s": "--max-latency", "max_energy_j": "--max-energy"}


def pick(
    run: RunArgument,
    prefer: PreferOption = None,
    min_accuracy: Annotated[
        float | None, typer.Option(metavar="A", help="Smallest accuracy, from 0 to 1.", show_default=False)
    ] = None,
    max_latency: Annotated[
        float | None, typer.Option(metavar="S", help="Largest latency in seconds.", show_default=False)
    ] = None,
    max_energy: Annotated[
        float | None, typer.Option(metavar="J", help="Largest energy in joules.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Choose one policy of a run's front by preference, limits or knee.

    With --prefer it is the best policy for these weights, otherwise the knee; limits exclude policies. Policies that
    violate constraints more often than the run tolerates are excluded, unless all do.
    """
    preference = None if prefer is None else parse_preference(prefer)
    limits = {"min_accuracy": min_accuracy, "max_latency_s": max_latency, "max_energy_j": max_energy}
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


def _choose(run: Run, preference: tuple[float, float, float] | None, limits: dict[str, float | None]) -> Choice:
    try:
        return pick_policy(selectable_points(run.front, run.config.tolerance), preference, **limits)
    except InputError as error:
        message = str(error)
        for name, option in OPTIONS.items():
            message = message.replace(name, option)
        raise InputError(f"{run.folder}: {message[0].lower()}{message[1:]}") from None


def _print(path: Path, run: Run, record: PolicyRecord, reason: str, lines: list[str], exact: str | None) -> None:
    out = make_console()
    out.print(f"[bold]Policy {record.index}[/bold] of {escape(str(path))}", highlight=False)
    table = Table("", "mean ± 95 %", box=None, header_style="bold")
    for label, value in format_objectives(record.objectives, record.half_width).items():
        table.add_row(label, value)
    table.add_row("rounds in violation", f"{record.violation_rate:.2%}")
    if record.discarded_share:
        table.add_row("samples discarded", f"{record.discarded_share:.1%}")
    out.print(table)
    out.print(reason, highlight=False)
    allowed = run.front.counted
    if not allowed.all():
        rate = f"violations in more than {run.front.tolerance:.3g} of the rounds"
        excluded = f"{plural_policies(int((~allowed).sum()))} with {rate} excluded."
        out.print(excluded if allowed.any() else f"Warning: every policy of this front has {rate}.", highlight=False)
    out.print("\nTo use it in Python:", highlight=False)
    for line in lines:
        out.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)
    if exact:
        text = "The run has one network for all preferences. The policy for exactly this preference is"
        out.print(f"{text}\n    {exact}", highlight=False, markup=False, soft_wrap=True)
