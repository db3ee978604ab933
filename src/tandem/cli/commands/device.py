"""``tandem device``: one device that answers requests over HTTP and trains its model as the scheduler says."""

from __future__ import annotations

import contextlib
import logging
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.options import read_token
from tandem.device.agent import AgentConfig, DeviceAgent
from tandem.device.control import answer_messages, listen
from tandem.device.hardware import Cpufreq
from tandem.device.messages import ProtocolError
from tandem.device.meters import EnergyMeter, EstimatedEnergy, find_meter
from tandem.device.model import load_model
from tandem.device.store import DeviceStore
from tandem.errors import InputError
from tandem.io.atomic import reason
from tandem.io.child_process import ChildProcess

HARDWARE = ("none", "cpufreq")
RESTART_S = 2.0  # before a child process that has ended is started again


def device(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="Function that builds the model, e.g. mymodel:build or tandem.federated.task_model:digits.",
        ),
    ],
    store: Annotated[Path, typer.Option(help="Folder for requests, labels, samples and model. One device each.")],
    number: Annotated[int, typer.Option(min=0, help="Number of this device in the fleet, from 0.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen at; others than loopback need --token-file.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8400,
    address: Annotated[
        Path | None,
        typer.Option(help="Socket for instructions: the device-address of the SuperNode.", show_default=False),
    ] = None,
    max_queue: Annotated[int, typer.Option(min=1, help="Most inputs that wait; more get 429.")] = 1000,
    max_samples: Annotated[int, typer.Option(min=1, help="Most labelled samples; more feedback gets 429.")] = 100_000,
    batch: Annotated[int, typer.Option(min=1, help="Most inputs that are served together.")] = 64,
    deadline_s: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            min=0.001,
            metavar="S",
            help="Deadline of requests that name none; default: none.",
            show_default=False,
        ),
    ] = None,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, metavar="S", help="How long a connection waits for its answer.")
    ] = 30.0,
    feedback_hours: Annotated[
        float, typer.Option(min=0.001, metavar="H", help="How long answered requests are kept for feedback.")
    ] = 24.0,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="Largest body, in MiB.")] = 16.0,
    hardware: Annotated[str, typer.Option(help="How the frequency is set: none or cpufreq (Linux).")] = "none",
    energy: Annotated[
        str,
        typer.Option(
            help="Energy meter: auto, none, rapl, ina3221, file:PATH (joules) or command:COMMAND (prints watts)."
        ),
    ] = "auto",
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="SCENARIO",
            help="Estimate energy by the constants of this scenario's device, if nothing measures it.",
            show_default=False,
        ),
    ] = None,
    superlink: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Flower SuperLink that instructions come from; starts 'tandem node'.",
            show_default=False,
        ),
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="Authority of the SuperLink's certificate.", show_default=False)
    ] = None,
    node_key: Annotated[
        Path | None, typer.Option(help="Private key, for a SuperLink that authenticates nodes.", show_default=False)
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that requests need; default: none, only this machine may ask."),
    ] = None,
) -> None:
    """Run a live device: answer requests over HTTP, and train on their labels.

    Instructions of the scheduler come from a Flower SuperLink (--superlink) or a socket (--address); without them the
    device serves. Everything that was accepted is on disk: a device that is killed and started again goes on. POST
    /predict asks for predictions, POST /feedback gives the right labels, and GET /status, /metrics and /healthz tell
    how the device is.
    """
    _check_installed()
    from tandem.device.http import HttpConfig, create_app

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("jax", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    token = None if token_file is None else read_token(token_file)
    _check_host(host, token)
    if hardware not in HARDWARE:
        raise InputError(f"--hardware {hardware}: use {' or '.join(HARDWARE)}.")
    controls = Cpufreq() if hardware == "cpufreq" else None
    if superlink is not None and find_spec("flwr") is None:
        raise InputError("--superlink: needs Flower; install it with pip install 'tandem[flower]'.")
    meter = find_meter(energy) or _estimate(scenario, number)
    model = load_model(factory)
    try:
        opened = DeviceStore(store, model.input_shape, max_queue=max_queue, max_samples=max_samples)
    except OSError as error:
        raise InputError(f"--store {store}: cannot be used ({reason(error)}); name another folder.") from None
    try:
        config = AgentConfig(number, batch, feedback_hours * 3600)
        try:
            agent = DeviceAgent(model, opened, config, hardware=controls, meter=meter)
        except ProtocolError as error:
            raise InputError(f"--store {store}: holds another model; {error}") from None
        http = HttpConfig(int(max_body_mb * 2**20), deadline_s, wait_s, token)
        if superlink is not None and address is None:
            address = store / "control"
        app = create_app(agent, http)
        with contextlib.ExitStack() as children:
            if superlink is not None:
                command = ["node", superlink, "--number", number, "--address", address]
                command += [] if root_certificates is None else ["--root-certificates", root_certificates]
                command += [] if node_key is None else ["--node-key", node_key]
                children.enter_context(_Restarted(command))
            _serve(app, agent, host, port, address)
    finally:
        opened.close()


class _Restarted:
    """A child process that is started again when it ends: a SuperLink may be away for a while."""

    def __init__(self, command: list[object]) -> None:
        self._command = command
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            with ChildProcess(self._command) as child:
                while child.poll() is None and not self._closed.wait(0.2):
                    pass
            self._closed.wait(RESTART_S)


def _serve(app: object, agent: DeviceAgent, host: str, port: int, address: Path | None) -> None:
    import uvicorn

    from tandem.io.http_server import GracefulServer, address_of, bind, run_event_loop

    listener = bind(host, port)
    if address is not None:
        control = listen(address)
        threading.Thread(target=answer_messages, args=(control, agent.handle), daemon=True).start()

    def announce() -> None:
        waiting = f"{agent.store.waiting} requests wait, {agent.store.samples} samples"
        typer.echo(f"Device {agent.config.device} at {address_of(listener)}; {waiting}.")
        typer.echo(f"Instructions: {address if address is not None else 'none, so the device serves'}.")

    async def serve() -> None:
        settings = uvicorn.Config(
            app,  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            limit_concurrency=2048,
            timeout_graceful_shutdown=5,
        )
        await GracefulServer(settings, lambda: None, announce).serve([listener])

    run_event_loop(serve())
    typer.echo("Stopped.")


def _estimate(scenario: str | None, number: int) -> EnergyMeter | None:
    if scenario is None:
        return None
    from tandem.scenario import load_scenario
    from tandem.scenario.device_table import build_device_table

    table = build_device_table(load_scenario(scenario))
    if number >= len(table):
        raise InputError(f"--number {number}: the scenario has devices 0 to {len(table) - 1}; choose one of them.")
    return EstimatedEnergy(float(table.capacitance[number]), float(table.frequency_max_hz[number]))


def _check_host(host: str, token: str | None) -> None:
    from tandem.io.http import is_loopback

    if token is None and not is_loopback(host):
        raise InputError(
            f"--host {host}: other machines could use the device without a token; give --token-file, or use 127.0.0.1."
        )


def _check_installed() -> None:
    for name in ("fastapi", "prometheus_client", "uvicorn"):
        if find_spec(name) is None:
            raise InputError(f"{name} is not installed; install Tandem with: pip install 'tandem[serve]'.")
