"""Live rounds over Flower: the settings that the launcher leaves in a folder, and the body of the ServerApp.

This module does not import Flower: the ServerApp passes its grid in.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tandem.device.model import load_model
from tandem.errors import InputError
from tandem.federated.flower.launcher import LOG
from tandem.io.tables import write_text
from tandem.live.server import SHORTEST_S, LiveConfig, LiveRound, LiveServer
from tandem.scenario import Scenario, dump_scenario, load_scenario
from tandem.serving.client import Client, ServiceError

SETTINGS = "live.json"
SCENARIO = "scenario.yaml"
PROGRESS = "progress.jsonl"  # a line for each round
FAILURE = "failure.txt"
STOP = "stop"  # the ServerApp ends after the round in which this file appears
ENDED = "ended"  # written when the rounds have ended as they should
EXCHANGE_S = 3.0  # of the deadline of a round, for messages over Flower
RETRY_S = 1.0
POLL_S = 0.1


class LiveSettings(BaseModel):
    """What the ServerApp of live rounds needs, beside the scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str  # address of 'tandem serve'
    token: str | None = None
    model: str  # package.module:factory
    deadline_s: float
    wait_s: float = 60.0  # for devices to connect before the first round
    duration_s: float | None = None
    shortest_s: float = SHORTEST_S  # least planned duration of a round
    nodes: dict[int, int] | None = None  # the Flower node of each device; None: each node names its device itself


def write_settings(folder: Path, settings: LiveSettings, scenario: Scenario) -> None:
    """Prepare a folder for ``run_live``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (PROGRESS, FAILURE, STOP, ENDED):
        (folder / name).unlink(missing_ok=True)
    write_text(folder / SCENARIO, dump_scenario(scenario) + "\n")
    path = folder / SETTINGS
    write_text(path, settings.model_dump_json(indent=2) + "\n")
    path.chmod(0o600)  # it may hold a token


def is_live(folder: str) -> bool:
    """Return whether a folder is one of live rounds."""
    return (Path(folder) / SETTINGS).is_file()


def run_live(grid: Any, folder: str) -> None:
    """Run rounds over Flower's grid as the folder says; the message of an error is left there for the launcher."""
    from tandem.federated.flower.transport import FlowerTransport

    place = Path(folder)
    try:
        try:
            settings = LiveSettings.model_validate_json((place / SETTINGS).read_text(encoding="utf-8"))
        except ValidationError:
            raise InputError(f"{place / SETTINGS}: is damaged; start the rounds again.") from None
        config = replace(LiveConfig.from_scenario(load_scenario(place / SCENARIO)), shortest_s=settings.shortest_s)
        transport = FlowerTransport(grid, len(config.names), settings.deadline_s, settings.nodes)
        if transport.wait_for_devices(settings.wait_s) == 0:
            raise InputError(f"no device connected within {settings.wait_s:g} s; start them with --superlink.")
        weights = load_model(settings.model).get_weights()
        with Client(settings.server, settings.token) as client:
            server = LiveServer(config, weights, client, transport, place)
            with (place / PROGRESS).open("a", encoding="utf-8") as progress:
                for document in run_rounds(server, settings, lambda: (place / STOP).exists()):
                    progress.write(json.dumps(document) + "\n")
                    progress.flush()
        (place / ENDED).touch()
    except Exception as error:
        (place / FAILURE).write_text(f"{error or type(error).__name__}\n", encoding="utf-8")
        raise


def run_rounds(
    server: LiveServer, settings: LiveSettings, stopped: Callable[[], bool] = lambda: False
) -> Iterator[dict[str, Any]]:
    """Run rounds until the duration is over or ``stopped`` says so; yields a document for each.

    A service that is away is waited for; the devices serve meanwhile. Raises InputError if it refuses a request.
    """
    until_s = float("inf") if settings.duration_s is None else time.monotonic() + settings.duration_s
    while time.monotonic() < until_s and not stopped():
        try:
            yield round_document(server.run_round(), server)
        except ServiceError as error:
            if error.status is not None and error.status < 500:
                raise InputError(f"{settings.server}: refused a request ({error}).") from None
            yield {"waiting": f"{settings.server}: {error}"}
            time.sleep(RETRY_S)


def follow_rounds(folder: Path, submitted: Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the document of each round of a submitted run, until it ends.

    Raises InputError if it fails, or if Flower ends it, such as when the SuperLink ends; devices go on serving.
    """
    count = 0
    while True:
        ended = submitted.poll() is not None
        progress = folder / PROGRESS
        lines = progress.read_text(encoding="utf-8").splitlines(keepends=True) if progress.exists() else []
        for line in lines[count:]:
            if line.endswith("\n"):
                count += 1
                yield json.loads(line)
        if (folder / FAILURE).exists():
            raise InputError((folder / FAILURE).read_text(encoding="utf-8").strip())
        if ended:
            if not (folder / ENDED).exists():
                raise InputError(
                    f"Flower has ended the rounds; see {folder / LOG}. The devices serve. Start the SuperLink again if "
                    "it has ended; the same command then goes on."
                )
            return
        time.sleep(POLL_S)


def stop_rounds(folder: Path, submitted: Popen[bytes], timeout_s: float = 15.0) -> None:
    """End a submitted run after the round in progress, and wait for it."""
    (folder / STOP).touch()
    with contextlib.suppress(TimeoutExpired):
        submitted.wait(timeout_s)


def round_document(done: LiveRound, server: LiveServer) -> dict[str, Any]:
    """Return what happened in a round, and what the server knows of each device, as a JSON document."""
    served = sum(report.served for report in done.reports.values())
    latency_s = sum(report.latency_s for report in done.reports.values())
    names = server.config.names
    return {
        "round": None if done.decision is None else done.number,
        "duration_s": done.duration_s,
        "trained": [names[n] for n in done.trained],
        "samples": {names[n]: done.reports[n].samples for n in done.trained},
        "reported": len(done.reports),
        "served": served,
        "latency_s": latency_s / served if served else None,
        "accuracy": done.accuracy,
        "energy_j": done.energy_j,
        "energy_is_estimated": done.energy_is_estimated,
        "failures": {names[n]: reason for n, reason in done.failures.items()},
        "devices": [
            {
                "device": name,
                "mode": "train" if view.last_train else "serve",
                "present": view.present,
                "queue": view.queue,
                "waited_s": view.waited_s,
                "samples": view.data,
                "violated": [
                    constraint
                    for constraint, value, limit in (
                        ("C2", view.queue, server.config.queue_max),
                        ("C3", view.data, server.config.data_max),
                    )
                    if value > limit
                ],
                "data_age_s": view.data_age_s,
                "model_age_s": view.model_age_s,
                "served": done.reports[n].served if n in done.reports else None,
                "latency_s": done.reports[n].latency_s / done.reports[n].served
                if n in done.reports and done.reports[n].served
                else None,
                "accuracy": done.reports[n].correct / done.reports[n].labelled
                if n in done.reports and done.reports[n].labelled
                else None,
            }
            for n, (name, view) in enumerate(zip(names, server.views, strict=True))
        ],
    }
