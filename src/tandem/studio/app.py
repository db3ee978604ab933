"""The web application: JSON for the page, the page itself, and downloads. Only pages of this machine may use it."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem import __version__
from tandem.errors import InputError
from tandem.io.http import LimitedBody, RequestError, check_local, problem_response, too_large
from tandem.learn.registry import ALGORITHMS
from tandem.rng import EVALUATION_SEED_START, MAX_SEED
from tandem.runs.front import write_front_csv
from tandem.runs.run_dir import SCENARIO
from tandem.serving.export import export_run
from tandem.serving.messages import OperatingPoint
from tandem.serving.policy_file import write_policy_file
from tandem.studio.episodes import evaluate_preference, simulate_episode
from tandem.studio.library import Library, front_document, pick_policy, training_document
from tandem.studio.problems import NotFoundError, NotReadyError, UnreachableError
from tandem.studio.scenarios import check_scenario, form_document
from tandem.studio.service import ServiceConnection
from tandem.studio.trainings import Trainings

MAX_BODY_BYTES = 2**20
HEADERS = {
    # Plotly writes style elements; scripts come from files alone.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Weights = Annotated[list[Annotated[float, Field(ge=0, le=1e9)]], Field(min_length=3, max_length=3)]
Seed = Annotated[int, Query(ge=0, le=MAX_SEED)]


class Body(BaseModel):
    """The body of a request; fields that do not exist are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class PointBody(Body):
    """A preference, limits, or both: the fields of an operating point."""

    preference: Weights | None = None
    min_accuracy: float | None = None
    max_latency_s: float | None = None
    max_energy_j: float | None = None

    def operating_point(self) -> OperatingPoint:
        """Return the operating point."""
        weights = None if self.preference is None else (self.preference[0], self.preference[1], self.preference[2])
        return OperatingPoint(weights, self.min_accuracy, self.max_latency_s, self.max_energy_j)


class PreferenceBody(Body):
    """A preference."""

    preference: Weights


class ScenarioBody(Body):
    """A preset with changed fields, as texts that ``--set`` accepts."""

    preset: str = "paper"
    changes: dict[str, Annotated[str, Field(max_length=200)]] = {}


class TrainingBody(ScenarioBody):
    """A training to start."""

    algorithm: str = "pc-ppo"
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    name: Annotated[str, Field(min_length=1, max_length=100)]


