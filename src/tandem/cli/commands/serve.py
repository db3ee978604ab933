"""``tandem serve``: the scheduler as an HTTP service, with a database."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.demo import DemoFleet, check_tls, check_tokens, prepare_demo
from tandem.cli.options import PreferOption, parse_preference
from tandem.errors import InputError

if TYPE_CHECKING:
    from tandem.serving.policy_file import PolicyFile
    from tandem.serving.storage import Store

DEFAULT_DATABASE = "tandem.db"
DatabaseOption = Annotated[
    str,
    typer.Option(metavar="URL", help="postgresql://USER@HOST/NAME, or a file for SQLite.", envvar="TANDEM_DATABASE"),
]
FleetOption = Annotated[str, typer.Option(metavar="NAME", help="Name of the fleet; a database may hold several.")]


def serve(
    context: typer.Context,
    policy: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN_OR_FILE]",
            help="Folder of a run, or a file of 'tandem export'. Needed for the first start with a database.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at. Others than loopback need tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8321,
    database: DatabaseOption = DEFAULT_DATABASE,
    fleet: FleetOption = "default",
    activate: Annotated[
        bool, typer.Option("--activate", help="Use RUN_OR_FILE even if the database has another active version.")
    ] = False,
    prefer: PreferOption = None,
    min_accuracy: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="A", help="Smallest accuracy.", show_default=False)
    ] = None,
    max_latency: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Largest latency in seconds.", show_default=False)
    ] = None,
    max_energy: Annotated[
        float | None, typer.Option(min=0, metavar="J", help="Largest energy in joules.", show_default=False)
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate (PEM) for HTTPS.", show_default=False)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key.", show_default=False)] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Authority whose certificates clients must have.", show_default=False),
    ] = None,
    keep_rounds: Annotated[int, typer.Option(min=0, help="Rounds to keep; 0 keeps all.")] = 100_000,
    keep_days: Annotated[
        float | None, typer.Option(min=0.01, metavar="DAYS", help="Delete older rounds.", show_default=False)
    ] = None,
    max_body_mb: Annotated[float, typer.Option(min=0.001, max=1024, help="Largest request body in MiB.")] = 32,
    max_devices: Annotated[int, typer.Option(min=1, help="Most devices in a request.")] = 100_000,
    tune: Annotated[
        bool, typer.Option("--tune/--no-tune", help="Fine-tune the policy in the background; see 'tandem tune'.")
    ] = True,
    max_rate: Annotated[
        float, typer.Option(min=0, help="Most requests per second for each token; 0 is no limit.")
    ] = 2000,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Also start a simulated fleet that uses the service, and show its rounds. Without RUN_OR_FILE, train "
            "a small run into runs/demo first. The database is a file beside the run, unless --database is given.",
        ),
    ] = False,
    demo_pace: Annotated[
        float, typer.Option(min=0, metavar="N", help="Rounds per second of the demo; 0 is no limit.")
    ] = 4.0,
) -> None:
    """Serve decisions over HTTP, each stored before it is answered.

    A restarted server goes on with the operating point, the version and the round number of its database. Several
    servers may share one PostgreSQL database. Tokens are created with 'tandem token create'; without any, only this
    machine can use the service.
    """
    _check_installed()
    from threadpoolctl import threadpool_limits

    from tandem.io.child_process import ChildProcess
    from tandem.serving.access import TokenBook
    from tandem.serving.bodies import read_operating_point
    from tandem.serving.http.guard import Limits
    from tandem.serving.http.server import ServerConfig, check_config, run_server
    from tandem.serving.messages import OperatingPoint
    from tandem.serving.scheduler import Scheduler
    from tandem.serving.service import Service, ServiceConfig, publish, unpack_policy_file
    from tandem.serving.storage import Retention

    if demo:
        check_tls(tls_cert, tls_key, tls_client_ca)
        files = prepare_demo(policy)
        policy = files.policy
        source = context.get_parameter_source("database")
        if source is None or source.name != "COMMANDLINE":  # nor the database of TANDEM_DATABASE: it is a demo
            database = str(files.database)
    # The demo has a table of its own.
    level = logging.WARNING if demo else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Small matrices are slower with several threads, and far slower if other processes use the cores.
    threadpool_limits(limits=1, user_api="blas")
    config = ServerConfig(
        host, port, tls_cert, tls_key, tls_client_ca, Limits(int(max_body_mb * 2**20), requests_per_s=max_rate)
    )
    wanted = OperatingPoint(None if prefer is None else parse_preference(prefer), min_accuracy, max_latency, max_energy)
    # Before the database is created: a wrong path leaves nothing behind.
    scheduler = None if policy is None else Scheduler(_read_policy(policy))
    store = open_store(database, fleet)
    try:
        tokens = store.list_tokens()
        check_config(config, TokenBook(tokens).usable())
        if demo:
            check_tokens(store.place, bool(tokens))
        state = store.read_state()
        has_point = wanted != OperatingPoint()
        if scheduler is not None:
            content = scheduler.policy_file
            if has_point:
                scheduler.choose(wanted)
            first = state.version is None
            publish(store, content, by="tandem serve")
            if (first or activate) and has_point:  # both at once: the old point may not fit the new version
                store.set_operating_point(wanted.document(), "tandem serve")
            if first or activate:
                publish(store, content, activate=True, by="tandem serve")
            elif state.version != content.version:
                typer.echo(
                    f"{policy}: was stored as version {content.version}; the database's active version "
                    f"{state.version} is used. Use --activate to use this one."
                )
        elif state.version is None:
            raise InputError(f"{store.place}: has no policy yet; name a run or an export file to serve.")
        state = store.read_state()
        if has_point and wanted != read_operating_point(state.operating_point):
            Scheduler(unpack_policy_file(store.read_version(str(state.version)))).choose(wanted)
            store.set_operating_point(wanted.document(), "tandem serve")
        service = Service(store, ServiceConfig(max_devices, Retention(keep_rounds or None, keep_days)))
        demo_fleet: DemoFleet | None = None

        def announce(address: str) -> None:
            typer.echo(
                f"Serving fleet {fleet!r} at {address}, version {state.version}, round {state.newest_round + 1}."
            )
            typer.echo(
                f"Database: {store.place}. Tokens: {'needed' if tokens else 'none, so only this machine may ask'}."
            )
            if demo and policy is not None:
                nonlocal demo_fleet
                demo_fleet = children.enter_context(DemoFleet(policy, address, demo_pace))

        with contextlib.ExitStack() as children:
            if tune:
                os.environ["TANDEM_DATABASE"] = database  # not as an argument: everybody can see those
                output = subprocess.DEVNULL if demo else None  # the demo's table shows new versions
                children.enter_context(ChildProcess(["tune", "--fleet", fleet], stdout=output))
            run_server(service, config, announce)
        typer.echo("Stopped.")
        if demo_fleet is not None and demo_fleet.failed:
            raise typer.Exit(1)
    finally:
        store.close()


def _read_policy(path: Path) -> PolicyFile:
    """Read an export file, or export a run in a process of its own, since the service must not import JAX."""
    from tandem.io.child_process import ChildProcess
    from tandem.serving.policy_file import read_policy_file

    if not path.is_dir():
        return read_policy_file(path)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.safetensors"
        with ChildProcess(["export", path, "--out", file], stdout=subprocess.DEVNULL) as child:
            code = child.wait()
        if code:
            raise typer.Exit(code if code > 0 else 1)  # the child has said why
        return replace(read_policy_file(file), source=str(path))


def open_store(database: str, fleet: str) -> Store:
    """Open the store of a fleet, with errors for the user."""
    _check_installed()
    from tandem.serving.storage import StorageUnavailableError, Store

    if not fleet or len(fleet) > 100 or not fleet.isprintable():
        raise InputError("--fleet: must be printable and have 1 to 100 characters.")
    try:
        return Store.open(database, fleet)
    except StorageUnavailableError as error:
        raise InputError(f"--database: cannot be used ({error}); check the URL and the server.") from None


def _check_installed() -> None:
    needed = ("alembic", "fastapi", "httpx", "prometheus_client", "psycopg", "sqlalchemy", "uvicorn")
    for name in needed:
        if find_spec(name) is None:
            raise InputError(f"{name} is not installed; install Tandem with: pip install 'tandem[serve]'.")
