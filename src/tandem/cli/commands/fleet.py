"""``tandem fleet``: run devices and server as separate processes, over Flower."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem.cli.commands.fleet_live import demo, live, load
from tandem.cli.options import (
    JsonOption,
    PreferOption,
    ScenarioArgument,
    SetOption,
    parse_overrides,
    parse_preference,
    print_json,
)
from tandem.cli.progress import progress_bar
from tandem.cli.task_options import DataOption, TaskOption, task_overrides, task_spinner
from tandem.errors import InputError
from tandem.federated.fleet.api import FleetRun, build_client, create_run, default_folder, open_fleet_run
from tandem.federated.fleet.client_process import serve_forever
from tandem.federated.fleet.config import FleetConfig, read_nodes
from tandem.federated.flower.launcher import check_installed, launch_fleet
from tandem.objectives import AXIS_LABELS, OBJECTIVE_KEYS
from tandem.policy import HEURISTICS
from tandem.scenario import load_scenario

app = typer.Typer(no_args_is_help=True, help="Run a fleet for real: devices and server as processes, over Flower.")

app.command("live")(live)
app.command("load")(load)
app.command("demo")(demo)

SeedOption = Annotated[int, typer.Option(min=0, max=2**31, help="Random seed, as in 'tandem simulate'.")]
HardwareOption = Annotated[str, typer.Option(help="Hardware that devices control: simulated or cpufreq.")]


@app.command("run")
def run(
    context: typer.Context,
    scenario: ScenarioArgument = "paper",
    task: TaskOption = None,
    data: DataOption = None,
    policy: Annotated[
        str, typer.Option(help=f"Heuristic ({', '.join(HEURISTICS)}) or the folder of a trained run.")
    ] = "threshold",
    prefer: PreferOption = None,
    rounds: Annotated[int, typer.Option(min=1, max=100_000, help="Number of rounds.")] = 5,
    seed: SeedOption = 0,
    engine: Annotated[
        str, typer.Option(help="simulation (devices in Ray) or deployment (a process for each device, on loopback).")
    ] = "simulation",
    superlink: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="Use a running SuperLink of your Flower configuration instead."
        ),
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="With --superlink: JSON file with the Flower node of each device; default: nodes name their device.",
        ),
    ] = None,
    node: Annotated[
        str, typer.Option(help="What connects the devices of a deployment: flower (SuperNode) or tandem (faster).")
    ] = "flower",
    hardware: HardwareOption = "simulated",
    deadline_s: Annotated[
        float | None,
        typer.Option("--deadline", min=0.1, metavar="S", help="Timeout for a round's reports; default: L_max + 50."),
    ] = None,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, metavar="S", help="Timeout for devices to connect before the first round.")
    ] = 120,
    overrides: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results; default: fleets/SCENARIO-POLICY.", show_default=False)
    ] = None,
    trace: Annotated[str, typer.Option(help="Format of the trace: csv, parquet or none.")] = "csv",
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Resume a stopped run with its own options.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a fleet: in every round the server decides, and devices serve or train and send a report.

    While every device answers, decisions, queues and data are those of 'tandem simulate' with the same scenario, task,
    seed and policy. A device that does not answer misses only that round. Writes fleet.json, scenario.yaml and a trace
    in the simulator's format. A run that was stopped can be continued with --resume.
    """
    if resume is not None:
        _refuse_other_options(context, resume)
        fleet_run = open_fleet_run(resume)
        if fleet_run.finished:
            typer.echo(f"{resume}: is already finished; nothing was done.", err=True)
    else:
        preference = None if prefer is None else parse_preference(prefer)
        loaded = load_scenario(scenario, {**task_overrides(task, data), **parse_overrides(overrides), "rounds": rounds})
        config = FleetConfig(
            policy=policy,
            preference=preference,
            seed=seed,
            deadline_s=deadline_s,
            wait_s=wait_s,
            trace=trace,
            engine=engine,
            node=node,
            hardware=hardware,
            superlink=superlink,
            nodes=None if nodes is None else read_nodes(nodes, loaded.fleet.size),
        )
        check_installed()
        with task_spinner(loaded):
            fleet_run = create_run(loaded, out or default_folder(loaded, policy), config)
    document = _launch(fleet_run)
    if as_json:
        print_json(document)
        return
    _print(document)


@app.command("device")
def device(
    scenario: ScenarioArgument,
    number: Annotated[int, typer.Option(min=0, help="Number of this device in the fleet, from 0.")],
    address: Annotated[Path, typer.Option(help="Socket to listen on: the device-address of the SuperNode.")],
    store: Annotated[Path, typer.Option(help="Folder for the durable state of the device.")],
    seed: SeedOption = 0,
    hardware: HardwareOption = "simulated",
) -> None:
    """Run one device of a fleet: it holds its queue, samples and model, and follows the server's instructions."""
    loaded = load_scenario(scenario)
    with task_spinner(loaded):
        handler = build_client(loaded, number, store, seed, hardware)
    serve_forever(handler, address)


def _refuse_other_options(context: typer.Context, folder: Path) -> None:
    """Raise InputError for options other than --resume, since a run keeps the options it was started with."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and parameter.name not in ("resume", "as_json"):
            name = parameter.opts[0] if parameter.opts[0].startswith("-") else "SCENARIO"
            raise InputError(
                f"{name}: the run in {folder} keeps the options it was started with; omit {name}, or start another run "
                "without --resume."
            )


def _launch(fleet_run: FleetRun) -> dict[str, Any]:
    config, scenario, size = fleet_run.config, fleet_run.scenario, fleet_run.size
    title = f"Running {config.policy} on {scenario.name}: {size} devices, {scenario.rounds} rounds over Flower"
    try:
        with progress_bar(title) as progress:

            def show_round(line: dict[str, Any]) -> None:
                progress(line["done"], scenario.rounds, f"rounds, {line['reported']} of {size} devices reported")

            return launch_fleet(fleet_run, show_round)
    except KeyboardInterrupt:
        message = f"resume with 'tandem fleet run --resume {shlex.quote(str(fleet_run.folder))}'."
        if config.superlink is not None:
            stop = f"flwr stop RUN-ID {config.superlink}"
            message = f"the run continues at the SuperLink; stop it with '{stop}', and later {message}"
        typer.echo(f"tandem: interrupted; {message}", err=True)
        raise typer.Exit(130) from None


def _print(document: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"[bold]{escape(document['policy'])}[/bold] on [bold]{escape(document['scenario'])}[/bold]: "
        f"{document['devices']} devices, {document['rounds']} rounds over Flower ({document['engine']})",
        highlight=False,
    )
    table = Table("", "", "", box=None)
    for name, label in zip(OBJECTIVE_KEYS, AXIS_LABELS, strict=True):
        table.add_row(label, f"{document['objectives'][name]:.4g}", "")
    table.add_row("trainers per round", f"{document['trainers_per_round']:.2f}", "")
    table.add_row("reports", str(document["reports"]), f"of {document['reports_expected']}")
    wall = document["wall_s_by_round"]
    table.add_row("wall-clock time per round (s)", f"{sum(wall) / len(wall):.2f}", f"first round {wall[0]:.1f}")
    console.print(table)
    for failure in document["failures"]:
        line = f"round {failure['round']}, {failure['device']}: {failure['reason']}"
        console.print(line, style="dim", highlight=False, markup=False)
    console.print(f"Written to {document['folder']}/", highlight=False, markup=False, soft_wrap=True)
