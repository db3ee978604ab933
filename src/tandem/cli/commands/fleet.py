"""``tandem fleet``: run devices and server as separate processes, over Flower."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem.cli.options import (
    JsonOption,
    PreferOption,
    ScenarioArgument,
    SetOption,
    check_url,
    check_writable,
    parse_overrides,
    parse_preference,
    print_json,
    read_token,
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

if TYPE_CHECKING:
    from tandem.live import LiveRound

app = typer.Typer(no_args_is_help=True, help="Run a fleet for real: devices and server as processes, over Flower.")

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


@app.command("load")
def load(
    urls: Annotated[
        list[str], typer.Argument(metavar="URL...", help="Addresses of devices, such as http://127.0.0.1:8400.")
    ],
    task: TaskOption = None,
    data: DataOption = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Send .npy files instead of a task; labels.csv has file and label.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.001, metavar="N", help="Requests per second at each device.")] = 6.0,
    duration_s: Annotated[float, typer.Option("--duration", min=0.1, metavar="S", help="How long to send.")] = 60.0,
    feedback_delay_s: Annotated[
        float, typer.Option("--feedback-delay", min=0, metavar="S", help="Mean time from an answer to its label.")
    ] = 1.0,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Longest wait.")] = 60.0,
    seed: SeedOption = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token of the devices.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV file with one line for each request.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send requests to live devices, and their labels later; report accuracy and latency as a client sees them.

    Requests of a task drift as in the simulator. They arrive at random times, whatever the devices do. Ctrl-C ends the
    load early and reports what was measured.
    """
    if importlib.util.find_spec("httpx") is None:
        raise InputError("httpx is not installed; install Tandem with: pip install 'tandem[serve]'.")
    from tandem.device.load import FolderRequests, Load, LoadConfig, RequestSource, summarise, write_records

    addresses = [check_url(url) for url in urls]
    if (task is None) == (folder is None):
        raise InputError("--task and --folder: name one of them, such as --task digits.")
    if out is not None:
        check_writable(out, "--out")
    token = None if token_file is None else read_token(token_file)
    source: RequestSource
    if folder is not None:
        source = FolderRequests(folder, seed)
    else:
        from tandem.federated.task_requests import TaskRequests

        scenario = load_scenario("paper", task_overrides(task, data))
        assert scenario.accuracy.task is not None
        with task_spinner(scenario):
            source = TaskRequests(scenario.accuracy.task, len(addresses), seed)
    config = LoadConfig(rate, duration_s, feedback_delay_s, timeout_s, seed, token)
    running = Load(addresses, source, config)
    with progress_bar(f"Sending to {len(addresses)} devices") as progress:
        running.on_progress = lambda elapsed: progress(
            int(elapsed), int(duration_s), f"s, {len(running.records)} requests"
        )
        try:
            asyncio.run(running.run())
        except KeyboardInterrupt:
            pass
        except ExceptionGroup as group:  # of a file that cannot be sent
            raise group.exceptions[0] from None
    document = summarise(running.records, len(addresses), running.elapsed_s)
    if out is not None:
        write_records(out, running.records)
    if as_json:
        print_json(document)
        return
    _print_load(addresses, document)


