"""Advisory locks on files: only one process at a time works in a folder or on a file.

The operating system releases a lock when its process ends, also after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no fcntl: there is no lock
    fcntl = None  # type: ignore[assignment]

POLL_S = 0.05


@contextmanager
def file_lock(path: Path, timeout_s: float = 0.0) -> Iterator[None]:
    """Hold the exclusive lock on ``path``, a file that is created if needed and left in place.

    Raises TimeoutError if another process still holds the lock after ``timeout_s`` seconds.
    """
    deadline_s = time.monotonic() + timeout_s
    with path.open("a") as handle:
        while fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise TimeoutError(f"{path}: another process holds this lock.") from None
                time.sleep(POLL_S)
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on ``path`` now."""
    if fcntl is None or not path.is_file():
        return False
    with path.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
