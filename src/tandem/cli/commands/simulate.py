"""``tandem simulate``: a hand-written policy on a scenario, over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tandem.cli.options import JsonOption, ScenarioArgument, SetOption, print_json, spinner
from tandem.cli.task_options import DataOption, TaskOption, fidelity, fidelity_rows, task_overrides, task_spinner
from tandem.errors import InputError, did_you_mean
from tandem.objectives import AXIS_LABELS, OBJECTIVE_KEYS
from tandem.scenario import Scenario, dump_scenario, load_scenario

if TYPE_CHECKING:
    from tandem.feel import FleetState, RoundOutcome
    from tandem.policy import Heuristic
    from tandem.runs.simulation import Simulation

    History = tuple[FleetState, RoundOutcome]

RESULT = "simulation.json"
DETAILS = ("trace.csv", "trace.parquet", "figure.png", "accuracy.png")
MOST_ROWS = 2_000_000  # a longer trace is not written

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
    from tandem.federated.build import build_system
    from tandem.io.atomic import results_folder
    from tandem.runs.simulation import simulate as play
    from tandem.runs.simulation import simulate_histories, summarise
    from tandem.runs.trace import check_format

    rule = _rule(policy, settings or [])
    if trace != "none":
        check_format(trace)
    with task_spinner(loaded):
        system = build_system(loaded)
    folder = results_folder(out or Path("simulations") / f"{loaded.name}-{policy}", RESULT)
    chosen = range(first_seed, first_seed + seeds)
    with spinner(
        f"Simulating {policy} on {loaded.name}: {loaded.fleet.size} devices, {loaded.rounds} rounds, {seeds} seeds"
    ):
        # Real models take their time: what they did is kept, for all that is told of it.
        played = list(simulate_histories(system, rule, chosen)) if loaded.accuracy.task else None
        result = play(system, rule, chosen) if played is None else summarise(chosen, played)
    rows = loaded.fleet.size * loaded.rounds * seeds
    detailed = rows <= MOST_ROWS
    document: dict[str, Any] = {
        "scenario": loaded.name,
        "policy": policy,
        "settings": vars(rule),
        "devices": loaded.fleet.size,
        "rounds": loaded.rounds,
        "shield": loaded.shield.enabled,
        **result.summary(),
        **({} if played is None else fidelity(loaded, played)),
        "folder": str(folder),
    }
    for name in DETAILS:  # of an earlier run: they would not belong to this result
        (folder / name).unlink(missing_ok=True)
    _write_text(folder / RESULT, json.dumps(document, indent=2) + "\n")
    _write_text(folder / "scenario.yaml", dump_scenario(loaded))
    if detailed:
        with spinner("Writing the trace and the figure"):
            first = played[0] if played else next(simulate_histories(system, rule, chosen[:1]))
            _write_figures(folder, loaded, system, first, f"{policy} on {loaded.name}, seed {first_seed}")
            if trace != "none":
                _write_trace(
                    folder / f"trace.{trace}", loaded, chosen, played or simulate_histories(system, rule, chosen)
                )
    if as_json:
        print_json(document)
        return
    _print(result, rule.summary, document)
    if not detailed:
        typer.echo(f"The trace would have {rows:,} rows; use fewer devices, rounds or seeds for a trace and a figure.")


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


def _write_trace(path: Path, loaded: Scenario, seeds: range, played: Iterable[History]) -> None:
    from tandem.runs.trace import trace_table, write_trace
    from tandem.scenario import build_device_table

    names = build_device_table(loaded).names
    write_trace(path, (trace_table(seed, names, *history) for seed, history in zip(seeds, played, strict=True)))


def _write_figures(folder: Path, loaded: Scenario, system: Any, played: History, title: str) -> None:
    from tandem.runs.plot_simulation import write_figure
    from tandem.scenario import build_device_table

    states, outcome = played
    write_figure(folder / "figure.png", title, build_device_table(loaded).names, system, states, outcome)
    if outcome.estimated_accuracy is not None:
        from tandem.federated.plots import write_fidelity_figure

        write_fidelity_figure(folder / "accuracy.png", title, states, outcome)


def _write_text(path: Path, text: str) -> None:
    from tandem.io.atomic import atomic_write

    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
