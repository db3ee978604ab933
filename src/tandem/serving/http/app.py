"""The paths of the service and their OpenAPI description.

Bodies are read as bytes and validated once (``tandem.serving.bodies``); answers are bytes too, so a repeated request
gets exactly what was stored. FastAPI's own reading would parse a body twice and repeat bad input in its errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tandem import __version__
from tandem.errors import one_line
from tandem.io.http import MEDIA_TYPE, RequestError, problem_response
from tandem.serving import bodies
from tandem.serving.bodies import MAX_ROUND
from tandem.serving.http.guard import Guard, Limits
from tandem.serving.service import Service
from tandem.serving.storage import EventCursor, StorageUnavailableError

MAX_SUBSCRIBERS = 32
EVENT_POLL_S = 0.5
_KEEP_ALIVE_S = 15.0
_SCHEMA = "#/components/schemas/{model}"
_DESCRIPTION = (
    "Decides for a fleet of edge devices which of them train and which serve, and with what power and frequency. "
    "Reports and decisions are columns: one list for each quantity, one entry for each device."
)
_REFUSALS = {
    400: "The request cannot be read.",
    401: "A valid token is needed.",
    403: "The token's role, or the site, may not make this request.",
    404: "Not stored.",
    408: "The body did not arrive in time.",
    409: "The request contradicts what is stored, or the policy cannot decide for this fleet.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    422: "A field cannot be used; the answer names it. Nothing was changed.",
    429: "Too many requests.",
    503: "The database is away or no policy is loaded. Try again later; service resumes by itself.",
}


VersionName = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z._-]+$")]


class StopSignal:
    """Tells open event streams that the server is about to end."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def set(self) -> None:
        """End the streams."""
        self.event.set()


