"""Child processes that end with this one: each has a separate process group, which is always terminated."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tandem.errors import InputError
from tandem.federated.flower import reaper
from tandem.federated.flower.reaper import GRACE_S, POLL_S


@contextmanager
def managed_process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in ``folder`` for the duration of the block; its output is appended to ``log``."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which then terminates the group
        )
    try:
        yield process
    finally:
        _terminate_group(process)


def _terminate_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process and its children; kill those that have not ended after ``GRACE_S``."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        until_s = time.monotonic() + GRACE_S
        while _group_exists(process) and time.monotonic() < until_s:
            time.sleep(POLL_S)
    process.wait()


def _group_exists(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Make SIGTERM raise SystemExit in the block, as Ctrl-C raises KeyboardInterrupt, so that child processes end."""

    def raise_exit(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield
        return
    previous = signal.signal(signal.SIGTERM, raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def reap_on_exit(folder: Path) -> Iterator[None]:
    """Kill, after the block, every process that has the path of ``folder`` in its environment.

    If this process is itself killed, a separate reaper process does so, and deletes the folder.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", reaper.__file__, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        reaper.kill_tagged(str(folder))
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def free_port() -> int:
    """Return a port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], timeout_s: float, log: Path) -> None:
    """Wait until the process listens on the port; raises InputError if it ends or takes too long."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(POLL_S)
    raise InputError(f"Flower's SuperLink did not start; see {log}, which ends with: {last_line(log)}")


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing."
