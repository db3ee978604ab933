"""Devices as real processes, for tests."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client
from pathlib import Path

from tandem.device import LiveInstruction, LiveReport
from tandem.device.messages import from_bytes, to_bytes

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMAND = [sys.executable, "-c", "from tandem.cli.main import main; main()", "device"]


def environment(*folders: Path) -> dict[str, str]:
    path = os.pathsep.join([*map(str, (ROOT / "src", HERE, *folders)), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


@dataclass
class Process:
    """A device as a process."""

    process: subprocess.Popen[str]
    url: str
    address: Path

    def instruct(self, **fields) -> LiveReport:
        message = to_bytes(LiveInstruction(**{"run": "a", "device": 0, "train": False, "duration_s": 0.0, **fields}))
        with Client(str(self.address), family="AF_UNIX") as connection:
            connection.send_bytes(message)
            return from_bytes(LiveReport, connection.recv_bytes())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def start(
    folder: Path,
    factory: str = "linear_model:build",
    *options: str,
    limit: int | None = None,
    folders: Sequence[Path] = (),
) -> Iterator[Process]:
    """Run a device; ``limit``: most bytes of a file that it writes; ``folders``: where modules of the model are."""
    address = folder / "control"
    command = [*COMMAND, factory, "--store", str(folder / "store"), "--port", "0", "--address", str(address), *options]

    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit or 0, limit or 0))

    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(*folders),
        cwd=folder,
        preexec_fn=limit_files if limit is not None else None,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " at http" in line, line
        yield Process(process, line.split(" at ", 1)[1].split(";", 1)[0], address)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
