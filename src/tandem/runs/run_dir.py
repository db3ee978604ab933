"""A run's folder: which files are in it, what run.json says, and who may write.

    run.json               how it was made and how far it is
    scenario.yaml          what it was trained on
    progress.csv           a row for each chunk of training steps
    checkpoint.safetensors where training stands
    policies.safetensors   the networks of the front
    front.json             the policies of the front, as measured

Every file is whole or not there, and run.json says ``finished`` last: whenever a run is killed, it can go on.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, computed_field

from tandem import __version__
from tandem.errors import InputError, describe_error, one_line
from tandem.io.tables import write_json
from tandem.io.yaml_reader import read_yaml
from tandem.runs.migrations import FORMAT, migrate_record, migrate_scenario
from tandem.scenario import Scenario, load_scenario

try:
    import fcntl
except ImportError:  # Windows: nothing then keeps two processes from one folder
    fcntl = None  # type: ignore[assignment]

RECORD, SCENARIO, PROGRESS = "run.json", "scenario.yaml", "progress.csv"
CHECKPOINT, POLICIES, FRONT = "checkpoint.safetensors", "policies.safetensors", "front.json"
TENSORBOARD, LOCK = "tensorboard", ".lock"
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy")


class Device(BaseModel):
    """What it was trained on."""

    platform: str  # cpu, gpu or tpu
    kind: str
    count: int


class RunRecord(BaseModel):
    """What run.json says."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT  # of the folder
    tandem: str
    versions: dict[str, str]
    machine: str
    device: Device
    scenario: str  # its name
    algorithm: str
    preset: str
    config: dict[str, Any]
    seed: int
    created: str  # ISO 8601
    status: Literal["running", "finished"] = "running"
    training_rounds: int = 0  # environment rounds spent
    validation_rounds: int = 0
    measuring_rounds: int = 0  # not counted in the budget: they change nothing that is delivered
    wall_s: float = 0.0  # over all resumptions
    policies: int | None = None  # this and what follows: when finished
    hypervolume: float | None = None
    sparsity: float | None = None
    violation_rate: float | None = None  # share of all measured rounds
    within_tolerance: bool | None = None  # false if every candidate broke constraints more often than allowed

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rounds(self) -> int:
        """What counts against the budget."""
        return self.training_rounds + self.validation_rounds

    def updated(self, **fields: Any) -> RunRecord:
        """With some fields changed."""
        return self.model_copy(update=fields)


