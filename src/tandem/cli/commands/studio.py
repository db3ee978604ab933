"""``tandem studio``: a local web page for fronts, policies, trainings and fleets."""

from __future__ import annotations

import os
import sys
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tandem.errors import InputError


def studio(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN...]", help="Folders of runs, or folders that contain runs. Default: runs.", show_default=False
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8322,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A running 'tandem serve' to watch and to set the operating point of. If it has tokens, set "
            "TANDEM_TOKEN to one; an operator's is needed to change anything.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for runs that are trained from the page.")] = Path(
        "runs"
    ),
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser, or print its address only.")
    ] = True,
) -> None:
    """Open a local page to see fronts, choose a policy, and watch trainings and fleets.

    The page is only for this machine, and reads only the folders that are named. Ctrl-C ends it; a training that was
    started from the page is then saved and can be resumed.
    """
    for name in ("fastapi", "httpx", "plotly", "uvicorn"):
        if find_spec(name) is None:
            raise InputError(f"{name} is not installed; install Tandem with: pip install 'tandem[studio]'.")
    if server is not None and not server.startswith(("http://", "https://")):
        raise InputError(f"--server {server}: is not a URL; write one such as http://127.0.0.1:8321.")
    for folder in folders or ():
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; name a run, or a folder that contains runs.")

    typer.echo("Starting the studio ...", err=True)
    from tandem.studio.server import run_studio  # imports JAX, which takes a moment

    def started(address: str) -> None:
        typer.echo(f"The studio is at {address}/ (Ctrl-C ends it).")
        if open_browser:
            webbrowser.open(f"{address}/")

    run_studio(folders or [Path("runs")], port, out, server, os.environ.get("TANDEM_TOKEN"), started)
    # Everything is closed. A thread in which JAX still compiles cannot be ended, and crashes an orderly exit.
    sys.stdout.flush()
    os._exit(0)
