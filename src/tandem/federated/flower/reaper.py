"""A program that kills processes with a tag in their environment, including those in other sessions.

Flower and Ray start processes in separate sessions, which signals to a process group do not reach. Run as a program
(``python reaper.py TAG``), it waits until its standard input closes, which happens when its parent ends in any way, and
then kills the remaining processes. It uses only the standard library, so that it starts fast and needs little memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE_S = 5.0  # between SIGTERM and SIGKILL
POLL_S = 0.1


def kill_tagged(tag: str) -> None:
    """Terminate every process with the tag; kill those that have not ended after ``GRACE_S``."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        until_s = time.monotonic() + GRACE_S
        for pid in tagged_pids(tag):
            with contextlib.suppress(OSError):
                os.kill(pid, sign)
        while tagged_pids(tag) and time.monotonic() < until_s:
            time.sleep(POLL_S)


def tagged_pids(tag: str) -> list[int]:
    """Return the processes with the tag in their environment; empty on systems without /proc."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and tag.encode() in (folder / "environ").read_bytes():
                pids.append(int(folder.name))
    return pids


if __name__ == "__main__":
    for sign in (signal.SIGINT, signal.SIGTERM):  # sent to all processes; the parent cleans up, then closes our input
        signal.signal(sign, signal.SIG_IGN)
    sys.stdin.read()
    kill_tagged(sys.argv[1])
    shutil.rmtree(sys.argv[1], ignore_errors=True)
