"""Shared by the tests of runs: two small runs, a disk that is full, and one that is read-only."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from small_runs import CONDITIONED, POPULATION

import tandem
from disks import full_disk, read_only_disk, short_files
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
