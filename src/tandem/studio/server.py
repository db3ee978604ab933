"""The page on uvicorn, at a loopback address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from tandem.io.http_server import GracefulServer, address_of, bind, run_event_loop
from tandem.studio.app import create_app
from tandem.studio.library import Library
from tandem.studio.service import ServiceConnection
from tandem.studio.trainings import Trainings

HOST = "127.0.0.1"
GRACE_S = 5  # for requests that are being answered when the page is told to end


def run_studio(
    folders: Sequence[Path],
    port: int,
    out: Path,
    service_url: str | None,
    token: str | None,
    started: Callable[[str], None],
) -> None:
    """Serve the page until SIGTERM or Ctrl-C. ``started`` gets its address."""
    service = None if service_url is None else ServiceConnection(service_url, token)
    app = create_app(Library(folders), Trainings(out), service)
    listener = bind(HOST, port)
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=GRACE_S,
    )
    address = address_of(listener)
    run_event_loop(GracefulServer(settings, lambda: None, lambda: started(address)).serve([listener]))
