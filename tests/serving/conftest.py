"""Shared by the tests of the scheduler: policies of a fleet of ten and their export."""

from pathlib import Path

import pytest
from exports import Case, make_case

from tandem.serving import Scheduler, write_policy_file


@pytest.fixture(scope="session")
def case() -> Case:
    return make_case("discard", 10, "conditioned", 10)


@pytest.fixture(scope="session")
def fixed_case() -> Case:
    """A network that fits one size of fleet."""
    return make_case("discard", 10, "mlp", 10)


@pytest.fixture
def policy_path(case: Case, tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    write_policy_file(path, case.file)
    return path


@pytest.fixture
def scheduler(case: Case) -> Scheduler:
    return Scheduler(case.file)
