"""What the HTTP servers share: errors as documents (RFC 9457), limits on bodies, and requests of this machine alone.

This module needs starlette, which the extra ``serve`` installs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import Message, Receive

MEDIA_TYPE = "application/problem+json"
BODY_TIMEOUT_S = 60.0
_PLAIN_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")
_DRAIN_TIMEOUT_S = 10.0
_DRAINED_BYTES = 2**26  # of a refused body, so that its sender reads the answer


class RequestError(Exception):
    """A request that is refused, with the status of the answer."""

    def __init__(
        self, status: int, detail: str, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.errors = [] if field is None else [(field, detail)]
        self.headers = headers


def problem_response(
    status: int, detail: str, errors: Sequence[tuple[str, str]] = (), headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as a response, without a stack trace."""
    document = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "errors": [{"field": field, "problem": problem} for field, problem in errors],
    }
    return Response(json.dumps(document), status, headers, MEDIA_TYPE)


class LimitedBody:
    """A request body that is refused if it is too large or too slow."""

    def __init__(self, receive: Receive, limit: int) -> None:
        """Limit the size of the body that ``receive`` returns."""
        self._receive = receive
        self._limit = limit
        self._size = 0
        self._deadline_s = time.monotonic() + BODY_TIMEOUT_S
        self.complete = False

    async def receive(self) -> Message:
        """Return the next part."""
        if self.complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._deadline_s - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(408, "the body did not arrive in time") from None
        self.complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise too_large(self._limit)
        return message

    async def drain(self) -> None:
        """Read what is left, up to a limit: a sender that is cut off does not read why."""
        left = _DRAINED_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                while left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return


def too_large(limit: int) -> RequestError:
    """Return the error for a body that is larger than the limit."""
    return RequestError(413, f"the body is larger than {limit} bytes", "body")


@lru_cache(maxsize=64)
def _is_this_machine(host: str) -> bool:
    """Return whether a Host header names this machine."""
    name = urlsplit(f"//{host}").hostname if _PLAIN_HOST.fullmatch(host) else None
    return name is not None and is_loopback(name)


def check_local(headers: dict[bytes, bytes]) -> None:
    """Refuse what a web page in a browser on this machine could send to a service without tokens."""
    host = headers.get(b"host", b"").decode("latin-1")
    if not _is_this_machine(host):
        raise RequestError(403, "is not a name of this machine; without tokens, use 127.0.0.1 or localhost", "Host")
    origin = headers.get(b"origin")
    if origin is not None and origin.decode("latin-1").partition("://")[2] != host:
        raise RequestError(403, "is another site; create tokens to use the service from a web page", "Origin")


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
