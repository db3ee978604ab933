"""Shared by the tests of runs: a disk that is full, and one that is read-only."""

import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

FullDisk = Callable[[int], AbstractContextManager[None]]  # leaves so many bytes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own; only a superuser may have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("cannot mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(params=["disk", "limit"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, FullDisk]:
    """A folder, and a context in which writing more than some bytes there fails."""
    if request.param == "limit":  # on the length of a file: anybody may set it
        return tmp_path, _limit_files
    folder: Path = request.getfixturevalue("disk")

    @contextmanager
    def fill(left: int) -> Iterator[None]:
        filler = folder / "filler"
        filler.write_bytes(bytes(max(0, shutil.disk_usage(folder).free - left)))
        yield
        filler.unlink()

    return folder, fill


@contextmanager
def _limit_files(left: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def read_only(disk: Path) -> Path:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    return disk
