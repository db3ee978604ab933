"""The launcher of a fleet with Flower, from start to result.

With the engine ``simulation``, Flower's simulation (Ray) hosts the devices. With ``deployment``, this module starts
the processes of separate machines: a process and a SuperNode for each device, all on the loopback interface.
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
from tandem.federated.fleet.api import FleetRun
from tandem.federated.fleet.run_dir import CLIENT_STORE, FAILURE, PROGRESS, SCENARIO
from tandem.federated.flower.processes import (
    free_port,
    last_line,
    managed_process,
    reap_on_exit,
    sigterm_as_exit,
    wait_for_port,
)
from tandem.federated.flower.reaper import POLL_S, kill_tagged

APP = Path(__file__).parent / "app"
LOG = "flower.log"  # output of all of Flower's processes, in the run's folder
LOCAL = "local"  # the name of the SuperLink in the Flower configuration that is written here
START_TIMEOUT_S = 60.0  # for a SuperLink to listen
END_TIMEOUT_S = 15.0  # for Flower to end the run once the result is written
FLOWER_ENV = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on loopback
    "JAX_PLATFORMS": "cpu",  # there are many processes, and each would reserve the accelerator for itself
}
OnRound = Callable[[dict[str, Any]], None]  # receives a line of progress.jsonl


def check_installed() -> None:
    """Raise InputError if Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise InputError("tandem fleet: needs Flower; install it with pip install 'tandem[flower]'.")


def launch_fleet(run: FleetRun, on_round: OnRound = lambda line: None) -> dict[str, Any]:
    """Run the fleet to the end and return ``run.document()``; a finished run is only read.

    ``on_round`` is called after every round. All started processes have ended when this returns or raises.
    """
    if run.finished:
        return run.document()
    check_installed()
    (run.folder / FAILURE).unlink(missing_ok=True)  # of the attempt that is resumed
    if run.config.superlink is not None:  # devices run already; this must be the machine of the SuperLink
        with submit_run(run.folder, run.config.superlink) as submitted:
            return follow_run(run, submitted, on_round)
    simulation = run.config.engine == "simulation"
    with local_superlink(run.folder, simulation, run) as deployment:
        for device in range(0 if simulation else run.size):
            deployment.start_device(device)
            deployment.start_node(device)
        return follow_run(run, deployment.submit(simulation), on_round)


def follow_run(run: FleetRun, submitted: Popen[bytes], on_round: OnRound) -> dict[str, Any]:
    """Call ``on_round`` after every round, until there is a result, an error, or the submitted process has ended."""
    progress, failure, log = run.folder / PROGRESS, run.folder / FAILURE, run.folder / LOG
    count = 0
    while True:
        ended = submitted.poll() is not None
        count = _emit_progress(progress, count, on_round)
        if failure.exists():
            raise InputError(failure.read_text(encoding="utf-8").strip())
        if run.finished:
            with contextlib.suppress(TimeoutExpired):  # wait for Flower and Ray to end by themselves
                submitted.wait(END_TIMEOUT_S)
            _emit_progress(progress, count, on_round)
            return run.document()
        if ended:
            raise InputError(
                f"Flower has ended the run; see {log}, which ends with: {last_line(log)} "
                f"Resume with 'tandem fleet run --resume {shlex.quote(str(run.folder))}'."
            )
        time.sleep(POLL_S)


def _emit_progress(progress: Path, count: int, on_round: OnRound) -> int:
    """Emit the complete lines after the first ``count``, and return the number of lines emitted so far."""
    if not progress.exists():
        return count
    for line in progress.read_text(encoding="utf-8").splitlines(keepends=True)[count:]:
        if not line.endswith("\n"):  # still being written
            break
        on_round(json.loads(line))
        count += 1
    return count


