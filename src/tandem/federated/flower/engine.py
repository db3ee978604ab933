"""Flower on this machine: a SuperLink and what it needs, for the length of one run.

``simulation`` lets Flower's simulation engine (Ray) hold the devices. ``deployment`` starts what real machines would
run: a process for each device, a SuperNode beside it, all on loopback.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

from tandem.errors import InputError
from tandem.federated.fleet.settings import FAILURE, MEMORY, PROGRESS, RESULT, SCENARIO, FleetSettings
from tandem.federated.flower.processes import POLL_S, free_port, last_line, none_left, running, wait_for_port

APP = Path(__file__).parent / "app"
ENGINES = ("simulation", "deployment")
START_S = 60.0  # for a SuperLink to listen
END_S = 15.0  # for a run to end once its result is there
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on loopback
    "JAX_PLATFORMS": "cpu",  # many processes: none may take the accelerator for itself
}
Told = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Launch:
    """One run on this machine."""

    folder: Path  # of the run: settings and scenario are there
    settings: FleetSettings
    size: int
    hardware: str = "simulated"

    @property
    def log(self) -> Path:
        """What Flower says."""
        return self.folder / "flower.log"


def check_installed() -> None:
    """Refuse to start without Flower."""
    if importlib.util.find_spec("flwr") is None:
        raise InputError("tandem fleet: needs Flower; install it with pip install 'tandem[flower]'.")


def play(launch: Launch, engine: str, told: Told) -> dict[str, Any]:
    """Run the fleet to its end; ``told`` hears of every round. All processes are gone when this returns or raises."""
    check_installed()
    launch.log.unlink(missing_ok=True)
    with ExitStack() as stack:
        # A neutral folder: Flower would take code from the working directory instead of from the app.
        neutral = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-fleet-")))
        stack.enter_context(none_left(str(neutral)))
        port = free_port()
        environment = _environment(neutral, port)
        stack.enter_context(_superlink(launch, neutral, environment, port, simulation=engine == "simulation"))
        if engine == "deployment":
            for number in range(launch.size):
                stack.enter_context(device(launch, number, neutral, environment))
                stack.enter_context(_supernode(launch, number, neutral, environment, port))
        submitted = stack.enter_context(_submitted(launch, engine, neutral, environment))
        return _followed(launch, submitted, told)


def _environment(neutral: Path, port: int) -> dict[str, str]:
    home = neutral / "flower"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    beside = str(Path(sys.executable).parent)  # Flower starts its own commands by name
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}


@contextmanager
def _superlink(
    launch: Launch, neutral: Path, environment: dict[str, str], port: int, simulation: bool
) -> Iterator[Popen[bytes]]:
    command = [_command("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--simulation"] if simulation else []
    with running(command, neutral, environment, launch.log) as process:
        wait_for_port(port, process, START_S, launch.log)
        yield process


@contextmanager
def device(launch: Launch, number: int, neutral: Path, environment: dict[str, str]) -> Iterator[Popen[bytes]]:
    """A device's own process, as ``tandem fleet device`` starts it."""
    command = [sys.executable, "-m", "tandem", "fleet", "device", str(launch.folder / SCENARIO)]
    command += ["--number", str(number), "--seed", str(launch.settings.seed), "--hardware", launch.hardware]
    command += ["--memory", str(launch.folder / MEMORY), "--address", str(address(neutral, number))]
    with running(command, neutral, environment, launch.folder / f"device-{number}.log") as process:
        yield process


def address(neutral: Path, number: int) -> Path:
    """Where a device listens for its SuperNode."""
    return neutral / f"device-{number}.socket"


@contextmanager
def _supernode(
    launch: Launch, number: int, neutral: Path, environment: dict[str, str], port: int
) -> Iterator[Popen[bytes]]:
    command = [_command("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
    command += ["--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--node-config", f'partition-id={number} device-address="{address(neutral, number)}"']
    with running(command, neutral, environment, launch.log) as process:
        yield process


@contextmanager
def _submitted(launch: Launch, engine: str, neutral: Path, environment: dict[str, str]) -> Iterator[Popen[bytes]]:
    command = [_command("flwr"), "run", str(APP), "here", "--stream"]
    command += ["--run-config", f'folder="{launch.folder.resolve()}"']
    if engine == "simulation":
        nodes = f"num-supernodes={launch.size} client-resources-num-cpus=1"
        command += ["--federation-config", nodes]
    with running(command, neutral, environment, launch.log) as process:
        yield process


def _followed(launch: Launch, submitted: Popen[bytes], told: Told) -> dict[str, Any]:
    """Tell of every round as it comes, until the result is there or nobody is left to bring it."""
    heard = 0
    while True:
        ended = submitted.poll() is not None
        heard = _tell(launch.folder / PROGRESS, heard, told)
        failure = launch.folder / FAILURE
        if failure.exists():
            raise InputError(failure.read_text(encoding="utf-8").strip())
        if (launch.folder / RESULT).exists():
            with contextlib.suppress(TimeoutExpired):  # it ends by itself, and Ray in good order with it
                submitted.wait(END_S)
            document: dict[str, Any] = json.loads((launch.folder / RESULT).read_text(encoding="utf-8"))
            return document
        if ended:
            raise InputError(f"Flower has ended the run; {launch.log} says why: {last_line(launch.log)}")
        time.sleep(POLL_S)


def _tell(progress: Path, heard: int, told: Told) -> int:
    if not progress.exists():
        return heard
    lines = progress.read_text(encoding="utf-8").splitlines(keepends=True)
    for line in lines[heard:]:
        if not line.endswith("\n"):  # half of it is written
            return heard
        told(json.loads(line))
        heard += 1
    return heard


def _command(name: str) -> str:
    """Flower's command of the same installation as this Python."""
    return str(Path(sys.executable).parent / name)
