"""``tandem evaluate``: a run's front on fresh seeds, on its own scenario or on a changed one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tandem.cli.formatting import (
    RunArgument,
    check_writable,
    count,
    format_objectives,
    make_console,
    plural_policies,
    print_table,
)
from tandem.cli.options import JsonOption, SetOption, print_json
from tandem.objectives import AXIS_LABELS

if TYPE_CHECKING:
    from tandem.runs.evaluation import Evaluation

NUMBERS = ("policy", *AXIS_LABELS, "violations", "would add")
EVERY_S = 5.0  # a line of progress, where there is no terminal to draw a bar on


def evaluate(
    run: RunArgument,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="How many seeds to play an episode for.")] = 32,
    first_seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**31, show_default=False, help="The first of them; default: seeds that training never uses."
        ),
    ] = None,
    overrides: SetOption = None,
    rules: Annotated[bool, typer.Option("--rules", help="Play the hand-written rules too, as a yardstick.")] = False,
    out: Annotated[Path | None, typer.Option(help="File for the results as JSON.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Play every policy of a run's front on fresh seeds and report how good the front is, and how sure that is.

    With --set the policies play on a changed scenario, such as a larger fleet, without being trained again.
    """
    if out is not None:
        check_writable(out, "--out")

    # JAX takes a second to import; what needs it comes after the arguments are known to be readable.
    from tandem.api import open_run
    from tandem.experiments.reference_front import reference_hypervolume
    from tandem.rng import EVALUATION_SEED_START
    from tandem.runs.evaluation import evaluate_to

    opened = open_run(run)
    first = EVALUATION_SEED_START if first_seed is None else first_seed
    with _counting(f"Evaluating {plural_policies(len(opened.front.policies))} on {seeds} seeds") as counted:
        found, document = evaluate_to(
            out,
            opened,
            range(first, first + seeds),
            overrides=overrides or (),
            heuristics=rules,
            best_known=reference_hypervolume,
            on_progress=lambda progress: counted(progress.done, progress.total),
        )
    if as_json:
        print_json(document)
        return
    _print(found, document)
    if out is not None:
        typer.echo(f"Written to {out}")


@contextmanager
def _counting(message: str) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr how many of how many are done: a bar on a terminal, a line now and then elsewhere."""
    printed = Console(stderr=True)
    if printed.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=printed, transient=True) as bar:
            task = bar.add_task(message, total=None)
            yield lambda done, of: bar.update(task, completed=done, total=of)
        return
    printed.print(message, highlight=False, soft_wrap=True)
    last = time.monotonic()

    def line(done: int, of: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_S:
            printed.print(f"{done} of {of} played", highlight=False)
            last = time.monotonic()

    yield line


def _print(found: Evaluation, document: dict[str, Any]) -> None:
    out = make_console()
    first, last = found.seeds[0], found.seeds[-1]
    out.print(
        f"[bold]{escape(document['run'])}[/bold] on [bold]{escape(document['scenario'])}[/bold]: "
        f"{count(document['devices'], 'device', 'devices')}, {document['rounds']} rounds, "
        f"{plural_policies(len(found.front.policies))}, seed{f's {first} to {last}' if last > first else f' {first}'}",
        highlight=False,
    )
    if document["changes"]:
        out.print(
            f"Changed from what it was trained on: {', '.join(document['changes'])}", markup=False, highlight=False
        )
    out.print(_measures(found, document))
    out.print()
    print_table(out, _landmarks(found), NUMBERS)
    if not found.heuristics:
        return
    out.print()
    print_table(out, _rules(found), NUMBERS)
    outside = [rule.name for rule in found.heuristics if rule.outside]
    said = f"The front does not dominate {', '.join(outside)}, which would add to its hypervolume as shown."
    out.print(said if outside else "The front dominates all rules.", highlight=False)


def _measures(found: Evaluation, document: dict[str, Any]) -> Table:
    table = Table("", "", "", box=None, show_header=False, pad_edge=False)
    interval = document["hypervolume_interval_95"]
    sure = "" if interval is None else f"95 %: {interval[0]:.4g} to {interval[1]:.4g}"
    trained = "" if document["changes"] else f"when trained: {document['hypervolume_when_trained']:.4g}"
    table.add_row("hypervolume", f"{document['hypervolume']:.4g}", ", ".join(filter(None, (sure, trained))))
    best = document["best_known_hypervolume"]
    if best is not None:
        table.add_row(
            "of the best known", f"{document['hypervolume'] / best:.1%}", f"{best:.4g}, of many far longer trainings"
        )
    table.add_row("sparsity", f"{document['sparsity']:.4g}", "")
    table.add_row("expected utility", f"{document['expected_utility']:.4g}", "0 at the reference, 1 at the ideal")
    number = len(found.front.policies)
    table.add_row("not dominated", str(document["cardinality"]), f"of {number}")
    allowed = f"of {number}, in violation in at most {found.tolerance:.3%} of rounds".replace(".000%", " %")
    table.add_row("within tolerance", str(found.safe), allowed)
    rates = document["worst_violation_rate"]
    broken = ", ".join(f"{name} {rate:.2%}" for name, rate in rates.items() if name != "all" and rate > 0)
    table.add_row("worst violation rate", f"{rates['all']:.2%}", broken)
    return table


def _landmarks(found: Evaluation) -> list[dict[str, str]]:
    return [
        {
            "": name,
            "policy": str(policy.index),
            **format_objectives(policy.objectives, policy.half_width),
            "violations": f"{policy.violation_rate:.2%}",
        }
        for name, policy in found.landmarks.items()
    ]


def _rules(found: Evaluation) -> list[dict[str, str]]:
    return [
        {
            "rule": rule.name,
            **format_objectives(rule.objectives, rule.half_width),
            "violations": f"{rule.violation_rate:.2%}",
            "would add": f"{rule.adds:.3g}" if rule.outside else "",
        }
        for rule in found.heuristics
    ]
