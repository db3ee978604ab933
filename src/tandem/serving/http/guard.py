"""What every request passes before it is handled: host, token, role, rate and size; afterwards errors and metrics."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.io.http import LimitedBody, RequestError, check_local, problem_response, too_large
from tandem.serving.access import RateLimit, Role
from tandem.serving.group_commit import QueueFullError
from tandem.serving.http.problems import describe_exception
from tandem.serving.service import Service

_OPEN_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json"})
_DEVICE_REQUESTS = frozenset(
    {
        ("POST", "/v1/decisions"),
        ("POST", "/v1/outcomes"),
        ("GET", "/v1/rounds"),
        ("GET", "/v1/operating-point"),
        ("GET", "/metrics"),
    }
)
_FAILURES_PER_S = 10.0  # wrong tokens from one address
_SMALL_BODY = 64 * 2**10
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Limits on requests."""

    max_body_bytes: int = 32 * 2**20
    max_held_bytes: int = 256 * 2**20  # of all bodies that are being received or handled
    requests_per_s: float = 2000.0  # for each token, or each address without tokens; 0 is no limit


class Guard:
    """Middleware (ASGI) around the application."""

    def __init__(self, app: ASGIApp, service: Service, limits: Limits, paths: Iterable[str]) -> None:
        self._app = app
        self._service = service
        self._limits = limits
        self._paths = frozenset(paths)  # for metrics; all others have one label
        self._rate = RateLimit(limits.requests_per_s)
        self._failures = RateLimit(_FAILURES_PER_S)
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0  # no answer has begun
        body = LimitedBody(receive, self._limits.max_body_bytes)

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        held = 0
        try:
            headers = dict(scope["headers"])
            self._admit(scope, headers)
            held = self._hold(headers)
            await self._app(scope, body.receive, send_and_note)
        except Exception as error:
            if status:  # the answer has begun and cannot be changed
                raise
            response = describe_exception(error)
            if response is None:
                logger.exception("%s %r failed", scope["method"], scope["path"])
                response = problem_response(500, "an error that is described in the log of the server")
            if not body.complete:
                await body.drain()
                response.headers["Connection"] = "close"
            await response(scope, receive, send_and_note)
        finally:
            self._held -= held
            path = scope["path"] if scope["path"] in self._paths else _template(scope["path"])
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._service.metrics.requests.labels(method, path, status).inc()
            if path != "/v1/events":  # streams last as long as their readers want
                self._service.metrics.request_seconds.labels(path).observe(time.perf_counter() - started)

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise RequestError for a request that may not be made; note who makes it otherwise."""
        method, path = scope["method"], scope["path"]
        address = (scope.get("client") or ("unknown", 0))[0]
        scope["tandem.caller"] = "local"
        if path in _OPEN_PATHS and method == "GET":
            self._limit_rate(self._rate, address)
            return
        tokens = self._service.tokens
        if not tokens.required:
            check_local(headers)
            self._limit_rate(self._rate, address)
            return
        scheme, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        token = tokens.find(text.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            self._limit_rate(self._failures, address)
            raise RequestError(
                401,
                "needs a valid token: 'Authorization: Bearer ID.SECRET'",
                "Authorization",
                {"WWW-Authenticate": "Bearer"},
            )
        self._limit_rate(self._rate, token.id)
        if token.role != Role.OPERATOR and (method, path) not in _DEVICE_REQUESTS:
            raise RequestError(403, f"needs a token of the role operator; this one has {token.role}", "Authorization")
        scope["tandem.caller"] = token.id

    def _limit_rate(self, limit: RateLimit, key: str) -> None:
        wait_s = limit.wait_s(key)
        if wait_s > 0:
            detail = "too many requests; try again later"
            raise RequestError(429, detail, headers={"Retry-After": str(math.ceil(wait_s))})

    def _hold(self, headers: dict[bytes, bytes]) -> int:
        """Return how many bytes to set aside for the body; small ones are not counted."""
        length = headers.get(b"content-length")
        if length is None:
            size = self._limits.max_body_bytes if b"transfer-encoding" in headers else 0
        else:
            size = int(length) if length.isdigit() else 0  # the parser refuses other lengths before
        if size > self._limits.max_body_bytes:
            raise too_large(self._limits.max_body_bytes)
        if size <= _SMALL_BODY:
            return 0
        if self._held + size > self._limits.max_held_bytes:
            raise QueueFullError
        self._held += size
        return size


def _template(path: str) -> str:
    """Return a label for paths with a parameter."""
    if path.startswith("/v1/rounds/"):
        return "/v1/rounds/{round}"
    if path.startswith("/v1/versions/"):
        return "/v1/versions/{version}/activate"
    return "other"
