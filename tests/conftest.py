"""Shared by all tests: a warm compilation cache, and the paper's fleet built once."""

import os
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

from collections.abc import Iterator

import jax
import pytest
from jaxtyping import install_import_hook

# Every shape and type written in the signatures of equations and geometry is checked as the tests run them.
EQUATIONS = "accuracy arrivals channel costs dynamics env numerics observation queues rewards shield worst_case"
GEOMETRY = "archive crowding dominance hypervolume metrics scaling"
CHECKED = [f"tandem.feel.{module}" for module in EQUATIONS.split()]
CHECKED += [f"tandem.pareto.{module}" for module in GEOMETRY.split()]
install_import_hook(CHECKED, "beartype.beartype")

from tandem.feel import System, build_system
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