def create_app(service: Service, limits: Limits | None = None, stop: StopSignal | None = None) -> FastAPI:
    """Build the application. It starts and closes the service with its own lifetime."""
    stop = stop or StopSignal()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        stop.set()
        await service.close()

    app = FastAPI(
        title="Tandem scheduler",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # their pages load scripts from another site
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_decisions(app, service)
    _add_operating_point(app, service)
    _add_versions(app, service)
    _add_rounds(app, service)
    _add_events(app, service, stop)
    _add_health(app, service)

    async def refuse_parameter(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = [(".".join(map(str, each["loc"][1:])), one_line(each["msg"])) for each in error.errors()[:10]]
        return problem_response(422, "; ".join(f"{field}: {problem}" for field, problem in found), found)

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem_response(error.status_code, str(error.detail), headers=error.headers)

    for path in ("/v1/decisions", "/v1/outcomes"):
        _shorten(app, path)
    app.add_exception_handler(RequestValidationError, refuse_parameter)
    app.add_exception_handler(HTTPException, refuse)
    paths = [route.path for route in app.routes if hasattr(route, "path") and "{" not in route.path]
    app.add_middleware(Guard, service=service, limits=limits or Limits(), paths=paths)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    return app


def _json(document: Any, status: int = 200) -> Response:
    return Response(
        document if isinstance(document, bytes) else to_json(document), status, media_type="application/json"
    )


async def _read_json(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "must be application/json", "Content-Type")
    return await request.body()


def _caller(request: Request) -> str:
    return str(request.scope["tandem.caller"])


def _takes(model: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a request body."""
    schema = {"$ref": _SCHEMA.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the description of the refusals that an operation may answer with, beside those of all operations."""
    return {
        status: {"description": _REFUSALS[status], "content": {MEDIA_TYPE: {"schema": _PROBLEM}}}
        for status in sorted({400, 401, 403, 408, 413, 422, 429, 503, *statuses})
    }


_PROBLEM = {"$ref": _SCHEMA.format(model="ProblemDocument")}


def _add_decisions(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/decisions",
        response_model=bodies.DecisionDocument,
        responses=_answers(409, 415),
        openapi_extra=_takes(bodies.DecisionRequest),
        summary="Decide a round",
        tags=["rounds"],
    )
    async def decide(request: Request) -> Response:
        """Decide for the devices that report.

        The decision is on disk before it is answered. A repeated request (the same body) gets the same bytes, from any
        process; another body for the same round is refused with 409. Devices of the fleet that are not in the report
        are assumed to serve, and the answer lists them.
        """
        return _json(await service.decide(await _read_json(request)))

    @app.post(
        "/v1/outcomes",
        response_model=bodies.RecordedDocument,
        responses=_answers(404, 409, 415),
        openapi_extra=_takes(bodies.OutcomeRequest),
        summary="Record the outcome of a round",
        tags=["rounds"],
    )
    async def record_outcome(request: Request) -> Response:
        """Record what happened in a decided round. The same body may be sent again; another one is refused with 409."""
        return _json(await service.record_outcome(await _read_json(request)))


def _shorten(app: FastAPI, path: str) -> None:
    """Let requests reach a function directly. FastAPI's route remains for the description.

    FastAPI looks for parameters and dependencies at every request, which costs as much as a decision for ten devices.
    """
    [route] = (route for route in app.routes if isinstance(route, APIRoute) and route.path == path)
    app.router.routes.insert(0, Route(path, route.endpoint, methods=list(route.methods or ()), include_in_schema=False))


def _add_operating_point(app: FastAPI, service: Service) -> None:
    @app.get("/v1/front", response_model=bodies.FrontDocument, responses=_answers(), tags=["operation"])
    async def read_front() -> Response:
        """Return the policies that an operating point selects from, with their measured objectives."""
        return _json(service.describe_front())

    @app.get(
        "/v1/operating-point", response_model=bodies.OperatingPointAnswer, responses=_answers(), tags=["operation"]
    )
    async def read_operating_point() -> Response:
        """Return the operating point and the policy that it selects."""
        return _json(service.describe_operating_point())

    @app.put(
        "/v1/operating-point",
        response_model=bodies.OperatingPointAnswer,
        responses=_answers(409, 415),
        openapi_extra=_takes(bodies.OperatingPointRequest),
        tags=["operation"],
    )
    async def set_operating_point(request: Request) -> Response:
        """Use another operating point. All decisions that are stored after the answer use it, in every process."""
        return _json(await service.set_operating_point(await _read_json(request), _caller(request)))


def _add_versions(app: FastAPI, service: Service) -> None:
    @app.get("/v1/versions", response_model=bodies.VersionsDocument, responses=_answers(), tags=["operation"])
    async def list_versions() -> Response:
        """Return all versions of the policy, newest first."""
        return _json(await service.list_versions())

    @app.get("/v1/tunings", response_model=bodies.TuningsDocument, responses=_answers(), tags=["operation"])
    async def list_tunings(limit: Annotated[int, Query(ge=1, le=1000, description="Most results.")] = 50) -> Response:
        """Return the newest results of background tuning: what was estimated, and the reason of the result."""
        return _json(await service.list_tunings(limit))

    @app.post(
        "/v1/versions/roll-back",
        response_model=bodies.ActivatedDocument,
        responses=_answers(404, 409),
        tags=["operation"],
    )
    async def roll_back(request: Request) -> Response:
        """Use the version that was active before the present one."""
        return _json(await service.roll_back(_caller(request)))

    @app.post(
        "/v1/versions/{version}/activate",
        response_model=bodies.ActivatedDocument,
        responses=_answers(404, 409),
        tags=["operation"],
    )
    async def activate(version: VersionName, request: Request) -> Response:
        """Use a version. All decisions that are stored after the answer use it, in every process."""
        return _json(await service.activate_version(version, _caller(request)))


def _add_rounds(app: FastAPI, service: Service) -> None:
    @app.get("/v1/rounds", response_model=bodies.RoundsDocument, responses=_answers(), tags=["rounds"])
    async def list_rounds(
        before: Annotated[int | None, Query(ge=0, le=MAX_ROUND, description="Only rounds with a lower number.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000, description="Rounds on a page.")] = 50,
    ) -> Response:
        """Return decided rounds, newest first, and the number of the next round."""
        return _json(await service.list_rounds(before, limit))

    @app.get("/v1/rounds/{round}", response_model=bodies.RoundDocument, responses=_answers(404), tags=["rounds"])
    async def read_round(round: Annotated[int, Path(ge=0, le=MAX_ROUND)]) -> Response:
        """Return a round with its report, decision and outcome."""
        return _json(await service.describe_round(round))


def _add_events(app: FastAPI, service: Service, stop: StopSignal) -> None:
    subscribers = 0

    @app.get(
        "/v1/events",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **_answers()},
        tags=["rounds"],
    )
    async def follow_events(
        request: Request,
        after: Annotated[
            str | None, Query(max_length=60, description="Id of the last event that was seen; default: from now on.")
        ] = None,
    ) -> Response:
        """Follow decisions, outcomes and changes as server-sent events. An event's id can be used to go on later."""
        if subscribers >= MAX_SUBSCRIBERS:
            raise RequestError(429, "too many open event streams", headers={"Retry-After": "10"})
        last = request.headers.get("last-event-id") or after
        cursor = _parse_cursor(last) if last else await asyncio.to_thread(service.store.event_cursor)
        return StreamingResponse(stream(cursor), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def stream(cursor: EventCursor) -> AsyncIterator[bytes]:
        nonlocal subscribers
        subscribers += 1
        service.metrics.subscribers.set(subscribers)
        try:
            yield b": connected\n\n"
            silent_s = 0.0
            while not stop.event.is_set():
                try:
                    found = await asyncio.to_thread(service.store.read_events, cursor)
                except StorageUnavailableError:
                    found = []
                for event in found:
                    cursor = event.cursor
                    place = f"{cursor.round}.{cursor.outcome}.{cursor.event}".encode()
                    data = to_json({"kind": event.kind, "at": event.at.isoformat(), **event.document})
                    yield b"id: %s\nevent: %s\ndata: %s\n\n" % (place, event.kind.encode(), data)
                silent_s = 0.0 if found else silent_s + EVENT_POLL_S
                if silent_s >= _KEEP_ALIVE_S:
                    silent_s = 0.0
                    yield b": keep-alive\n\n"
                try:
                    async with asyncio.timeout(EVENT_POLL_S):
                        await stop.event.wait()
                except TimeoutError:
                    continue
        finally:
            subscribers -= 1
            service.metrics.subscribers.set(subscribers)


def _parse_cursor(text: str) -> EventCursor:
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise RequestError(422, "is not the id of an event", "after")
    return EventCursor(*map(int, parts))


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=bodies.HealthDocument, responses=_answers(), tags=["health"])
    async def check_health() -> Response:
        """Answer if the process runs."""
        return _json({"status": "ok"})

    @app.get(
        "/readyz",
        response_model=bodies.ReadyDocument,
        responses={
            **_answers(),
            503: {
                "description": "The service cannot decide now.",
                "content": {"application/json": {"schema": {"$ref": _SCHEMA.format(model="ReadyDocument")}}},
            },
        },
        tags=["health"],
    )
    async def check_readiness() -> Response:
        """Answer whether the service can decide: the database is reachable and a policy is loaded."""
        ready, document = await service.readiness()
        return _json(document, 200 if ready else 503)

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **_answers()},
        tags=["health"],
    )
    async def read_metrics() -> Response:
        """Return the metrics of this process for Prometheus."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description, with the bodies that FastAPI does not read and with tokens."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        requests = (bodies.DecisionRequest, bodies.OutcomeRequest, bodies.OperatingPointRequest)
        for model in (*requests, bodies.ProblemDocument):
            schema = model.model_json_schema(ref_template=_SCHEMA)
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}, {}]
        app.openapi_schema = document
    return app.openapi_schema