@dataclass(frozen=True)
class LocalDeployment:
    """A running SuperLink on this machine, and methods to start other processes beside it."""

    folder: Path  # for the log, and of the run that is submitted
    run: FleetRun | None  # a simulated one
    neutral: Path  # an empty working directory: Flower would import code from the current one
    port: int
    environment: dict[str, str]
    stack: ExitStack

    def start_device(self, device: int) -> Popen[bytes]:
        """Start a device, by ``tandem fleet device``."""
        assert self.run is not None
        folder, config = self.folder.resolve(), self.run.config
        command = [sys.executable, "-m", "tandem", "fleet", "device", str(folder / SCENARIO)]
        command += ["--number", str(device), "--seed", str(config.seed), "--hardware", config.hardware]
        command += ["--store", str(folder / CLIENT_STORE), "--address", str(self.address(device))]
        return self.start(command, folder / f"device-{device}.log")

    def start_node(self, device: int) -> Popen[bytes]:
        """Start the SuperNode of a device, or ``tandem node``."""
        if self.run is not None and self.run.config.node == "tandem":
            command = [sys.executable, "-m", "tandem", "node", f"127.0.0.1:{self.port}", "--number", str(device)]
            return self.start([*command, "--address", str(self.address(device))], self.folder / LOG)
        command = [_executable("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--node-config", f'partition-id={device} device-address="{self.address(device)}"']
        return self.start(command, self.folder / LOG)

    def submit(self, simulation: bool) -> Popen[bytes]:
        """Submit the run; the process ends with it."""
        command = _submission(self.folder, LOCAL)
        if simulation:
            assert self.run is not None
            command += ["--federation-config", f"num-supernodes={self.run.size} client-resources-num-cpus=1"]
        return self.start(command, self.folder / LOG)

    def address(self, device: int) -> Path:
        """Return the socket on which a device listens for its SuperNode."""
        return self.neutral / f"device-{device}.socket"

    def start(self, command: list[str], log: Path) -> Popen[bytes]:
        """Start a process that ends with this block."""
        return self.stack.enter_context(managed_process(command, self.neutral, self.environment, log))


@contextmanager
def local_superlink(folder: Path, simulation: bool, run: FleetRun | None = None) -> Iterator[LocalDeployment]:
    """Run a SuperLink for the duration of the block; afterwards every process that was started has ended."""
    log = folder / LOG
    log.unlink(missing_ok=True)
    with sigterm_as_exit(), ExitStack() as stack:
        neutral = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-fleet-")))
        stack.enter_context(reap_on_exit(neutral))
        port = free_port()
        environment = _environment(neutral, port)
        command = [_executable("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--simulation"] if simulation else []
        process = stack.enter_context(managed_process(command, neutral, environment, log))
        wait_for_port(port, process, START_TIMEOUT_S, log)
        try:
            yield LocalDeployment(folder, run, neutral, port, environment, stack)
        finally:
            kill_tagged(str(neutral))  # all at the same time: one after the other takes seconds each


@contextmanager
def submit_run(folder: Path, superlink: str) -> Iterator[Popen[bytes]]:
    """Submit the run to a running SuperLink of the user's Flower configuration; yields the submitting process."""
    log = folder / LOG
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="tandem-fleet-") as neutral:
        environment = {**os.environ, **FLOWER_ENV}
        command = _submission(folder, superlink)
        with sigterm_as_exit(), managed_process(command, Path(neutral), environment, log) as process:
            yield process


def _submission(folder: Path, superlink: str) -> list[str]:
    run_config = ["--run-config", f'folder="{folder.resolve()}"']
    return [_executable("flwr"), "run", str(APP), superlink, "--stream", *run_config]


def _environment(neutral: Path, port: int) -> dict[str, str]:
    """Return the environment of Flower's processes, with a configuration that names only the local SuperLink."""
    home = neutral / "flower"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.{LOCAL}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    executables = str(Path(sys.executable).parent)  # Flower starts its own commands by name
    path = os.pathsep.join([executables, os.environ.get("PATH", "")])
    return {**os.environ, **FLOWER_ENV, "FLWR_HOME": str(home), "PATH": path}


def _executable(name: str) -> str:
    """Return the path of a Flower command in the same environment as this Python."""
    return str(Path(sys.executable).parent / name)
