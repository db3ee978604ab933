"""Processes that end with us: started in groups of their own, and ended group by group whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tandem.errors import InputError

GRACE_S = 5.0
POLL_S = 0.1


@contextmanager
def running(
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
def ended_in_order() -> Iterator[None]:
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
def none_left(mark: str) -> Iterator[None]:
    """After the block, nobody is left who was started with this mark in the environment, however far removed.

    Flower and Ray put what they start into sessions of their own, where ending a group does not reach it.
    """
    try:
        yield
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            until_s = time.monotonic() + GRACE_S
            for number in _marked(mark):
                with contextlib.suppress(OSError):
                    os.kill(number, sign)
            while _marked(mark) and time.monotonic() < until_s:
                time.sleep(POLL_S)


def _marked(mark: str) -> list[int]:
    """Processes with the mark in their environment; none where the system does not show that."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


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
