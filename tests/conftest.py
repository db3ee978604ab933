"""Shared by all tests: a compilation cache, the paper's fleet, and two small runs."""

import os
import signal
import threading
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
# Compilation dominates the run time, and tests run each program only briefly. 'make test-all' compiles as users do.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

# A shell that starts the tests in the background ignores Ctrl-C for them, and so would all processes that they start.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

from collections.abc import Iterator

import jax
import pytest
from jaxtyping import install_import_hook

from small_runs import CONDITIONED, CROWDED, POPULATION, SMALL

# Every shape and type written in the signatures of equations and geometry is checked as the tests run them.
EQUATIONS = "accuracy arrivals channel costs dynamics env numerics observation path_loss queues rewards"
SHIELD = "shield shield_plan timetable worst_case"
GEOMETRY = "archive crowding dominance metrics scaling volume"
CHECKED = [f"tandem.feel.{module}" for module in f"{EQUATIONS} {SHIELD}".split()]
CHECKED += [f"tandem.pareto.{module}" for module in GEOMETRY.split()]
install_import_hook(CHECKED, "beartype.beartype")

import tandem
from tandem.feel import System, build_system
from tandem.io.locks import file_lock
from tandem.runs import Run
from tandem.scenario import Scenario, load_scenario


@pytest.fixture(autouse=True, scope="module")
def _room_for_programs() -> Iterator[None]:
    """Let go of a file's compiled programs: by the thousand they exhaust the memory maps a process may have."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of its own for pre-trained models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def paper_scenario() -> Scenario:
    return load_scenario("paper")


@pytest.fixture(scope="session")
def paper_system(paper_scenario: Scenario) -> System:
    return build_system(paper_scenario)


@pytest.fixture(scope="session")
def small() -> Scenario:
    return load_scenario("paper", SMALL)


@pytest.fixture(scope="session")
def crowded() -> Scenario:
    """The small fleet with more samples than it can train on."""
    return load_scenario("paper", {**SMALL, **CROWDED})


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
def population_run(crowded: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One network for each policy, which fits only its own fleet, and samples modes. Tests must not change it."""
    return train_once(tmp_path_factory, "population", crowded, "r-ppo", options=POPULATION)
