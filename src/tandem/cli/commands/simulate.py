"""``tandem simulate``: a heuristic policy on a scenario, over several seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem.api import simulate_to
from tandem.cli.formatting import count
from tandem.cli.options import JsonOption, ScenarioArgument, SetOption, parse_overrides, print_json
from tandem.cli.progress import progress_callback
from tandem.cli.task_options import DataOption, TaskOption, fidelity_rows, task_overrides
from tandem.errors import InputError, did_you_mean
from tandem.io.atomic import folder_name
from tandem.io.yaml_reader import read_assignment
from tandem.objectives import AXIS_LABELS, OBJECTIVE_KEYS
from tandem.policy import HEURISTICS, Heuristic
from tandem.scenario import load_scenario


def simulate(
    scenario: ScenarioArgument = "paper",
    policy: Annotated[
        str, typer.Option(metavar="NAME", help=f"Heuristic policy: {', '.join(HEURISTICS)}.")
    ] = "threshold",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--policy-set",
            metavar="NAME=NUMBER",
            help="Override a parameter of the policy, e.g. data_share=0.5. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100_000, help="Number of seeds; one episode each.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, max=2**31, help="First seed.")] = 0,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds in an episode. Default: the scenario's.", show_default=False),
    ] = None,
    shield: Annotated[
        bool | None,
        typer.Option(
            "--shield/--no-shield", help="Turn the shield on or off. Default: as the scenario says.", show_default=False
        ),
    ] = None,
    task: TaskOption = None,
    data: DataOption = None,
    overrides: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder for results. Default: simulations/SCENARIO-POLICY.", show_default=False
        ),
    ] = None,
    trace: Annotated[str, typer.Option(metavar="FORMAT", help="Format of the trace: csv, parquet or none.")] = "csv",
    as_json: JsonOption = False,
) -> None:
    """Simulate a heuristic policy on a scenario and report what it achieves.

    Prints the objectives, the violations of each constraint and the dropped requests, and writes simulation.json,
    scenario.yaml, a trace (one row per seed, round and device) and a figure of the first seed's rounds. With a task,
    models are trained and used for real: accuracy is then the share of correct answers, and the mapping's estimate is
    reported beside it.
    """
    changes = {**task_overrides(task, data), **parse_overrides(overrides)}
    if rounds is not None:
        changes["rounds"] = rounds
    if shield is not None:
        changes["shield.enabled"] = shield
    loaded = load_scenario(scenario, changes)
    heuristic = make_heuristic(policy, settings or [])
    folder = out or Path("simulations") / f"{folder_name(loaded.name)}-{policy}"
    chosen = range(first_seed, first_seed + seeds)
    size = f"{count(loaded.fleet.size, 'device', 'devices')}, {loaded.rounds} rounds, {count(seeds, 'seed', 'seeds')}"
    with progress_callback(f"Simulating {policy} on {loaded.name}: {size}", "seeds") as on_progress:
        saved = simulate_to(folder, loaded, heuristic, chosen, name=policy, trace=trace, on_progress=on_progress)
    if as_json:
        print_json(saved.document)
        return
    _print(heuristic.summary, saved.document)
    if not saved.detailed:
        typer.echo(
            f"The trace would have {saved.trace_rows:,} rows; use fewer devices, rounds or seeds to get a trace and a "
            "figure."
        )


def make_heuristic(name: str, settings: list[str]) -> Heuristic:
    """Create a heuristic by its name, with some parameters changed, given as ``data_share=0.5``."""
    if name not in HEURISTICS:
        raise InputError(f"--policy {name}: is not a policy; {did_you_mean(name, HEURISTICS)}.")
    parameters = vars(HEURISTICS[name]())
    for text in settings:
        parameter, value = read_assignment(text, "--policy-set", "data_share=0.5")
        if parameter not in parameters:
            raise InputError(
                f"--policy-set {text}: {name} has no parameter {parameter!r}; {did_you_mean(parameter, parameters)}."
            )
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(
                f"--policy-set {text}: {value!r} is not a number; write {parameter}={parameters[parameter]}."
            )
        parameters[parameter] = number
    return HEURISTICS[name](**parameters)


def _print(summary: str, document: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"[bold]{document['policy']}[/bold] on [bold]{escape(document['scenario'])}[/bold]: "
        f"{document['devices']} devices, {document['rounds']} rounds, "
        f"{count(len(document['seeds']), 'seed', 'seeds')}, shield {'on' if document['shield'] else 'off'}",
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
    made, share = document["made_samples"], document["discarded_share"]
    table.add_row("samples discarded", f"{document['discarded_samples']:.4g}", f"of {made:.0f} ({share:.1%})")
    table.add_row("trainers per round", f"{document['trainers_per_round']:.2f}", "")
    table.add_row("round duration (s)", f"{document['round_s']:.2f}", "")
    for row in fidelity_rows(document):
        table.add_row(*row)
    console.print(table)
    console.print(f"Written to {document['folder']}/", highlight=False, markup=False, soft_wrap=True)
