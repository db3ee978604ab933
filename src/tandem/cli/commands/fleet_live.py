"""``tandem fleet live``, ``load`` and ``demo``: live devices, the requests that they answer, and all of it at once."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tandem.cli.demo import prepare_demo
from tandem.cli.options import (
    JsonOption,
    SetOption,
    check_url,
    check_writable,
    parse_overrides,
    print_json,
    read_token,
)
from tandem.cli.progress import progress_bar, spinner
from tandem.cli.task_options import DataOption, TaskOption, task_overrides, task_spinner
from tandem.errors import InputError
from tandem.io.atomic import results_folder
from tandem.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from tandem.device.load import Load, RequestSource
    from tandem.live.flower_app import LiveSettings

SeedOption = Annotated[int, typer.Option(min=0, max=2**31, help="Random seed of the requests.")]
DEMO_MODEL = "tandem.federated.task_model:digits"
SOCKETS_S = 1.0  # of the deadline of a round, for messages over sockets
RECENT = 200  # requests of a device that the demo's table shows the accuracy and latency of


def live(
    addresses: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[SOCKET]...",
            help="The --address of each 'tandem device' on this machine, in the order of numbers.",
            show_default=False,
        ),
    ] = None,
    factory: Annotated[
        str, typer.Option("--model", metavar="MODULE:FACTORY", help="The model of the devices, for its first weights.")
    ] = DEMO_MODEL,
    server: Annotated[str, typer.Option(metavar="URL", help="Address of 'tandem serve', which decides.")] = (
        "http://127.0.0.1:8321"
    ),
    superlink: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Over Flower instead of sockets: a running SuperLink of your Flower configuration.",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="With --superlink: how many devices there are.", show_default=False)
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="With --superlink: JSON file with the Flower node of each device; default: nodes name their device.",
        ),
    ] = None,
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
        typer.Option(
            "--deadline",
            min=0.1,
            metavar="S",
            help="Longest wait for reports; default: L_max + 1, or + 3 over Flower.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the state of the server; a run in it goes on.")] = Path(
        "fleets/live"
    ),
) -> None:
    """Schedule live devices: rounds on a wall clock, with the decisions of 'tandem serve'.

    In each round the devices' measured state goes to the service, and its decision to the devices; updates of those
    that trained are averaged. Prints a line for each round, until Ctrl-C. The service has the history, and tunes.
    """
    _check_installed()
    from tandem.federated.fleet.config import read_nodes
    from tandem.live.flower_app import EXCHANGE_S, LiveSettings

    url = check_url(server)
    token = None if token_file is None else read_token(token_file)
    if (superlink is None) == (not addresses):
        raise InputError("SOCKET: name the sockets of the devices, or a SuperLink with --superlink and --devices.")
    if superlink is not None and devices is None:
        raise InputError("--devices: is missing; say how many devices connect to the SuperLink.")
    if nodes is not None and superlink is None:
        raise InputError("--nodes: is for devices at a SuperLink; name it with --superlink.")
    size = devices if superlink is not None else len(addresses or [])
    loaded = load_scenario(scenario, {**parse_overrides(overrides), "fleet.size": size})
    settings = LiveSettings(
        server=url,
        token=token,
        model=factory,
        # A node waits for 0.8 of the deadline, so that it is free for the next round.
        deadline_s=deadline_s or loaded.limits.round_max_s + (SOCKETS_S if superlink is None else EXCHANGE_S),
        duration_s=duration_s,
        nodes=None if nodes is None else read_nodes(nodes, loaded.fleet.size),
    )
    try:
        if superlink is None:
            _run_on_sockets(addresses or [], loaded, settings, out)
        else:
            _run_over_flower(superlink, loaded, settings, out)
    except KeyboardInterrupt:
        typer.echo(f"tandem: interrupted; the state is in {out}, and the same command goes on.", err=True)
        raise typer.Exit(130) from None


def _run_on_sockets(addresses: list[Path], scenario: Scenario, settings: LiveSettings, out: Path) -> None:
    from tandem.device.model import load_model
    from tandem.live import LiveConfig, LiveServer, SocketTransport
    from tandem.live.flower_app import run_rounds
    from tandem.serving.client import Client

    transport = SocketTransport(addresses, settings.deadline_s)
    try:
        with Client(settings.server, settings.token) as client:
            weights = load_model(settings.model).get_weights()
            server = LiveServer(LiveConfig.from_scenario(scenario), weights, client, transport, out)
            for document in run_rounds(server, settings):
                typer.echo(_describe_round(document))
    finally:
        transport.close()


def _run_over_flower(superlink: str, scenario: Scenario, settings: LiveSettings, out: Path) -> None:
    from tandem.federated.flower.launcher import check_installed, submit_run
    from tandem.live.flower_app import SETTINGS, follow_rounds, stop_rounds, write_settings
    from tandem.live.server import STATE

    check_installed()
    results_folder(out, SETTINGS, STATE)  # refuses a folder of something else
    write_settings(out, settings, scenario)
    with submit_run(out, superlink) as submitted:
        try:
            for document in follow_rounds(out, submitted):
                typer.echo(_describe_round(document))
        except KeyboardInterrupt:
            stop_rounds(out, submitted)
            raise


def _describe_round(done: dict[str, Any]) -> str:
    if "waiting" in done:
        return f"waiting for {done['waiting']}"
    if done["round"] is None:
        line = f"first exchange: {done['reported']} of {len(done['devices'])} devices"
    else:
        accuracy = "" if done["accuracy"] is None else f", accuracy {done['accuracy']:.3f}"
        latency = "" if done["latency_s"] is None else f" in {done['latency_s']:.2f} s"
        line = f"round {done['round']}: {done['duration_s']:.2f} s, {len(done['trained'])} trained, {done['served']} "
        line += f"served{latency}{accuracy}, {done['energy_j']:.3g} J"
        line += " (estimate)" if done["energy_is_estimated"] else ""
    return line + "".join(f"; {name}: {reason}" for name, reason in done["failures"].items())


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
    _check_installed()
    from tandem.device.load import FolderRequests, Load, LoadConfig, summarise, write_records

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


def demo(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Folder of a run; default: a small one is trained.", show_default=False),
    ] = None,
    devices: Annotated[int, typer.Option(min=1, max=30, help="Number of devices.")] = 4,
    rate: Annotated[float, typer.Option(min=0.001, metavar="N", help="Requests per second at each device.")] = 6.0,
    duration_s: Annotated[
        float | None, typer.Option("--duration", min=1, metavar="S", help="End after this time.", show_default=False)
    ] = None,
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="Folder for logs and results; it is replaced.")] = Path("fleets/demo"),
    as_json: JsonOption = False,
) -> None:
    """Run live devices on this machine: SuperLink, devices, requests with drift, and a scheduler, with one command.

    The devices answer requests of the task digits over HTTP and train on their labels, over Flower, with the decisions
    of a trained run. A table shows each device: mode, queue, samples, ages, and accuracy and latency as clients see
    them. Ctrl-C ends all processes.
    """
    _check_installed()
    from tandem.federated.flower.launcher import check_installed
    from tandem.live.demo import DemoConfig, run_demo

    check_installed()
    files = prepare_demo(run)
    config = DemoConfig(files.policy, DEMO_MODEL, devices, rate, duration_s, seed)
    display = _Display(as_json)
    try:
        with spinner("Starting SuperLink, service and devices"):
            running = run_demo(config, out)
            first = next(running)
        with display:
            display.show(*first)
            for document, load in running:
                display.show(document, load)
    except KeyboardInterrupt:
        pass
    summary = json.loads((out / "summary.json").read_text()) if (out / "summary.json").exists() else None
    if summary is None:
        raise typer.Exit(130)
    if as_json:
        print_json(summary)
        return
    _print_load([f"device-{n}" for n in range(devices)], summary["clients"])
    typer.echo(f"{summary['rounds']} rounds, {summary['trained']} updates averaged. Written to {out}/")


class _Display:
    """The devices of the demo: a live table on a terminal, otherwise a line for each round."""

    def __init__(self, quiet: bool) -> None:
        self._console = Console(stderr=quiet)
        self._quiet = quiet
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, document: dict[str, Any], load: Load) -> None:
        """Show a round."""
        if self._live is None:
            if not self._quiet:
                typer.echo(_describe_round(document))
            return
        table = Table(title=_describe_round(document), box=None, title_justify="left")
        for name in ("device", "mode", "queue", "samples", "data age", "model age", "accuracy", "latency"):
            table.add_column(name, justify="left" if name in ("device", "mode") else "right")
        for n, each in enumerate(document.get("devices", [])):
            accuracy, latency = _recent(load, n)
            mode = each["mode"] if each["present"] else "away"
            ages = [f"{each[name]:.0f} s" for name in ("data_age_s", "model_age_s")]
            table.add_row(
                each["device"], mode, f"{each['queue']:.0f}", f"{each['samples']:.0f}", *ages, accuracy, latency
            )
        self._live.update(table, refresh=True)


def _recent(load: Load, device: int) -> tuple[str, str]:
    """Return accuracy and mean latency of a device's last answers, as its clients see them."""
    answered = [each for each in load.records if each.device == device and each.latency_s is not None][-RECENT:]
    if not answered:
        return "", ""
    latency_s = sum(each.latency_s or 0.0 for each in answered) / len(answered)
    return f"{sum(each.is_correct for each in answered) / len(answered):.3f}", f"{latency_s:.2f} s"


def _check_installed() -> None:
    for name in ("fastapi", "httpx", "prometheus_client", "sqlalchemy", "uvicorn"):
        if find_spec(name) is None:
            raise InputError(f"{name} is not installed; install Tandem with: pip install 'tandem[serve]'.")
