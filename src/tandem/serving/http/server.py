"""The service on uvicorn: where it listens, TLS, and an orderly end on SIGTERM and Ctrl-C."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from tandem.errors import InputError
from tandem.io.http import is_loopback
from tandem.io.http_server import GracefulServer, address_of, bind, run_event_loop
from tandem.serving.http.app import StopSignal, create_app
from tandem.serving.http.guard import Limits
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


def run_server(service: Service, config: ServerConfig, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests that are being answered. ``started`` gets the address."""
    listener = bind(config.host, config.port)
    address = address_of(listener, "http" if config.tls_certificate is None else "https")

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
        await GracefulServer(settings, stop.set, lambda: started(address)).serve([listener])

    run_event_loop(serve())
