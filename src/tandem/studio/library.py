"""The runs that the page shows: those in the folders that the user named, and no others."""

from __future__ import annotations

import contextlib
import csv
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tandem.api import open_run
from tandem.errors import InputError
from tandem.experiments.reference_front import find_reference_front
from tandem.feel.constraints import CONSTRAINTS
from tandem.learn.registry import config_from_document, get_algorithm
from tandem.objectives import OBJECTIVE_KEYS, OBJECTIVE_LABELS
from tandem.pareto import pick
from tandem.runs.front import Front, landmarks, selectable_points
from tandem.runs.progress_csv import COLUMNS
from tandem.runs.run import Run, read_front
from tandem.runs.run_dir import (
    FRONT,
    POLICIES,
    PROGRESS,
    RECORD,
    SCENARIO,
    TRAINING_FRONT,
    Entry,
    RunRecord,
    list_runs,
    read_json,
    read_record,
    read_scenario,
)
from tandem.scenario import Scenario
from tandem.studio.problems import NotFoundError, NotReadyError

Kind = TypeVar("Kind")
CURVES = ("rounds", "hypervolume", "policies", "violation_rate", "wall_s", "stage")
LIMIT_OPTIONS = {"min_accuracy": "--min-accuracy", "max_latency_s": "--max-latency", "max_energy_j": "--max-energy"}


@dataclass(frozen=True)
class StoredFront:
    """The front of a finished run with what is shown beside it. It is read without the networks, which takes longer."""

    folder: Path
    record: RunRecord
    scenario: Scenario
    front: Front

    @property
    def conditioned(self) -> bool:
        """Whether the run has one network that takes any preference as an input."""
        return get_algorithm(self.record.algorithm).conditioned


class Library:
    """The runs in some folders. A run keeps its id while the page is open."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Use the runs in these folders and below them."""
        self._folders = list(folders)
        self._known: list[Path] = []  # the id of a run is its index
        self._runs: dict[Path, tuple[float, Run]] = {}
        self._fronts: dict[Path, tuple[float, StoredFront]] = {}
        self._lock = threading.Lock()

    def documents(self, training: Path | None = None) -> list[dict[str, Any]]:
        """Return all runs, with a sentence for those that cannot be read; ``training`` may have no files yet."""
        found: dict[Path, Entry] = {}
        for folder in list(self._folders):
            for entry in list_runs(folder):
                found.setdefault(entry.folder, entry)
        if training is not None:
            found.setdefault(training, Entry(training.name, training, "training"))
        return [{"id": self._id(path), **one.document(), "name": str(path)} for path, one in found.items()]

    def add(self, folder: Path) -> str:
        """Add a folder and return the id of the run that is, or will be, in it."""
        with self._lock:
            if folder not in self._folders:
                self._folders.append(folder)
        return self._id(folder)

    def folder(self, run_id: str) -> Path:
        """Return the folder of a run."""
        if not run_id.isdecimal() or int(run_id) >= len(self._known):
            raise NotFoundError(f"there is no run {run_id}; reload the page.")
        return self._known[int(run_id)]

    def open(self, run_id: str) -> Run:
        """Open a finished run, with its networks."""
        return self._read(run_id, self._runs, open_run)

    def front(self, run_id: str) -> StoredFront:
        """Read the front of a finished run."""
        return self._read(run_id, self._fronts, _read_stored_front)

    def _read(self, run_id: str, known: dict[Path, tuple[float, Kind]], read: Callable[[Path], Kind]) -> Kind:
        """Read a finished run; one that was read before is read again only if a file has changed."""
        folder = self.folder(run_id)
        changed = max(_modified_s(folder / name) for name in (RECORD, SCENARIO, FRONT, POLICIES))
        if known.get(folder, (None,))[0] != changed:
            if read_record(folder).status != "finished":
                raise NotReadyError(f"{folder}: is not finished yet, and has no front; see the view Training.")
            known[folder] = (changed, read(folder))
        return known[folder][1]

    def status(self, run_id: str) -> str:
        """Return the status of a run: finished, training, unfinished or broken."""
        folder = self.folder(run_id)
        return next((entry.status for entry in list_runs(folder)), "broken")

    def _id(self, folder: Path) -> str:
        with self._lock:
            if folder not in self._known:
                self._known.append(folder)
            return str(self._known.index(folder))


