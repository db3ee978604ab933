"""Ends processes that carry a mark in their environment, however far removed from whoever started them.

Flower and Ray put what they start into sessions of their own, where ending a group does not reach it. As a program of
its own (``python watchman.py MARK``) it waits until its standard input closes, which happens when its parent ends in
whatever way, and then ends what is left. It needs nothing but Python, so that it starts at once and stays small.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

GRACE_S = 5.0
POLL_S = 0.1


def kill_tagged(mark: str) -> None:
    """Ask every process with the mark to end; insist after a while."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        until_s = time.monotonic() + GRACE_S
        for number in tagged_pids(mark):
            with contextlib.suppress(OSError):
                os.kill(number, sign)
        while tagged_pids(mark) and time.monotonic() < until_s:
            time.sleep(POLL_S)


def tagged_pids(mark: str) -> list[int]:
    """Processes with the mark in their environment; none where the system does not show that."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    for sent in (signal.SIGINT, signal.SIGTERM):  # to everybody: the parent ends in order, and closes our input
        signal.signal(sent, signal.SIG_IGN)
    sys.stdin.read()
    kill_tagged(sys.argv[1])
    shutil.rmtree(sys.argv[1], ignore_errors=True)
