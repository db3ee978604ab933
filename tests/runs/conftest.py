"""Shared by the tests of runs: two small runs, a disk that is full, and one that is read-only."""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from small_runs import CONDITIONED, POPULATION

import tandem
from tandem.io.locks import file_lock
from tandem.runs import Run
from tandem.scenario import Scenario, load_scenario

FullDisk = Callable[[int], AbstractContextManager[None]]  # leaves so many bytes


@pytest.fixture(scope="session")
def small() -> Scenario:
    return load_scenario("paper", {"fleet.size": 3, "rounds": 10})


def train_once(factory: pytest.TempPathFactory, name: str, *what, **more) -> Run:
    """Train a run, or open it if another process of this session has trained it."""
    workers = "PYTEST_XDIST_WORKER" in os.environ
    folder = (factory.getbasetemp().parent if workers else factory.getbasetemp()) / name
    with file_lock(folder.with_suffix(".lock"), timeout_s=600):
        return tandem.open_run(folder) if folder.exists() else tandem.train(*what, out=folder, **more)


@pytest.fixture(scope="session")
def conditioned_run(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One network for all preferences and any fleet, trained on two and three devices. Tests must not change it."""
    return train_once(tmp_path_factory, "conditioned", small, seed=4, options=CONDITIONED)


@pytest.fixture(scope="session")
def population_run(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One network for each policy, which fits only its own fleet, and samples modes. Tests must not change it."""
    return train_once(tmp_path_factory, "population", small, "r-ppo", options=POPULATION)


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
        try:
            yield
        finally:
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
