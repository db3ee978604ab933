"""Shared by the tests of runs: a disk that is full, and one that is read-only."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from disks import full_disk, read_only_disk, short_files

FullDisk = Callable[[int], AbstractContextManager[None]]  # leaves so many bytes


@pytest.fixture(params=["full", "limit"])
def full(request: pytest.FixtureRequest, tmp_path: Path) -> FullDisk:
    """A context in which writing to the test's folder fails: at once, or after some bytes of a file."""
    return (lambda left: full_disk(tmp_path)) if request.param == "full" else short_files


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk that is read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with read_only_disk(folder):
        yield folder
