"""uvicorn with TLS, on a socket that is bound before the start, and with an orderly end on SIGTERM and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from tandem.errors import InputError
from tandem.io.atomic import reason
from tandem.serving.http.app import StopSignal, create_app
from tandem.serving.http.guard import Limits, is_loopback
from tandem.serving.service import Service

GRACE_S = 30  # for requests that are being answered when the server is told to end


@dataclass(frozen=True)
class ServerConfig:
    """Where to listen, with which certificates, and the limits on requests."""

    host: str = "127.0.0.1"
    port: int = 8321
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # with it, clients need a certificate of this authority
    limits: Limits = field(default_factory=Limits)


def check_config(config: ServerConfig, has_tokens: bool) -> None:
    """Raise InputError for a server that could not start, or that anybody could use over the network."""
    if not has_tokens and not is_loopback(config.host):
        raise InputError(
            f"--host {config.host}: other machines could use the service without a token; create one with "
            "'tandem token create' first, or use --host 127.0.0.1."
        )
    given = [config.tls_certificate, config.tls_key]
    if (given[0] is None) != (given[1] is None):
        raise InputError("--tls-cert and --tls-key: give both, or none.")
    if config.tls_client_ca is not None and config.tls_certificate is None:
        raise InputError("--tls-client-ca: needs --tls-cert and --tls-key as well.")
    try:
        if config.tls_certificate is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*map(str, (config.tls_certificate, config.tls_key)))
        if config.tls_client_ca is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(config.tls_client_ca)
    except (OSError, ssl.SSLError) as error:
        place = config.tls_client_ca if isinstance(error, ssl.SSLError) and config.tls_client_ca else given[0]
        raise InputError(f"{place}: the certificate, its key or the authority cannot be read ({error}).") from None


def bind(config: ServerConfig) -> socket.socket:
    """Return a socket that listens at the address. Port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise InputError(
            f"--host {config.host} --port {config.port}: cannot be used ({reason(error)}); choose another port."
        ) from None
    listener.setblocking(False)
    return listener


def run_server(service: Service, config: ServerConfig, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests that are being answered. ``started`` gets the address."""
    listener = bind(config)
    scheme = "http" if config.tls_certificate is None else "https"
    host, port = listener.getsockname()[:2]
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def serve() -> None:
        stop = StopSignal()
        tls: dict[str, Any] = {}
        if config.tls_certificate is not None:
            tls = {"ssl_certfile": config.tls_certificate, "ssl_keyfile": config.tls_key}
        if config.tls_client_ca is not None:
            tls |= {"ssl_ca_certs": str(config.tls_client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        settings = uvicorn.Config(
            create_app(service, config.limits, stop),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who asks is known by the token
            lifespan="on",
            limit_concurrency=2048,
            timeout_graceful_shutdown=GRACE_S,
            **tls,
        )
        await _Server(settings, stop, lambda: started(address)).serve([listener])

    with asyncio.Runner(loop_factory=uvicorn.Config(app="", log_config=None).get_loop_factory()) as runner:
        runner.run(serve())


class _Server(uvicorn.Server):
    """A server that ends event streams when it is told to stop, and whose process then ends with code 0."""

    def __init__(self, config: uvicorn.Config, stop: StopSignal, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is there now stays: collections need not look at it, which took up to 0.1 s
        if not self.should_exit:
            self._on_start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals here. uvicorn would send them to the process again after the end."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            self._stop.set()
            self.force_exit = self.should_exit  # a second signal does not wait for requests
            self.should_exit = True

        signals = (signal.SIGINT, signal.SIGTERM)
        for each in signals:
            loop.add_signal_handler(each, end)
        try:
            yield
        finally:
            for each in signals:
                loop.remove_signal_handler(each)