def create_app(library: Library, trainings: Trainings, service: ServiceConnection | None) -> ASGIApp:
    """Create the application of a page for some runs, and for a running service if there is one."""
    simulating = threading.Lock()  # JAX would run several simulations slower than one after the other
    warm: set[Path] = set()

    def warm_up(run_id: str) -> None:
        """Compile what the first simulation of a run needs, before somebody waits for it."""
        with contextlib.suppress(InputError):  # a request for the simulation reports the error
            run = library.open(run_id)
            if run.conditioned:
                with simulating:
                    evaluate_preference(run, run.front.policies[0].preference)
            with simulating:
                simulate_episode(run, run.policy(0), "", EVALUATION_SEED_START)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            trainings.close()

    app = FastAPI(title="Tandem studio", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)

    @app.get("/api/session")
    def session() -> dict[str, Any]:
        return {
            "version": __version__,
            "out": str(trainings.out),
            "server": None if service is None else service.url,
            "algorithms": list(ALGORITHMS),
            "runs": library.documents(trainings.folder),
        }

    @app.get("/api/runs/{run_id}/front")
    def front(run_id: str) -> dict[str, Any]:
        stored = library.front(run_id)
        if stored.folder not in warm:
            warm.add(stored.folder)
            threading.Thread(target=warm_up, args=(run_id,), daemon=True).start()
        return front_document(run_id, stored)

    @app.post("/api/runs/{run_id}/pick")
    def pick(run_id: str, body: PointBody) -> dict[str, Any]:
        point = body.operating_point()
        return pick_policy(library.front(run_id), point.preference, point.limits)

    @app.post("/api/runs/{run_id}/evaluate")
    def evaluate(run_id: str, body: PreferenceBody) -> dict[str, Any]:
        run = library.open(run_id)
        if not run.conditioned:
            raise NotReadyError(f"{run.folder}: its networks take no preference; choose one of its policies.")
        with simulating:
            return evaluate_preference(run, body.preference)

    @app.get("/api/runs/{run_id}/episode")
    def episode(run_id: str, policy: int, seed: Seed = EVALUATION_SEED_START) -> dict[str, Any]:
        run = library.open(run_id)
        with simulating:
            return simulate_episode(run, run.policy(policy), f"policy {policy} of {run.folder}", seed)

    @app.get("/api/runs/{run_id}/training")
    def training(run_id: str) -> dict[str, Any]:
        folder = library.folder(run_id)
        own = {"own": trainings.owns(folder), "message": trainings.message(folder)}
        # A training that this page starts has no files in its first seconds.
        return training_document(folder, "training" if own["own"] else library.status(run_id)) | own

    @app.get("/api/runs/{run_id}/front.csv")
    def front_csv(run_id: str) -> Response:
        front = library.front(run_id).front
        return _download("front.csv", "text/csv", lambda path: write_front_csv(path, front))

    @app.get("/api/runs/{run_id}/scenario.yaml")
    def scenario_yaml(run_id: str) -> FileResponse:
        path = library.folder(run_id) / SCENARIO
        if not path.is_file():
            raise NotFoundError(f"{path}: is missing; restore it from a copy, or train again.")
        return FileResponse(path, media_type="application/yaml", filename=SCENARIO)

    @app.get("/api/runs/{run_id}/policy.safetensors")
    def policy_file(run_id: str) -> Response:
        content = export_run(library.open(run_id))
        return _download(
            "policy.safetensors", "application/octet-stream", lambda path: write_policy_file(path, content)
        )

    @app.get("/api/scenario")
    def scenario() -> dict[str, Any]:
        return form_document()

    @app.post("/api/scenario/check")
    def check(body: ScenarioBody) -> dict[str, Any]:
        return check_scenario(body.preset, body.changes)

    @app.post("/api/trainings")
    def start(body: TrainingBody) -> dict[str, Any]:
        folder, command = trainings.start(body.preset, body.changes, body.algorithm, body.seed, body.name)
        return {"id": library.add(folder), "command": command}

    @app.delete("/api/trainings/{run_id}")
    def cancel(run_id: str) -> dict[str, Any]:
        return {"id": run_id, "message": trainings.cancel(library.folder(run_id))}

    def connected() -> ServiceConnection:
        if service is None:
            raise NotFoundError("no service is connected; start the studio with --server URL.")
        return service

    @app.get("/api/server")
    def server() -> dict[str, Any]:
        return connected().state()

    @app.get("/api/server/episode")
    def server_episode(last: Annotated[int, Query(ge=1, le=500)] = 60) -> dict[str, Any]:
        return connected().episode(last)

    @app.put("/api/server/operating-point")
    def operating_point(body: PointBody) -> dict[str, Any]:
        return connected().set_operating_point(body.operating_point())

    @app.get("/plotly.min.js")
    def plotly() -> Response:
        path = resources.files("plotly") / "package_data" / "plotly.min.js"
        return Response(path.read_bytes(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    static = resources.files("tandem.studio") / "static"
    app.mount("/static", StaticFiles(directory=str(static)))

    @app.get("/")
    def index() -> FileResponse:
        return FileResponse(str(static / "index.html"), media_type="text/html")

    @app.exception_handler(InputError)
    async def refuse(request: Request, error: InputError) -> Response:
        return problem_response(_status(error), str(error))

    @app.exception_handler(RequestValidationError)
    async def refuse_body(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
        return problem_response(422, f"{place or 'body'}: {first['msg']}.")

    return Guard(app)


class Guard:
    """Middleware (ASGI) that refuses other sites and other names of this machine, and adds headers to answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(one for one in added if one[0] not in present)]
            await send(message)

        try:
            headers = dict(scope["headers"])
            check_local(headers)
            if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
                raise RequestError(403, "is a request of another site", "Sec-Fetch-Site")
            length = headers.get(b"content-length", b"0")
            if not length.isdigit() or int(length) > MAX_BODY_BYTES:
                raise too_large(MAX_BODY_BYTES)
            await self._app(scope, LimitedBody(receive, MAX_BODY_BYTES).receive, send_with_headers)
        except RequestError as error:
            await problem_response(error.status, str(error), error.errors)(scope, receive, send_with_headers)


def _status(error: InputError) -> int:
    match error:
        case NotFoundError():
            return 404
        case NotReadyError():
            return 409
        case UnreachableError():
            return 502
    return 422


def _download(name: str, media_type: str, write: Callable[[Path], None]) -> Response:
    """Return what a function writes to a file as a download."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        content = path.read_bytes()
    return Response(content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})
