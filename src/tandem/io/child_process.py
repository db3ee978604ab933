"""Child processes of a command that end with it, also if it is killed.

The parent holds the only writing end of a pipe, which is the child's standard input. When the parent is gone, or closes
it, the child reads the end of the pipe and ends as on Ctrl-C. Signals of the terminal reach the parent alone: the child
is in a session of its own, so that the parent decides when it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any

MARK = "TANDEM_ENDS_WITH_PARENT"  # environment variable of a child
ORDERLY_END_S = 10.0  # that a child has to end in order; then it ends at once


class ChildProcess:
    """A ``tandem`` command in a process of its own; the end of the ``with`` block ends it.

    >>> with ChildProcess(["train", "paper", "--preset", "quick"]) as child:  # doctest: +SKIP
    ...     code = child.wait()
    """

    def __init__(
        self, args: Sequence[object], *, stdout: int | IO[Any] | None = None, stderr: int | IO[Any] | None = None
    ) -> None:
        """Start ``tandem`` with these arguments. Output goes where this process writes, unless told otherwise."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tandem", *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, MARK: "1"},
            start_new_session=True,
        )
        self._closing = False

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def stdout(self) -> IO[bytes] | None:
        """The child's output, if it was started with ``stdout=subprocess.PIPE``."""
        return self._process.stdout

    def poll(self) -> int | None:
        """Return the exit code, or None while the child runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the child's end and return the exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call a function with the exit code, in a thread of its own, if the child ends before it is closed."""

        def wait() -> None:
            code = self._process.wait()
            if not self._closing:
                ended(code)

        threading.Thread(target=wait, name=f"watch {self.pid}", daemon=True).start()

    def close(self) -> int:
        """End the child: in order if it does so in time, else at once. Returns the exit code."""
        self._closing = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(ORDERLY_END_S + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()


def end_with_parent() -> None:
    """End this process, as on Ctrl-C, when its parent is gone or closes the pipe; call it in the main thread."""
    os.environ.pop(MARK, None)  # a child of this process may have another standard input
    # A shell that starts a command in the background ignores Ctrl-C for it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pipe = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # the pipe is not input of the command

    def watch() -> None:
        while os.read(pipe, 4096):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(ORDERLY_END_S)
        os._exit(130)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()
