"""Child processes: they end with their parent, however it ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem.io.child_process import ORDERLY_END_S, ChildProcess

PARENT = """
import sys, time
from tandem.io.child_process import ChildProcess
child = ChildProcess(sys.argv[1:])
time.sleep(600)
"""


@pytest.fixture
def command(service_policy: Path, tmp_path: Path) -> list[str]:
    """A command that runs until it is told to end, and then says that it ends in order."""
    return ["serve", str(service_policy), "--port", "0", "--database", str(tmp_path / "tandem.db")]


def test_a_child_ends_in_order_when_its_parent_is_killed(command: list[str]) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *command], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline().startswith("Serving fleet")
    parent.kill()
    started = time.monotonic()
    rest = parent.stdout.read()  # to the end: no process has the pipe open any more
    assert time.monotonic() - started < ORDERLY_END_S
    assert rest.endswith("Stopped.\n")
    parent.wait(10)


def test_the_end_of_the_block_ends_the_child(command: list[str]) -> None:
    with ChildProcess(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(b"Serving fleet")
        assert child.poll() is None
        assert os.getpgid(child.pid) != os.getpgid(0)  # Ctrl-C reaches the parent alone
    assert child.poll() == 0


def test_a_child_that_ends_by_itself_has_its_exit_code() -> None:
    with ChildProcess(["front", "nowhere"], stderr=subprocess.DEVNULL) as child:
        assert child.wait(60) == 2
