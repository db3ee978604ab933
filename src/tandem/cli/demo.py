"""What ``tandem serve --demo`` needs: a run, its export file, and the simulated fleet as a child process.

Training, exporting and simulating are child processes, so that the process of the service does not import JAX.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import typer

from tandem.errors import InputError
from tandem.io.child_process import ChildProcess

DEMO_RUN = Path("runs/demo")  # that of 'make demo'


@dataclass(frozen=True)
class DemoFiles:
    """The export file that the demo serves, and the demo's own database."""

    policy: Path
    database: Path


def check_tls(*files: Path | None) -> None:
    """Raise InputError if certificates are given, which the simulated fleet does not have."""
    if any(file is not None for file in files):
        raise InputError("--demo: its fleet has no certificate; leave out --tls-cert, --tls-key and --tls-client-ca.")


def check_tokens(database: str, has_tokens: bool) -> None:
    """Raise InputError if the service needs a token, which the simulated fleet does not have."""
    if has_tokens:
        raise InputError(f"--demo: its fleet has no token, but {database} has tokens; use a database without.")


def prepare_demo(policy: Path | None) -> DemoFiles:
    """Return the files of the demo for a run or an export file; without one, a small run is trained or resumed."""
    if policy is not None and not policy.is_dir():
        return DemoFiles(policy, policy.with_name(f"{policy.stem}-demo.db"))
    folder = policy or DEMO_RUN
    if policy is None:
        _train(folder)
    file = folder / "demo.safetensors"
    with ChildProcess(["export", folder, "--out", file], stdout=subprocess.DEVNULL) as child:
        _check(child.wait())
    return DemoFiles(file, folder / "demo.db")


def _train(folder: Path) -> None:
    """Train as 'make demo' does: a finished run is used as it is, an unfinished one is resumed."""
    record = folder / "run.json"
    try:
        status = json.loads(record.read_text())["status"] if record.exists() else None
    except (OSError, ValueError, LookupError, TypeError):
        status = "broken"  # resuming it says what is wrong
    if status == "finished":
        return
    new = ["paper", "--preset", "quick", "--out", folder]
    with ChildProcess(["train", *(new if status is None else ["--resume", folder])]) as child:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            child.close()
            typer.echo("tandem: 'tandem serve --demo' goes on where the training was interrupted.", err=True)
            raise typer.Exit(130) from None
    _check(code)


def _check(code: int) -> None:
    if code:
        raise typer.Exit(code if code > 0 else 1)  # the child has said why


class DemoFleet:
    """The simulated fleet of the demo. If it ends by itself, the service ends too."""

    def __init__(self, policy: Path, address: str, rounds_per_s: float) -> None:
        """Start the fleet."""
        self.failed = False
        self._child = ChildProcess(["demo-fleet", policy, "--url", address, "--pace", rounds_per_s])
        self._child.watch(self._end_service)

    def _end_service(self, code: int) -> None:
        self.failed = True
        os.kill(os.getpid(), signal.SIGINT)

    def __enter__(self) -> DemoFleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()
