"""A fleet's run on this machine, from start to result.

``simulation`` lets Flower's simulation engine (Ray) hold the devices. ``deployment`` starts what real machines would
run: a process for each device and a SuperNode beside it, all on loopback.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
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
from tandem.federated.fleet.config import DEVICES, FAILURE, PROGRESS, RESULT, SCENARIO, FleetConfig
from tandem.federated.flower.processes import (
    free_port,
    last_line,
    managed_process,
    reap_on_exit,
    sigterm_as_exit,
    wait_for_port,
)
from tandem.federated.flower.reaper import POLL_S, kill_tagged

ENGINES = ("simulation", "deployment")
END_S = 15.0  # for a run to end once its result is there
Told = Callable[[dict[str, Any]], None]


def check_installed() -> None:
    """Refuse to start without Flower."""
    if importlib.util.find_spec("flwr") is None:
        raise InputError("tandem fleet: needs Flower; install it with pip install 'tandem[flower]'.")


def launch_fleet(launch: LaunchConfig, told: Told) -> dict[str, Any]:
    """Run the fleet to its end; ``told`` hears of every round. All processes are gone when this returns or raises."""
    check_installed()
    (launch.folder / FAILURE).unlink(missing_ok=True)  # of an attempt that is resumed
    if launch.settings.superlink is not None:  # devices run already; this machine must be the SuperLink's
        with submit_run(launch.settings.superlink, launch) as submitted:
            return follow_run(launch, submitted, told)
    simulation = launch.settings.engine == "simulation"
    with local_superlink(launch, simulation) as machines:
        for number in range(0 if simulation else launch.size):
            machines.start_device(number)
            machines.start_node(number)
        return follow_run(launch, machines.submit(simulation), told)


def follow_run(launch: LaunchConfig, submitted: Popen[bytes], told: Told) -> dict[str, Any]:
    """Tell of every round as it comes, until the result is there or nobody is left to bring it."""
    heard = 0
    while True:
        ended = submitted.poll() is not None
        heard = _emit_progress(launch.folder / PROGRESS, heard, told)
        failure = launch.folder / FAILURE
        if failure.exists():
            raise InputError(failure.read_text(encoding="utf-8").strip())
        if (launch.folder / RESULT).exists():
            with contextlib.suppress(TimeoutExpired):  # it ends by itself, and Ray in good order with it
                submitted.wait(END_S)
            _emit_progress(launch.folder / PROGRESS, heard, told)
            document: dict[str, Any] = json.loads((launch.folder / RESULT).read_text(encoding="utf-8"))
            return document
        if ended:
            raise InputError(
                f"Flower has ended the run; {launch.log} says why: {last_line(launch.log)} "
                f"Go on with 'tandem fleet run --resume {shlex.quote(str(launch.folder))}'."
            )
        time.sleep(POLL_S)


def _emit_progress(progress: Path, heard: int, told: Told) -> int:
    if not progress.exists():
        return heard
    for line in progress.read_text(encoding="utf-8").splitlines(keepends=True)[heard:]:
        if not line.endswith("\n"):  # half of it is written
            break
        told(json.loads(line))
        heard += 1
    return heard


APP = Path(__file__).parent / "app"
START_S = 60.0  # for a SuperLink to listen
HERE = "here"  # what the SuperLink is called in Flower's configuration
FLOWER_ENV = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on loopback
    "JAX_PLATFORMS": "cpu",  # many processes: none may take the accelerator for itself
}


@dataclass(frozen=True)
class LaunchConfig:
    """One run on this machine."""

    folder: Path  # of the run: settings and scenario are there
    settings: FleetConfig
    size: int

    @property
    def log(self) -> Path:
        """What Flower says."""
        return self.folder / "flower.log"


@dataclass(frozen=True)
class LocalDeployment:
    """A SuperLink that runs, and what it takes to start more beside it."""

    launch: LaunchConfig
    neutral: Path  # Flower would take code from the working directory instead of from the app
    port: int
    environment: dict[str, str]
    stack: ExitStack

    def start_device(self, number: int) -> Popen[bytes]:
        """A device's own process, as ``tandem fleet device`` starts it."""
        launch, settings = self.launch, self.launch.settings
        command = [sys.executable, "-m", "tandem", "fleet", "device", str(launch.folder / SCENARIO)]
        command += ["--number", str(number), "--seed", str(settings.seed), "--hardware", settings.hardware]
        command += ["--memory", str(launch.folder / DEVICES), "--address", str(self.address(number))]
        return self._started(command, launch.folder / f"device-{number}.log")

    def start_node(self, number: int) -> Popen[bytes]:
        """The SuperNode beside a device."""
        command = [_command("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--node-config", f'partition-id={number} device-address="{self.address(number)}"']
        return self._started(command, self.launch.log)

    def submit(self, simulation: bool) -> Popen[bytes]:
        """Begin the run; the process ends with it."""
        more = ["--federation-config", f"num-supernodes={self.launch.size} client-resources-num-cpus=1"]
        return self._started([*_submission(self.launch, HERE), *(more if simulation else [])], self.launch.log)

    def address(self, number: int) -> Path:
        """Where a device listens for its SuperNode."""
        return self.neutral / f"device-{number}.socket"

    def _started(self, command: list[str], log: Path) -> Popen[bytes]:
        return self.stack.enter_context(managed_process(command, self.neutral, self.environment, log))


@contextmanager
def local_superlink(launch: LaunchConfig, simulation: bool) -> Iterator[LocalDeployment]:
    """A SuperLink for the length of the block; afterwards nothing that was started is left."""
    launch.log.unlink(missing_ok=True)
    with sigterm_as_exit(), ExitStack() as stack:
        neutral = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-fleet-")))
        stack.enter_context(reap_on_exit(neutral))
        port = free_port()
        environment = _environment(neutral, port)
        command = [_command("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--simulation"] if simulation else []
        process = stack.enter_context(managed_process(command, neutral, environment, launch.log))
        wait_for_port(port, process, START_S, launch.log)
        try:
            yield LocalDeployment(launch, neutral, port, environment, stack)
        finally:
            kill_tagged(str(neutral))  # all at once: one after the other they take seconds each


@contextmanager
def submit_run(name: str, launch: LaunchConfig) -> Iterator[Popen[bytes]]:
    """The run, begun on a SuperLink that runs already and that the user's Flower configuration knows by this name."""
    launch.log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="tandem-fleet-") as neutral:
        environment = {**os.environ, **FLOWER_ENV}
        submission = _submission(launch, name)
        with sigterm_as_exit(), managed_process(submission, Path(neutral), environment, launch.log) as process:
            yield process


def _submission(launch: LaunchConfig, name: str) -> list[str]:
    folder = ["--run-config", f'folder="{launch.folder.resolve()}"']
    return [_command("flwr"), "run", str(APP), name, "--stream", *folder]


def _environment(neutral: Path, port: int) -> dict[str, str]:
    home = neutral / "flower"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.{HERE}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    beside = str(Path(sys.executable).parent)  # Flower starts its own commands by name
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    return {**os.environ, **FLOWER_ENV, "FLWR_HOME": str(home), "PATH": path}


def _command(name: str) -> str:
    """Flower's command of the same installation as this Python."""
    return str(Path(sys.executable).parent / name)
