"""The HTTP interface of a device: predictions and feedback for everybody who may ask, health and metrics.

A request is on disk before the device waits for its turn. A client that loses its connection asks again with the same
id, or reads the answer at ``/predictions/{id}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem import __version__
from tandem.device.agent import DeviceAgent
from tandem.device.model import Inputs, Labels
from tandem.device.store import (
    QueueFullError,
    RequestConflictError,
    Status,
    StoredRequest,
    StoreFullError,
    UnknownRequestError,
)
from tandem.errors import short_repr
from tandem.io.http import LimitedBody, RequestError, check_local, problem_response

MAX_ID = 100
_OPEN_PATHS = frozenset({"/healthz", "/openapi.json"})
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpConfig:
    """Limits on requests, and the token that they need."""

    max_body_bytes: int = 16 * 2**20
    deadline_s: float | None = None  # of a request that names none; None: it waits as long as needed
    wait_s: float = 30.0  # how long a connection waits for the answer; then it gets 202 and can ask again
    token: str | None = None  # None: only this machine may ask


class Answers:
    """Connections that wait for the answer to a request."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[str, list[asyncio.Event]] = {}

    def open(self) -> None:
        """Use the running event loop."""
        self._loop = asyncio.get_running_loop()

    def notify(self, ids: Sequence[str]) -> None:
        """Wake the connections of these requests; called by the thread of the device."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set, list(ids))

    def _set(self, ids: list[str]) -> None:
        for request_id in ids:
            for event in self._events.get(request_id, ()):
                event.set()

    @contextlib.contextmanager
    def expect(self, request_id: str) -> Any:
        """Return an event that is set when the request has an answer."""
        event = asyncio.Event()
        waiting = self._events.setdefault(request_id, [])
        waiting.append(event)
        try:
            yield event
        finally:
            waiting.remove(event)
            if not waiting:
                self._events.pop(request_id, None)


def create_app(agent: DeviceAgent, config: HttpConfig | None = None) -> FastAPI:
    """Build the application. It starts and stops the agent with its own lifetime."""
    config = config or HttpConfig()
    answers = Answers()
    agent.on_answered = answers.notify

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        answers.open()
        agent.start()
        yield
        await asyncio.to_thread(agent.stop)

    app = FastAPI(
        title="Tandem device",
        version=__version__,
        description="Answers requests with a model that is trained on them.",
        lifespan=lifespan,
        docs_url=None,  # their pages load scripts from another site
        redoc_url=None,
        redirect_slashes=False,
    )
    registry = _metrics(agent)

    @app.post("/predict", openapi_extra=_takes(_PREDICT), responses=_problems(409, 413, 422, 429, 504, 507))
    async def predict(request: Request) -> Response:
        """Predict the classes of one or many inputs. The answer comes when the device serves.

        A request that the device has accepted is on disk. It is answered with 202 if the connection has waited for
        long: ask again with the same id and body, or read /predictions/{id}.
        """
        body = await request.body()
        document = _read_object(body, {"id", "input", "inputs", "deadline_s"})
        request_id = _read_id(document) if "id" in document else uuid.uuid4().hex
        inputs = _read_inputs(document, agent.model.input_shape)
        deadline_s = _read_seconds(document, "deadline_s", config.deadline_s)
        with answers.expect(request_id) as answered:
            stored = await asyncio.to_thread(
                agent.submit, request_id, hashlib.sha256(body).digest(), inputs, deadline_s
            )
            if stored.status == Status.WAITING:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(config.wait_s):
                        await answered.wait()
                stored = await asyncio.to_thread(agent.store.read_request, request_id)
        return _answer(stored)

    @app.get("/predictions/{request_id}", responses=_problems(404, 504))
    async def read_prediction(request_id: str) -> Response:
        """Return the answer to a request, or 202 while it waits."""
        return _answer(await asyncio.to_thread(agent.store.read_request, request_id))

    @app.post("/feedback", openapi_extra=_takes(_FEEDBACK), responses=_problems(404, 409, 413, 422, 429, 507))
    async def give_feedback(request: Request) -> Response:
        """Record the right label of each input of a request. Each becomes a sample that the device trains on."""
        document = _read_object(await request.body(), {"id", "label", "labels"})
        request_id, labels = _read_id(document), _read_labels(document, agent.model.num_classes)
        await asyncio.to_thread(agent.label, request_id, labels)
        return _json({"id": request_id, "labels": len(labels)})

    @app.get("/status", responses=_problems())
    async def read_status() -> Response:
        """Return what the device does now."""
        return _json(
            {
                "device": agent.config.device,
                "mode": agent.mode,
                "queue": agent.store.waiting,
                "samples": agent.store.samples,
                "model_round": agent.model_round,
                "totals": vars(agent.totals),
            }
        )

    @app.get("/healthz")
    async def check_health() -> Response:
        """Answer if the process runs."""
        return _json({"status": "ok"})

    @app.get("/metrics", response_class=Response, responses=_problems())
    async def read_metrics() -> Response:
        """Return metrics in the text format of Prometheus."""
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem_response(error.status_code, str(error.detail), headers=error.headers)

    app.add_exception_handler(HTTPException, refuse)
    app.add_middleware(DeviceGuard, config=config)
    return app


class DeviceGuard:
    """Middleware (ASGI): the token or the host, the size of the body, and errors as documents."""

    def __init__(self, app: ASGIApp, config: HttpConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, started = LimitedBody(receive, self._config.max_body_bytes), False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self._admit(scope)
            await self._app(scope, body.receive, send_and_note)
        except Exception as error:
            if started:
                raise
            response = describe_exception(error)
            if response is None:
                logger.exception("%s %r failed", scope["method"], scope["path"])
                response = problem_response(500, "an error that is described in the log of the device")
            if not body.complete:
                await body.drain()
                response.headers["Connection"] = "close"
            await response(scope, receive, send_and_note)

    def _admit(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if self._config.token is None:
            check_local(headers)
            return
        if scope["path"] in _OPEN_PATHS:
            return
        scheme, _, text = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(text.strip(), self._config.token.encode()):
            said = "needs the token of the device: 'Authorization: Bearer TOKEN'"
            raise RequestError(401, said, "Authorization", {"WWW-Authenticate": "Bearer"})


def describe_exception(error: Exception) -> Response | None:
    """Return the response for an error that a request may cause, or None for a mistake in the program."""
    match error:
        case RequestError():
            return problem_response(error.status, str(error), error.errors, error.headers)
        case UnknownRequestError():
            return problem_response(404, str(error), [("id", str(error))])
        case RequestConflictError():
            return problem_response(409, str(error), [(str(error).partition(":")[0], str(error))])
        case QueueFullError():
            return problem_response(429, str(error), headers={"Retry-After": "1"})
        case StoreFullError():  # its text names files, which is for the log only
            logger.error("the state cannot be written: %s", error)
            return problem_response(507, "the device cannot store the request; make room on its disk")
    return None


# Bodies


_ID = {"type": "string", "minLength": 1, "maxLength": MAX_ID}
_PREDICT = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "id": {**_ID, "description": "Identifies the request; default: a new one."},
        "input": {"description": "One input: nested lists of numbers with the model's input_shape."},
        "inputs": {"type": "array", "minItems": 1, "description": "Many inputs, instead of input."},
        "deadline_s": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds in which it must be served."},
    },
}
_FEEDBACK = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id"],
    "properties": {
        "id": _ID,
        "label": {"type": "integer", "minimum": 0, "description": "The class of the only input."},
        "labels": {"type": "array", "items": {"type": "integer", "minimum": 0}, "description": "One for each input."},
    },
}
_DESCRIPTIONS = {
    401: "The token is missing or wrong.",
    404: "There is no such request.",
    409: "The id or the label was used before with another content.",
    413: "The body is too large.",
    422: "A field cannot be used; the answer names it. Nothing was changed.",
    429: "The queue or the buffer is full.",
    504: "The deadline passed before the device served.",
    507: "The disk of the device is full.",
}


def _takes(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": _DESCRIPTIONS[status]} for status in (401, *statuses)}


def _json(document: Any, status: int = 200) -> Response:
    return Response(to_json(document), status, media_type="application/json")


def _answer(stored: StoredRequest) -> Response:
    document: dict[str, Any] = {"id": stored.id, "status": stored.status.value}
    match stored.status:
        case Status.WAITING:
            return _json(document, 202)
        case Status.EXPIRED:
            return problem_response(504, f"the deadline of request {stored.id} passed before the device served it")
        case Status.FAILED:
            return problem_response(500, f"the model cannot answer request {stored.id}; see the log of the device")
    assert stored.scores is not None
    assert stored.served_at is not None
    document |= {
        "predictions": stored.scores.argmax(axis=1).tolist(),
        "scores": stored.scores.tolist(),
        "model_round": stored.model_round,
        "latency_s": max(stored.served_at - stored.arrived_at, 0.0),
    }
    return _json(document)


def _read_object(body: bytes, fields: set[str]) -> dict[str, Any]:
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError:
        raise RequestError(422, "is not JSON", "body") from None
    if not isinstance(document, dict):
        raise RequestError(422, "is not a JSON object", "body")
    for name in document:
        if name not in fields:
            raise RequestError(422, f"is unknown; use {', '.join(sorted(fields))}", short_repr(name))
    return document


def _read_id(document: dict[str, Any]) -> str:
    value = document.get("id")
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID or not value.isprintable():
        raise RequestError(422, f"must be text of 1 to {MAX_ID} printable characters", "id")
    return value


def _read_seconds(document: dict[str, Any], name: str, default: float | None) -> float | None:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e9:
        raise RequestError(422, "must be a number of seconds above 0", name)
    return float(value)


def _read_inputs(document: dict[str, Any], shape: tuple[int, ...]) -> Inputs:
    if ("input" in document) == ("inputs" in document):
        raise RequestError(422, "give one of the fields input and inputs", "inputs")
    name = "input" if "input" in document else "inputs"
    array = _read_array(document[name], name, "iuf")
    if name == "input":
        array = array[None]
    if array.shape[1:] != shape or len(array) == 0:
        expected = list(shape) if name == "input" else ["n", *shape]
        raise RequestError(
            422, f"has the shape {list(array.shape[name == 'input' :])}; the model takes {expected}", name
        )
    with np.errstate(over="ignore"):
        inputs = array.astype(np.float32)
    if not np.isfinite(inputs).all():
        raise RequestError(422, "has a number that is too large", name)
    return inputs


def _read_labels(document: dict[str, Any], classes: int) -> Labels:
    if ("label" in document) == ("labels" in document):
        raise RequestError(422, "give one of the fields label and labels", "labels")
    name = "label" if "label" in document else "labels"
    values = [document[name]] if name == "label" else document[name]
    array = _read_array(values, name, "iu")
    if array.ndim != 1 or len(array) == 0:
        raise RequestError(422, "must be one class, or a list with a class for each input", name)
    if array.min() < 0 or array.max() >= classes:
        raise RequestError(422, f"has a class outside of 0 to {classes - 1}", name)
    return array.astype(np.int64)


def _read_array(values: Any, name: str, kinds: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        raise RequestError(422, "has lists of different lengths", name) from None
    if array.dtype.kind not in kinds:
        whole = "whole " if "f" not in kinds else ""
        raise RequestError(422, f"must be {whole}numbers in nested lists of equal lengths", name)
    return array


# Metrics


class _TotalsCollector:
    """The counts of an agent as counters."""

    def __init__(self, agent: DeviceAgent) -> None:
        self._agent = agent

    def collect(self) -> Any:
        """Return the counters."""
        for name, value in vars(self._agent.totals).items():
            yield CounterMetricFamily(f"tandem_device_{name}", f"Inputs: {name}, since the start.", value)


def _metrics(agent: DeviceAgent) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_TotalsCollector(agent))
    gauges = {
        "queue": ("Inputs that wait.", lambda: agent.store.waiting),
        "samples": ("Labelled samples.", lambda: agent.store.samples),
        "training": ("1 while the device trains.", lambda: float(agent.mode == "train")),
        "model_round": ("Round of the adopted global model.", lambda: agent.model_round),
    }
    for name, (text, read) in gauges.items():
        Gauge(f"tandem_device_{name}", text, registry=registry).set_function(read)
    return registry
