"""The folder of a run: its files, the record in run.json, the lock, and a listing of runs.

    run.json               the configuration and the status of the run
    scenario.yaml          the scenario that it was trained on
    progress.csv           a row for each chunk of training steps
    checkpoint.safetensors the state of training
    policies.safetensors   the networks of the front
    front.json             the policies of the front and their measured objectives
    training-front.json    the points of the training so far; only while `tandem train` runs

Every file is written atomically, and run.json gets the status ``finished`` last, so a run that was killed at any time
can be resumed.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, computed_field

from tandem import __version__
from tandem.errors import InputError, describe_error, one_line
from tandem.io import locks
from tandem.io.atomic import check_folder, explain_write_errors, reason
from tandem.io.tables import write_json
from tandem.io.yaml_reader import read_yaml
from tandem.runs.migrations import FORMAT, migrate_record, migrate_scenario
from tandem.scenario import Scenario, load_scenario

RECORD, SCENARIO, PROGRESS = "run.json", "scenario.yaml", "progress.csv"
CHECKPOINT, POLICIES, FRONT = "checkpoint.safetensors", "policies.safetensors", "front.json"
TRAINING_FRONT = "training-front.json"
FILES = (RECORD, SCENARIO, PROGRESS, CHECKPOINT, POLICIES, FRONT, TRAINING_FRONT)
TENSORBOARD, LOCK = "tensorboard", ".lock"
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy")


class Device(BaseModel):
    """The hardware that a run was trained on."""

    platform: str  # cpu, gpu or tpu
    kind: str
    count: int


class RunRecord(BaseModel):
    """The content of run.json."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT  # of the folder
    tandem: str
    versions: dict[str, str]
    machine: str
    device: Device
    scenario: str  # name
    algorithm: str
    preset: str
    config: dict[str, Any]
    seed: int
    created: str  # ISO 8601
    status: Literal["running", "finished"] = "running"
    training_rounds: int = 0  # environment rounds spent
    validation_rounds: int = 0
    measuring_rounds: int = 0  # not counted in the budget, since they do not change the front
    wall_s: float = 0.0  # in all processes that trained the run
    policies: int | None = None  # this and the following fields: set when the run is finished
    hypervolume: float | None = None
    sparsity: float | None = None
    violation_rate: float | None = None  # share of all measured rounds
    within_tolerance: bool | None = None  # false if no candidate was in validation; the run then has a single policy

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rounds(self) -> int:
        """The number of environment rounds that count against the budget."""
        return self.training_rounds + self.validation_rounds

    def updated(self, **fields: Any) -> RunRecord:
        """Return the record with some fields changed."""
        return self.model_copy(update=fields)