def new_record(scenario: str, algorithm: str, preset: str, options: dict[str, Any], seed: int) -> RunRecord:
    """The record of a run that begins here and now."""
    device = jax.devices()[0]
    return RunRecord(
        tandem=__version__,
        versions={"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in PACKAGES}},
        machine=f"{platform.system()} {platform.machine()}",
        device=Device(platform=device.platform, kind=device.device_kind, count=jax.device_count()),
        scenario=scenario,
        algorithm=algorithm,
        preset=preset,
        config=options,
        seed=seed,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def read_record(folder: Path) -> RunRecord:
    """What is known of the run in a folder; refuses what is not a run, or not one this version can read."""
    path = folder / RECORD
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such run; 'tandem runs' lists those there are.")
    if not path.is_file():
        raise InputError(f"{folder}: is not a run, for it has no {RECORD}; 'tandem runs' lists those there are.")
    document = migrate_record(read_json(path), path)
    try:
        return RunRecord.model_validate(document)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        place = ".".join(map(str, detail["loc"]))
        raise InputError(
            one_line(f"{path}: {place} {describe_error(detail)}, or restore the file from a copy.")
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    fix = "restore it from a copy, or train again into another folder"
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: is missing; {fix}.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is cut short or is not JSON; {fix}.") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: is JSON but not a run's; {fix}.")
    return document


def write_record(folder: Path, record: RunRecord) -> None:
    """Write run.json."""
    write_json(folder / RECORD, record.model_dump(mode="json"))


def read_scenario(folder: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read the scenario that a run was trained on, with some fields changed, such as ``fleet.size=30``."""
    path = folder / SCENARIO
    if not path.is_file():
        raise InputError(f"{path}: is missing; restore it from a copy, or train again into another folder.")
    try:
        fields = read_yaml(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        fields = None  # load_scenario says what is wrong
    changes = migrate_scenario(read_json(folder / RECORD), folder / RECORD, fields if isinstance(fields, dict) else {})
    return load_scenario(path.absolute(), [*changes, *overrides])


@contextmanager
def new_run_dir(folder: Path) -> Iterator[None]:
    """Hold a new or an empty folder for a run; anything that is there already is refused, and stays."""
    try:
        _refuse_what_is_there(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with run_lock(folder):
            _refuse_what_is_there(folder)  # another may have come first
            yield
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise InputError(f"{folder}: cannot hold a run ({error.strerror}); name another folder with --out.") from None


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system takes back when the process ends in whatever way."""
    with (folder / LOCK).open("a") as handle:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"{folder}: another process is training into it; wait for that to end.") from None
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process is training into the folder now."""
    if fcntl is None or not (folder / LOCK).exists():
        return False
    with (folder / LOCK).open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def remove_temp_files(folder: Path) -> None:
    """Remove the unfinished files of a process that was killed while it wrote them."""
    for name in (RECORD, SCENARIO, PROGRESS, CHECKPOINT, POLICIES, FRONT):
        for path in folder.glob(f".{name}.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def _refuse_what_is_there(folder: Path) -> None:
    if not folder.exists():
        return
    if (folder / RECORD).exists():
        if read_record(folder).status == "finished":
            raise InputError(
                f"{folder}: holds a finished run; see it with 'tandem front {folder}', or name another folder "
                "with --out."
            )
        raise InputError(
            f"{folder}: holds an unfinished run; go on with 'tandem train --resume {folder}', or name another folder "
            "with --out."
        )
    there = {path.name for path in folder.iterdir()}
    # A lock and a scenario without a record: a run that was killed as it began.
    ours = LOCK in there and all(name in (LOCK, SCENARIO) or name.startswith(f".{SCENARIO}.") for name in there)
    if there and not ours:
        raise InputError(f"{folder}: holds files of something else; name an empty or a new folder with --out.")


REPORTED = (
    "scenario",
    "algorithm",
    "preset",
    "seed",
    "rounds",
    "hypervolume",
    "sparsity",
    "policies",
    "within_tolerance",
    "wall_s",
    "created",
)
DEEPEST = 4  # folders below the one asked for: runs may be sorted into some, but nobody keeps them far down


@dataclass(frozen=True)
class Entry:
    """A run in a listing: what is known of it, or the sentence that says what is wrong with it."""

    name: str
    status: str  # finished, training, unfinished or broken
    record: RunRecord | None = None
    devices: int | None = None
    problem: str | None = None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        record = None if self.record is None else self.record.model_dump(mode="json")
        known = {name: record[name] if record else None for name in REPORTED}
        return {"name": self.name, "status": self.status, "devices": self.devices, **known, "problem": self.problem}


def list_runs(folder: Path) -> list[Entry]:
    """All runs in a folder and in folders below it, oldest first; a broken one does not stop the listing."""
    entries = [_entry(folder, path) for path in _run_folders(folder)]
    return sorted(entries, key=lambda entry: (entry.record is None, entry.record.created if entry.record else ""))


def _run_folders(folder: Path) -> Iterator[Path]:
    for here, below, files in os.walk(folder):
        depth = len(Path(here).relative_to(folder).parts)
        if not {RECORD, CHECKPOINT, POLICIES}.isdisjoint(files):
            yield Path(here)
            below.clear()  # what is in a run is its own
        elif depth >= DEEPEST:
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith("."))


def _entry(folder: Path, path: Path) -> Entry:
    name = path.name if path == folder else str(path.relative_to(folder))
    try:
        record = read_record(path)
        devices = read_scenario(path).fleet.size
        if record.status == "finished":
            read_json(path / FRONT)
            if not (path / POLICIES).is_file():
                raise InputError(f"{path / POLICIES}: is missing; restore it from a copy, or train again.")
    except InputError as error:
        return Entry(name, "broken", problem=str(error))
    if record.status == "finished":
        return Entry(name, "finished", record, devices)
    return Entry(name, "training" if is_locked(path) else "unfinished", record, devices)