def _modified_s(path: Path) -> float:
    """Return when a file was last written; 0 if it is missing, which its reader reports."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _read_stored_front(folder: Path) -> StoredFront:
    record = read_record(folder)
    config = config_from_document(record.algorithm, record.config, f"{folder / RECORD}: config")
    return StoredFront(folder, record, read_scenario(folder), read_front(folder, config.tolerance))


def front_document(run_id: str, run: StoredFront) -> dict[str, Any]:
    """Return the front of a run in columns."""
    front = run.front
    widths = np.array([policy.half_width for policy in front.policies], np.float64).reshape(-1, 3)
    rates = np.array([policy.violation_rates for policy in front.policies])
    columns: dict[str, Any] = {"index": list(range(len(front.policies)))}
    for number, key in enumerate(OBJECTIVE_KEYS):
        columns |= {key: front.objectives[:, number].tolist(), f"{key}_half_width": plain(widths[:, number])}
    columns |= {
        "violation_rate": front.violation_rate.tolist(),
        "violation_rates": {name: rates[:, number].tolist() for number, name in enumerate(CONSTRAINTS)},
        "discarded_share": plain(front.discarded_share),
        "preference": [list(policy.preference) for policy in front.policies],
        "within_tolerance": front.counted.tolist(),
        "stage": [policy.stage for policy in front.policies],
    }
    best = find_reference_front(run.scenario, front.reference)
    return {
        "id": run_id,
        "name": str(run.folder),
        "algorithm": run.record.algorithm,
        "scenario": run.scenario.name,
        "devices": run.scenario.fleet.size,
        "seed": run.record.seed,
        "conditioned": run.conditioned,
        "hypervolume": front.hypervolume,
        "sparsity": front.sparsity,
        "cardinality": front.cardinality,
        "tolerance": front.tolerance,
        "reference": list(front.reference),
        "best_known": None
        if best is None
        else {
            "hypervolume": best["hypervolume"],
            "points": [[policy[key] for key in OBJECTIVE_KEYS] for policy in best["policies"]],
        },
        "landmarks": landmarks(front, front.tolerance),
        "policies": columns,
    }


def pick_policy(
    run: StoredFront, preference: Sequence[float] | None, limits: dict[str, float | None]
) -> dict[str, Any]:
    """Choose a policy as ``tandem pick`` does, and return the command that chooses the same.

    Weights and limits are rounded first, so that a command that can be read has exactly the values that were used.
    """
    command = ["tandem", "pick", str(run.folder)]
    if preference is not None:
        texts = [f"{weight:.4g}" for weight in preference]
        preference = [float(text) for text in texts]
        command += ["--prefer", ",".join(map("=".join, zip(OBJECTIVE_LABELS, texts, strict=True)))]
    used = {name: None if limit is None else float(f"{limit:g}") for name, limit in limits.items()}
    for name, option in LIMIT_OPTIONS.items():
        if used[name] is not None:
            command += [option, f"{used[name]:g}"]
    choice = pick(selectable_points(run.front, run.front.tolerance), preference, **used)
    return {"index": choice.index, "reason": choice.reason, "command": shlex.join(command)}


def training_document(folder: Path, status: str) -> dict[str, Any]:
    """Return the progress of a training: the columns of progress.csv, and the points of its front so far."""
    rows: list[dict[str, str]] = []
    with contextlib.suppress(OSError), (folder / PROGRESS).open(encoding="utf-8", newline="") as file:
        lines = [line for line in file if line.endswith("\n")]  # the last row may be incomplete
        rows = [row for row in csv.DictReader(lines) if all(row.get(name) for name in COLUMNS)]
    points: list[Any] = []
    with contextlib.suppress(InputError):
        if status == "finished":
            points = read_front(folder, tolerance=1.0).objectives.tolist()
        else:
            points = read_json(folder / TRAINING_FRONT).get("points", [])
    try:
        columns = {name: [row[name] if name == "stage" else float(row[name]) for row in rows] for name in CURVES}
        planned = int(rows[-1]["planned_rounds"]) if rows else None
    except ValueError:
        raise InputError(f"{folder / PROGRESS}: has a row that is not of a training; restore it from a copy.") from None
    return {"status": status, "planned_rounds": planned, **columns, "points": points}


def plain(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers for JSON, which has no NaN."""
    return [None if np.isnan(value) else float(value) for value in values]
