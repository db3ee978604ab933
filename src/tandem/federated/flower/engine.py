"""A fleet's run on this machine, from start to result.

``simulation`` lets Flower's simulation engine (Ray) hold the devices. ``deployment`` starts what real machines would
run: a process for each device and a SuperNode beside it, all on loopback.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

from tandem.errors import InputError
from tandem.federated.fleet.settings import FAILURE, PROGRESS, RESULT
from tandem.federated.flower.machines import Launch, submitted_to, superlink
from tandem.federated.flower.processes import last_line
from tandem.federated.flower.watchman import POLL_S

ENGINES = ("simulation", "deployment")
END_S = 15.0  # for a run to end once its result is there
Told = Callable[[dict[str, Any]], None]


def check_installed() -> None:
    """Refuse to start without Flower."""
    if importlib.util.find_spec("flwr") is None:
        raise InputError("tandem fleet: needs Flower; install it with pip install 'tandem[flower]'.")


def play(launch: Launch, told: Told) -> dict[str, Any]:
    """Run the fleet to its end; ``told`` hears of every round. All processes are gone when this returns or raises."""
    check_installed()
    (launch.folder / FAILURE).unlink(missing_ok=True)  # of an attempt that is resumed
    if launch.settings.superlink is not None:  # devices run already; this machine must be the SuperLink's
        with submitted_to(launch.settings.superlink, launch) as submitted:
            return followed(launch, submitted, told)
    simulation = launch.settings.engine == "simulation"
    with superlink(launch, simulation) as machines:
        for number in range(0 if simulation else launch.size):
            machines.start_device(number)
            machines.start_node(number)
        return followed(launch, machines.submit(simulation), told)


def followed(launch: Launch, submitted: Popen[bytes], told: Told) -> dict[str, Any]:
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
            _tell(launch.folder / PROGRESS, heard, told)
            document: dict[str, Any] = json.loads((launch.folder / RESULT).read_text(encoding="utf-8"))
            return document
        if ended:
            raise InputError(
                f"Flower has ended the run; {launch.log} says why: {last_line(launch.log)} "
                f"Go on with 'tandem fleet run --resume {shlex.quote(str(launch.folder))}'."
            )
        time.sleep(POLL_S)


def _tell(progress: Path, heard: int, told: Told) -> int:
    if not progress.exists():
        return heard
    for line in progress.read_text(encoding="utf-8").splitlines(keepends=True)[heard:]:
        if not line.endswith("\n"):  # half of it is written
            break
        told(json.loads(line))
        heard += 1
    return heard
