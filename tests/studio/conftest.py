"""Shared by the tests of the studio: a library of runs, and the application without a network."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tandem.runs import Run
from tandem.studio.app import create_app
from tandem.studio.library import Library
from tandem.studio.trainings import Trainings

ADDRESS = "http://127.0.0.1:8322"


@pytest.fixture(scope="session")
def library_folder(conditioned_run: Run, population_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, one that was interrupted, and one with a damaged front."""
    folder = tmp_path_factory.mktemp("library")
    for name, run in (("a", conditioned_run), ("b", population_run), ("broken", conditioned_run)):
        shutil.copytree(run.folder, folder / name)
    (folder / "broken" / "front.json").write_text('{"policies": [{"index"')
    shutil.copytree(conditioned_run.folder, folder / "stopped")
    record = folder / "stopped" / "run.json"
    record.write_text(record.read_text().replace('"finished"', '"running"'))
    return folder


@pytest.fixture
def page(library_folder: Path, tmp_path: Path) -> Iterator[TestClient]:
    app = create_app(Library([library_folder]), Trainings(tmp_path / "runs"), None)
    with TestClient(app, base_url=ADDRESS) as client:
        yield client


@pytest.fixture
def ids(page: TestClient, library_folder: Path) -> dict[str, str]:
    """The ids of the runs, by name."""
    return {Path(run["name"]).name: run["id"] for run in page.get("/api/session").json()["runs"]}
