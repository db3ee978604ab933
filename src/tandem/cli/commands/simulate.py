"""``tandem simulate``: a hand-written policy on a scenario, over seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tandem.cli.options import JsonOption, ScenarioArgument, SetOption, print_json, spinner
from tandem.cli.task_options import DataOption, TaskOption, fidelity_rows, task_overrides
from tandem.errors import InputError, did_you_mean
from tandem.objectives import AXIS_LABELS, OBJECTIVE_KEYS
from tandem.scenario import load_scenario

if TYPE_CHECKING:
    from tandem.policy import Heuristic
    from tandem.runs.simulation import Simulation

POLICIES = "random, serve-until-full, round-robin, threshold or drift-plus-penalty"


def simulate(
    scenario: ScenarioArgument = "paper",
    policy: Annotated[str, typer.Option(help=f"The rule that decides: {POLICIES}.")] = "threshold",
    settings: Annotated[
        list[str] | None,
        typer.Option("--policy-set", metavar="NAME=NUMBER", help="A setting of the rule, such as data_share=0.5."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100_000, help="How many seeds to play an episode for.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, max=2**31, help="The first of them.")] = 0,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds in an episode, if not the scenario's.")] = None,
    shield: Annotated[bool | None, typer.Option("--shield/--no-shield", help="Override the scenario's shield.")] = None,
    task: TaskOption = None,
    data: DataOption = None,
    overrides: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results; default: simulations/SCENARIO-POLICY.", show_default=False)
    ] = None,
    trace: Annotated[str, typer.Option(help="Format of the trace: csv, parquet or none.")] = "csv",
    as_json: JsonOption = False,
) -> None:
    """Play a hand-written policy on a scenario and report what it achieves.

    Prints the objectives, violations by constraint and dropped requests, and writes simulation.json, scenario.yaml, a
    trace with a row for each seed, round and device, and a figure of the first seed's rounds. With a task, real models
    are trained and asked: accuracy is the share of right answers, the mapping's estimate stands beside it in the trace,
    and how well that follows is reported and drawn.
    """
    changes = task_overrides(task, data) + list(overrides or [])
    changes += [] if rounds is None else [f"rounds={rounds}"]
    changes += [] if shield is None else [f"shield.enabled={str(shield).lower()}"]
    loaded = load_scenario(scenario, changes)

    # JAX takes a second to import; what needs it comes after the arguments are known to be readable.
    from tandem.api import simulate_to

    rule = _rule(policy, settings or [])
    folder = out or Path("simulations") / f"{loaded.name}-{policy}"
    chosen = range(first_seed, first_seed + seeds)
    prepared = "" if loaded.accuracy.task is None else f", with the task {loaded.accuracy.task.kind}"
    with spinner(
        f"Simulating {policy} on {loaded.name}: {loaded.fleet.size} devices, {loaded.rounds} rounds, {seeds} seeds"
        f"{prepared}"
    ):
        saved = simulate_to(folder, loaded, rule, chosen, name=policy, trace=trace)
    document = saved.document
    if as_json:
        print_json(document)
        return
    _print(saved.simulation, rule.summary, document)
    if not saved.detailed:
        typer.echo(
            f"The trace would have {saved.trace_rows:,} rows; use fewer devices, rounds or seeds to get a trace and a "
            "figure."
        )


def _rule(policy: str, settings: list[str]) -> Heuristic:
    from tandem.policy import HEURISTICS

    if policy not in HEURISTICS:
        raise InputError(f"--policy {policy}: is not a policy; {did_you_mean(policy, HEURISTICS)}.")
    rule = HEURISTICS[policy]()
    known = vars(rule)
    changes = {}
    for text in settings:
        name, _, value = text.partition("=")
        if name not in known:
            raise InputError(f"--policy-set {text}: {policy} has no setting {name!r}; {did_you_mean(name, known)}.")
        try:
            changes[name] = float(value)
            if not math.isfinite(changes[name]):
                raise ValueError
        except ValueError:
            raise InputError(f"--policy-set {text}: {value!r} is not a number; write {name}={known[name]}.") from None
    return HEURISTICS[policy](**{**known, **changes})


def _print(result: Simulation, summary: str, document: dict[str, Any]) -> None:
    console = Console()
    seeds = len(result.seeds)
    console.print(
        f"[bold]{document['policy']}[/bold] on [bold]{document['scenario']}[/bold]: {document['devices']} devices, "
        f"{document['rounds']} rounds, {seeds} seed{'s' if seeds > 1 else ''}, "
        f"shield {'on' if document['shield'] else 'off'}",
        highlight=False,
    )
    console.print(f"({summary})", style="dim", highlight=False)
    table = Table("", "mean", "± 95 %", box=None, header_style="bold")
    for name, label in zip(OBJECTIVE_KEYS, AXIS_LABELS, strict=True):
        width = document["objectives_half_width_95"][name]
        table.add_row(label, f"{document['objectives'][name]:.4g}", "" if width is None else f"{width:.2g}")
    rates = document["violation_rate"]
    broken = ", ".join(f"{name} {rate:.2%}" for name, rate in rates.items() if name != "all" and rate > 0)
    table.add_row("rounds in violation", f"{rates['all']:.2%}", broken)
    table.add_row("requests dropped", f"{document['dropped_requests']:.4g}", f"of {document['arrived_requests']:.0f}")
    table.add_row("samples discarded", f"{document['discarded_samples']:.4g}", "")
    table.add_row("trainers a round", f"{document['trainers_per_round']:.2f}", "")
    table.add_row("round length (s)", f"{document['round_s']:.2f}", "")
    for row in fidelity_rows(document):
        table.add_row(*row)
    console.print(table)
    console.print(f"Written to {document['folder']}/", highlight=False)
