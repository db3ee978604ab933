"""Live devices on one machine: SuperLink, service, devices and requests, started and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tandem.device.load import Load, LoadConfig, summarise, write_records
from tandem.errors import InputError
from tandem.federated.flower.launcher import LocalDeployment, local_superlink
from tandem.federated.flower.processes import free_port, last_line
from tandem.federated.task_requests import TaskRequests
from tandem.io.atomic import results_folder
from tandem.io.tables import write_json
from tandem.live.flower_app import (
    EXCHANGE_S,
    SCENARIO,
    SETTINGS,
    LiveSettings,
    follow_rounds,
    stop_rounds,
    write_settings,
)
from tandem.scenario import Scenario
from tandem.scenario.plugins import DigitsTaskConfig
from tandem.serving.policy_file import read_policy_file

START_TIMEOUT_S = 120.0
UNLIMITED_S = 1e7


@dataclass(frozen=True)
class DemoConfig:
    """What the demo runs."""

    policy: Path  # file of 'tandem export'
    model: str
    devices: int
    rate_per_s: float
    duration_s: float | None
    seed: int


def run_demo(config: DemoConfig, folder: Path) -> Iterator[tuple[dict[str, Any], Load]]:
    """Run everything in ``folder``; yields a document for each round, and the load with its requests so far.

    At the end, also on an exception such as Ctrl-C, all processes have ended, and summary.json and requests.csv are
    written.
    """
    results_folder(folder, SETTINGS)  # refuses a folder of something else
    shutil.rmtree(folder)
    folder.mkdir()
    fields = read_policy_file(config.policy).metadata["scenario"]
    scenario = Scenario.model_validate({**fields, "fleet": {**fields["fleet"], "size": config.devices}})
    source = TaskRequests(DigitsTaskConfig(), config.devices, config.seed)
    rounds: list[dict[str, Any]] = []
    with local_superlink(folder, False) as deployment:
        service = _start_service(deployment, config, folder)
        settings = LiveSettings(
            server=service,
            model=config.model,
            deadline_s=scenario.limits.round_max_s + EXCHANGE_S,
            wait_s=START_TIMEOUT_S,
            duration_s=config.duration_s,
        )
        write_settings(folder, settings, scenario)
        urls = [_start_device(deployment, config, folder, n) for n in range(config.devices)]
        for n, url in enumerate([service, *urls]):
            wait_for(url, folder / ("service.log" if n == 0 else f"device-{n - 1}.log"))
        submitted = deployment.submit(False)
        load = Load(urls, source, LoadConfig(config.rate_per_s, config.duration_s or UNLIMITED_S, seed=config.seed))
        began_s = time.monotonic()
        with contextlib.ExitStack() as sending:
            try:
                for document in follow_rounds(folder, submitted):
                    if not rounds:  # the scheduler is ready
                        began_s = time.monotonic()
                        sending.enter_context(in_background(load))
                    rounds.append(document)
                    yield document, load
            finally:
                elapsed_s = time.monotonic() - began_s
                stop_rounds(folder, submitted)
                sending.close()
                write_records(folder / "requests.csv", load.records)
                write_json(folder / "summary.json", _summarise(config, rounds, load, elapsed_s))


def _start_service(deployment: LocalDeployment, config: DemoConfig, folder: Path) -> str:
    port = free_port()
    command = [sys.executable, "-m", "tandem", "serve", str(config.policy.resolve()), "--port", str(port)]
    command += ["--database", str(folder.resolve() / "service.db")]
    deployment.start(command, folder / "service.log")
    return f"http://127.0.0.1:{port}"


def _start_device(deployment: LocalDeployment, config: DemoConfig, folder: Path, device: int) -> str:
    port = free_port()
    command = [sys.executable, "-m", "tandem", "device", config.model, "--number", str(device), "--port", str(port)]
    command += ["--store", str(folder.resolve() / f"device-{device}"), "--scenario", str(folder.resolve() / SCENARIO)]
    command += ["--superlink", f"127.0.0.1:{deployment.port}"]
    deployment.start(command, folder / f"device-{device}.log")
    return f"http://127.0.0.1:{port}"


def wait_for(url: str, log: Path) -> None:
    """Wait until a device or a service answers; raises InputError, with the end of its log, if it takes too long."""
    until_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until_s:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/healthz", timeout=2).status_code == 200:
                return
        time.sleep(0.2)
    raise InputError(f"{url}: did not start; see {log}, which ends with: {last_line(log)}")


@contextlib.contextmanager
def in_background(load: Load) -> Iterator[threading.Thread]:
    """Send the load in a thread until the end of the block; the thread ends when all answers and labels are there."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(load.run())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(task.cancel)
        thread.join(10)


def _summarise(config: DemoConfig, rounds: list[dict[str, Any]], load: Load, elapsed_s: float) -> dict[str, Any]:
    decided = [each for each in rounds if each.get("round") is not None]
    return {
        "devices": config.devices,
        "rate_per_s": config.rate_per_s,
        "seed": config.seed,
        "elapsed_s": elapsed_s,
        "rounds": len(decided),
        "trained": sum(len(each["trained"]) for each in decided),
        "failures": sum(len(each["failures"]) for each in decided),
        "round_s": sum(each["duration_s"] for each in decided) / len(decided) if decided else None,
        "energy_j": sum(each["energy_j"] for each in decided),
        "energy_is_estimated": any(each["energy_is_estimated"] for each in decided),
        "clients": summarise(load.records, config.devices, load.elapsed_s),
    }
