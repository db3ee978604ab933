"""Processes that end with us: started in groups of their own, and ended group by group whatever happens."""

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
from tandem.federated.flower import reaper as watching
from tandem.federated.flower.reaper import GRACE_S, POLL_S


@contextmanager
def managed_process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for as long as the block lasts; what it prints goes to the log."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to handle, and the group is ours to end
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process and all it has started to end; insist after a while."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        until_s = time.monotonic() + GRACE_S
        while _alive(process) and time.monotonic() < until_s:
            time.sleep(POLL_S)
    process.wait()


def _alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether anybody of the group is there."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Let a request to end the process unwind the block as Ctrl-C does: or what it has started would be left alone."""

    def unwind(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # signals are heard there only
        yield
        return
    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def reap_on_exit(folder: Path) -> Iterator[None]:
    """After the block nobody is left who was started with this folder's path in the environment.

    Nor is anybody, or the folder, when this process is killed and cannot see to it: a watchman does then.
    """
    watchman = subprocess.Popen(
        [sys.executable, "-I", watching.__file__, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        watching.kill_tagged(str(folder))
        assert watchman.stdin is not None
        watchman.stdin.close()
        watchman.wait()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], patience_s: float, log: Path) -> None:
    """Until the process listens."""
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(POLL_S)
    raise InputError(f"Flower's SuperLink did not start; {log} says why: {last_line(log)}")


def last_line(log: Path) -> str:
    """The last thing a process has said."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing."
