"""The runs below a folder, whole or broken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import InputError
from tandem.runs.directory import (
    CHECKPOINT,
    FRONT,
    POLICIES,
    RECORD,
    RunRecord,
    being_trained,
    read_json,
    read_record,
    read_scenario,
)

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
    return Entry(name, "training" if being_trained(path) else "unfinished", record, devices)
