"""``tandem evaluate``: a run's front on new seeds, on its own scenario or on a changed one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from tandem.api import open_run
from tandem.cli.formatting import count, format_objectives, make_console, plural_policies, print_table
from tandem.cli.options import JsonOption, RunArgument, SetOption, check_writable, print_json
from tandem.cli.progress import progress_callback
from tandem.experiments.reference_front import reference_hypervolume
from tandem.learn.validation import within_tolerance
from tandem.objectives import AXIS_LABELS
from tandem.rng import EVALUATION_SEED_START
from tandem.runs.evaluation import Evaluation, evaluate_to
from tandem.runs.front import describe_discarded

NUMBERS = ("policy", *AXIS_LABELS, "violations", "discarded", "would add")


def evaluate(
    run: RunArgument,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Number of seeds; one episode each.")] = 32,
    first_seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**31,
            show_default=False,
            help=f"First seed. Default: {EVALUATION_SEED_START}, which training never uses.",
        ),
    ] = None,
    overrides: SetOption = None,
    heuristics: Annotated[
        bool, typer.Option("--heuristics", help="Simulate the heuristic policies too, for comparison.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the results as JSON to this file.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a run's front on new seeds, or on a changed scenario.

    Reports hypervolume with its 95 % confidence interval, sparsity, violations, discarded samples and the best
    policies. With --set the policies are evaluated on a changed scenario, such as a larger fleet, without further
    training.
    """
    if json_file is not None:
        check_writable(json_file, "--json-file")
    opened = open_run(run)
    first = EVALUATION_SEED_START if first_seed is None else first_seed
    what = f"{plural_policies(len(opened.front.policies))} on {count(seeds, 'seed', 'seeds')}"
    with progress_callback(f"Evaluating {what}", "policies") as on_progress:
        evaluation, document = evaluate_to(
            json_file,
            opened,
            range(first, first + seeds),
            overrides=overrides or (),
            heuristics=heuristics,
            best_known=reference_hypervolume,
            on_progress=on_progress,
        )
    if as_json:
        print_json(document)
        return
    _print(evaluation, document)
    if json_file is not None:
        typer.echo(f"Written to {json_file}")


def _print(evaluation: Evaluation, document: dict[str, Any]) -> None:
    out = make_console()
    first, last = evaluation.seeds[0], evaluation.seeds[-1]
    out.print(
        f"[bold]{escape(document['run'])}[/bold] on [bold]{escape(document['scenario'])}[/bold]: "
        f"{count(document['devices'], 'device', 'devices')}, {document['rounds']} rounds, "
        f"{plural_policies(len(evaluation.front.policies))}, "
        f"{f'seeds {first} to {last}' if last > first else f'seed {first}'}",
        highlight=False,
    )
    if document["changes"]:
        out.print(
            f"Changes to the scenario it was trained on: {', '.join(document['changes'])}",
            markup=False,
            highlight=False,
        )
    out.print(_measures(evaluation, document))
    out.print()
    print_table(out, _landmarks(evaluation), NUMBERS)
    if not evaluation.heuristics:
        return
    out.print()
    print_table(out, _heuristics(evaluation), NUMBERS)
    outside = [heuristic.name for heuristic in evaluation.heuristics if heuristic.outside]
    summary = f"The front does not dominate {', '.join(outside)}; the table shows how much hypervolume each would add."
    out.print(summary if outside else _dominated(evaluation), highlight=False)


def _measures(evaluation: Evaluation, document: dict[str, Any]) -> Table:
    table = Table("", "", "", box=None, show_header=False, pad_edge=False)
    interval = document["hypervolume_interval_95"]
    confidence = "" if interval is None else f"95 %: {interval[0]:.4g} to {interval[1]:.4g}"
    trained = "" if document["changes"] else f"when trained: {document['hypervolume_when_trained']:.4g}"
    table.add_row("hypervolume", f"{document['hypervolume']:.4g}", ", ".join(filter(None, (confidence, trained))))
    best = document["best_known_hypervolume"]
    if best is not None:
        table.add_row(
            "share of the best known",
            f"{document['hypervolume'] / best:.1%}",
            f"{best:.4g}, from many much longer training runs",
        )
    table.add_row("sparsity", f"{document['sparsity']:.4g}", "")
    table.add_row(
        "expected utility", f"{document['expected_utility']:.4g}", "0 at the reference point, 1 at the ideal point"
    )
    number = len(evaluation.front.policies)
    table.add_row("not dominated", str(document["cardinality"]), f"of {evaluation.safe}")
    tolerated = f"of {number}, in violation in at most {100 * evaluation.tolerance:g} % of rounds"
    others = "" if evaluation.safe == number else "; only these count in the rows above"
    table.add_row("within tolerance", str(evaluation.safe), f"{tolerated}{others}")
    rates = document["worst_violation_rate"]
    broken = ", ".join(f"{name} {rate:.2%}" for name, rate in rates.items() if name != "all" and rate > 0)
    table.add_row("worst violation rate", f"{rates['all']:.2%}", broken)
    if evaluation.front.discards or not document["keeps_samples"]:
        table.add_row("discarded samples", describe_discarded(evaluation.front), "share of those made")
    return table


def _dominated(evaluation: Evaluation) -> str:
    """Return the sentence for a front to which no heuristic would add hypervolume."""
    allowed = within_tolerance([heuristic.violation_rate for heuristic in evaluation.heuristics], evaluation.tolerance)
    if allowed.all():
        return "The front dominates all heuristics."
    if allowed.any():
        return "The front dominates all heuristics that are within the tolerance."
    return "No heuristic is within the tolerance."


def _landmarks(evaluation: Evaluation) -> list[dict[str, str]]:
    return [
        {
            "": name,
            "policy": str(policy.index),
            **format_objectives(policy.objectives, policy.half_width),
            "violations": f"{policy.violation_rate:.2%}",
            **({"discarded": f"{policy.discarded_share:.1%}"} if evaluation.front.discards else {}),
        }
        for name, policy in evaluation.landmarks.items()
    ]


def _heuristics(evaluation: Evaluation) -> list[dict[str, str]]:
    return [
        {
            "heuristic": heuristic.name,
            **format_objectives(heuristic.objectives, heuristic.half_width),
            "violations": f"{heuristic.violation_rate:.2%}",
            "would add": f"{heuristic.adds:.3g}" if heuristic.outside else "",
        }
        for heuristic in evaluation.heuristics
    ]