@app.command("live")
def live(
    addresses: Annotated[
        list[Path],
        typer.Argument(metavar="SOCKET...", help="The --address of each 'tandem device', in the order of numbers."),
    ],
    factory: Annotated[
        str, typer.Option("--model", metavar="MODULE:FACTORY", help="The model of the devices, for its first weights.")
    ],
    server: Annotated[str, typer.Option(metavar="URL", help="Address of 'tandem serve', which decides.")] = (
        "http://127.0.0.1:8321"
    ),
    scenario: Annotated[
        str, typer.Option(metavar="SCENARIO", help="Scenario of the served policy: names and constants of the devices.")
    ] = "paper",
    overrides: SetOption = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token of 'tandem serve'.", show_default=False)
    ] = None,
    duration_s: Annotated[
        float | None, typer.Option("--duration", min=0.1, metavar="S", help="End after this time.", show_default=False)
    ] = None,
    deadline_s: Annotated[
        float | None,
        typer.Option("--deadline", min=0.1, metavar="S", help="Longest wait for reports; default: L_max + 1."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the state of the server; a run in it goes on.")] = Path(
        "fleets/live"
    ),
) -> None:
    """Schedule live devices on this machine: rounds on a wall clock, with the decisions of 'tandem serve'.

    In each round the devices' measured state goes to the service, and its decision to the devices; updates of those
    that trained are averaged. Prints a line for each round, until Ctrl-C. The service has the history, and tunes.
    """
    if importlib.util.find_spec("httpx") is None:
        raise InputError("httpx is not installed; install Tandem with: pip install 'tandem[serve]'.")
    from tandem.device.model import load_model
    from tandem.live import LiveConfig, LiveServer, SocketTransport
    from tandem.serving.client import Client, ServiceError

    url = check_url(server)
    loaded = load_scenario(scenario, {**parse_overrides(overrides), "fleet.size": len(addresses)})
    config = LiveConfig.from_scenario(loaded)
    token = None if token_file is None else read_token(token_file)
    weights = load_model(factory).get_weights()
    transport = SocketTransport(addresses, deadline_s or config.round_max_s + 1)
    until_s = math.inf if duration_s is None else time.monotonic() + duration_s
    try:
        with Client(url, token) as client:
            running = LiveServer(config, weights, client, transport, out)
            while time.monotonic() < until_s:
                try:
                    typer.echo(_live_line(running.run_round(), config.names))
                except ServiceError as error:
                    if error.status is not None and error.status < 500:
                        raise InputError(f"--server {url}: refused a request ({error}).") from None
                    typer.echo(f"waiting for {url}: {error}", err=True)  # the devices serve meanwhile
                    time.sleep(1)
    except KeyboardInterrupt:
        typer.echo(f"tandem: interrupted; the state is in {out}, and the same command goes on.", err=True)
        raise typer.Exit(130) from None
    finally:
        transport.close()


def _live_line(done: LiveRound, names: Sequence[str]) -> str:
    if done.decision is None:
        line = f"first exchange: {len(done.reports)} of {len(names)} devices"
    else:
        served = sum(report.served for report in done.reports.values())
        latency_s = sum(report.latency_s for report in done.reports.values()) / served if served else 0.0
        accuracy = "" if done.accuracy is None else f", accuracy {done.accuracy:.3f}"
        line = f"round {done.number}: {done.duration_s:.2f} s, {len(done.trained)} trained, {served} served in "
        line += f"{latency_s:.2f} s{accuracy}, {done.energy_j:.3g} J{' (estimate)' if done.energy_is_estimated else ''}"
    missing = "".join(f"; {names[n]}: {reason}" for n, reason in done.failures.items())
    return line + missing


def _print_load(addresses: list[str], document: dict[str, Any]) -> None:
    console = Console()
    table = Table("device", "requests", "answered", "labelled", "accuracy", "latency (s)", "p99 (s)", box=None)
    for name, row in zip([*addresses, "all"], [*document["devices"], document], strict=True):
        measured = (row[key] for key in ("accuracy", "latency_s", "latency_p99_s"))
        cells = ["" if value is None else f"{value:.3f}" for value in measured]
        table.add_row(name, *(str(row[key]) for key in ("requests", "answered", "labelled")), *cells)
    console.print(table)
    unanswered = {key: document[key] for key in ("rejected", "expired", "refused", "without_answer") if document[key]}
    if unanswered:
        causes = ", ".join(f"{number} {key.replace('_', ' ')}" for key, number in unanswered.items())
        console.print(f"Not answered: {causes}.", highlight=False)


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