def new_record(scenario: str, algorithm: str, preset: str, config: dict[str, Any], seed: int) -> RunRecord:
    """Create the record of a run that starts now, on this machine."""
    device = jax.devices()[0]
    return RunRecord(
        tandem=__version__,
        versions={"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in PACKAGES}},
        machine=f"{platform.system()} {platform.machine()}",
        device=Device(platform=device.platform, kind=device.device_kind, count=jax.device_count()),
        scenario=scenario,
        algorithm=algorithm,
        preset=preset,
        config=config,
        seed=seed,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def read_record(folder: Path) -> RunRecord:
    """Read run.json. Raises InputError if the folder is not a run, or not one that this version can read."""
    path = folder / RECORD
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such run; 'tandem runs' lists all runs.")
    if not path.is_file():
        raise InputError(f"{folder}: is not a run, since it has no {RECORD}; 'tandem runs' lists all runs.")
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
    """Read the JSON object in a file of a run. Raises InputError for NaN and infinity, which JSON does not have."""
    fix = "restore it from a copy, or train again into another folder"
    try:
        document = json.loads(path.read_text("utf-8"), parse_constant=_parse_finite, parse_float=_parse_finite)
    except FileNotFoundError:
        raise InputError(f"{path}: is missing; {fix}.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)}); check its permissions.") from None
    except _NotFiniteError as error:
        raise InputError(f"{path}: contains {error}, which is not a finite number; {fix}.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is cut short or is not JSON; {fix}.") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: is JSON, but not an object; {fix}.")
    return document


class _NotFiniteError(ValueError):
    pass


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotFiniteError(text)
    return value


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
        fields = None  # load_scenario reports the error
    changes = migrate_scenario(read_json(folder / RECORD), folder / RECORD, fields if isinstance(fields, dict) else {})
    return load_scenario(path.absolute(), [*changes, *overrides])


@contextmanager
def new_run_dir(folder: Path) -> Iterator[None]:
    """Create and lock the folder of a new run. Raises InputError if the folder exists and is not empty."""
    with ExitStack() as stack:
        with explain_write_errors(folder, "choose another folder with --out"):
            check_folder(folder)
            _check_unused(folder)
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(run_lock(folder))
            _check_unused(folder)  # another process may have used it in the meantime
        yield


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder, which the system releases when the process ends."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.file_lock(folder / LOCK))
        except TimeoutError:
            raise InputError(f"{folder}: another process is training into it; wait until it has ended.") from None
        yield


def is_locked(folder: Path) -> bool:
    """Return whether a process is training into the folder now."""
    return locks.is_locked(folder / LOCK)


def continue_with(folder: Path) -> str:
    """Return what to do to continue a run that was stopped, for messages."""
    return f"continue with 'tandem train --resume {shlex.quote(str(folder))}'"


def remove_temp_files(folder: Path) -> None:
    """Remove the incomplete files of a process that was killed while it wrote them."""
    for name in FILES:
        for path in folder.glob(f".{name}.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def _check_unused(folder: Path) -> None:
    if not folder.exists():
        return
    if (folder / RECORD).exists():
        if read_record(folder).status == "finished":
            raise InputError(
                f"{folder}: contains a finished run; see it with 'tandem front {folder}', or choose another folder "
                "with --out."
            )
        raise InputError(
            f"{folder}: contains an unfinished run; continue it with 'tandem train --resume {folder}', or choose "
            "another folder with --out."
        )
    names = {path.name for path in folder.iterdir()}
    # A lock and a scenario without a record: a run that was stopped before it started to train.
    stopped = LOCK in names and all(
        name in (LOCK, SCENARIO) or name.startswith((f".{SCENARIO}.", f".{RECORD}.")) for name in names
    )
    if names and not stopped:
        raise InputError(f"{folder}: contains other files; choose an empty or a new folder with --out.")


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
MAX_DEPTH = 4  # of folders that are searched for runs


@dataclass(frozen=True)
class Entry:
    """A run in a listing: its record, or a sentence that says what is wrong with it."""

    name: str  # relative to the folder that was searched
    folder: Path
    status: str  # finished, training, unfinished or broken
    record: RunRecord | None = None
    devices: int | None = None
    problem: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the entry as a JSON document."""
        record = None if self.record is None else self.record.model_dump(mode="json")
        fields = {name: record[name] if record else None for name in REPORTED}
        return {"name": self.name, "status": self.status, "devices": self.devices, **fields, "problem": self.problem}


def list_runs(folder: Path) -> list[Entry]:
    """List the runs in a folder and in folders below it, oldest first; broken ones are listed last."""
    entries = [_entry(folder, path) for path in _run_folders(folder)]
    return sorted(entries, key=lambda entry: (entry.record is None, entry.record.created if entry.record else ""))


def _run_folders(folder: Path) -> Iterator[Path]:
    for current, below, files in os.walk(folder):
        depth = len(Path(current).relative_to(folder).parts)
        if not {RECORD, CHECKPOINT, POLICIES}.isdisjoint(files):
            yield Path(current)
            below.clear()  # a run contains no other runs
        elif depth >= MAX_DEPTH:
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
        return Entry(name, path, "broken", problem=str(error))
    if record.status == "finished":
        return Entry(name, path, "finished", record, devices)
    return Entry(name, path, "training" if is_locked(path) else "unfinished", record, devices)
