"""A lock keeps other processes out, and ends with its process."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.io.locks import file_lock, is_locked

HOLD = (
    "import pathlib, sys, time\nfrom tandem.io.locks import file_lock\n"
    "with file_lock(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_lock_is_released_when_its_process_is_killed(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    path = tmp_path / "lock"
    assert is_locked(path)
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match="lock"), file_lock(path, 0.2):
        pass
    assert 0.2 <= time.monotonic() - began_s < 5
    holder.kill()
    with file_lock(path, 5.0):
        assert is_locked(path)
    assert not is_locked(path)


def test_missing_lock_file_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []
    assert not is_locked(tmp_path)
