"""A cell of a sweep: one training, named by all that makes it what it is; and what is kept of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.experiments.reward_source import RewardSource
from tandem.io.atomic import results_folder
from tandem.io.tables import write_json
from tandem.scenario import Scenario, load_scenario

Values = NDArray[np.float64]
TRIALS, RESULT, RUN = "cells", "result.json", "run"


@dataclass(frozen=True)
class Trial:
    """An algorithm on the paper's system with so many devices and requests, for one seed."""

    algorithm: str
    seed: int
    size: int = 10  # devices
    rate: float = 6.0  # requests per second, mean over devices
    preset: str = "default"
    config: tuple[tuple[str, Any], ...] = ()  # changes to the preset, sorted by name
    marks: int = 1  # how often the front is measured on the way, the end included
    reward_source: RewardSource | None = None  # where accuracy is measured on a task

    @property
    def name(self) -> str:
        """Different for different cells; also the name of its folder. What else it is made of goes into a digest."""
        digest = hashlib.sha256(json.dumps(self.kind.document(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.algorithm}-n{self.size}-r{self.rate:g}-{digest}-seed{self.seed}"

    @property
    def kind(self) -> Trial:
        """What cells that differ in their seed alone have in common."""
        return replace(self, seed=0)

    def scenario(self) -> Scenario:
        """What it is trained on."""
        return self._scenario(
            {} if self.reward_source is None else self.reward_source.overrides(measured=self.reward_source.oracle)
        )

    def measured_by(self) -> Scenario | None:
        """What its fronts are measured by, if not by that: the same, with accuracy measured on a task."""
        return None if self.reward_source is None else self._scenario(self.reward_source.overrides(measured=True))

    def _scenario(self, overrides: Mapping[str, Any]) -> Scenario:
        fleet = {"fleet.size": self.size, "workload.request_rate_per_s": self.rate}
        return load_scenario("paper", {**fleet, **overrides})

    @property
    def changes(self) -> dict[str, Any]:
        """To the options of the preset."""
        return dict(self.config)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        ground = {} if self.reward_source is None else {"ground": self.reward_source.document()}
        plain = {name: value for name, value in asdict(self).items() if name != "ground"}
        return {**plain, "options": self.changes, **ground}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Trial:
        """From JSON; raises KeyError or TypeError if it is not one."""
        options = {name: _frozen(value) for name, value in document["options"].items()}
        ground = RewardSource.from_document(document["ground"]) if "ground" in document else None
        return cls(**{**document, "options": tuple(sorted(options.items())), "ground": ground})


@dataclass(frozen=True)
class TrialResult:
    """What a finished cell leaves for figures and tables."""

    trial: Trial
    rounds: int  # environment rounds that count against the budget
    training_rounds: int
    wall_s: float
    hypervolume: float
    sparsity: float
    expected_utility: float
    cardinality: int  # policies that are not dominated
    violation_rate: float
    front: Values = field(repr=False)  # [policies, 3] accuracy, latency (s), energy (J)
    curve: Values = field(repr=False)  # [marks, 3] rounds, hypervolume, sparsity
    latency_s: Values = field(repr=False)  # quantiles, evenly spaced from 0 to 1, under the lowest-latency policy
    device: str = ""
    tandem: str = ""
    fidelity: dict[str, Any] | None = None  # of estimated with measured accuracy (``federated.Fidelity``), on a task

    def document(self) -> dict[str, Any]:
        """As JSON."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "cell"}
        arrays = {name: value.tolist() for name, value in plain.items() if isinstance(value, np.ndarray)}
        return {"cell": self.trial.document(), **plain, **arrays}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TrialResult:
        """From JSON; raises KeyError, TypeError or ValueError if it is not one."""
        values = dict(document)
        arrays = {name: np.asarray(values[name], np.float64) for name in ("front", "curve", "latency_s")}
        shaped = {**arrays, "front": arrays["front"].reshape(-1, 3), "curve": arrays["curve"].reshape(-1, 3)}
        return cls(**{**values, **shaped, "cell": Trial.from_document(values["cell"])})


def make_trials_dir(out: str | Path) -> Path:
    """Create a folder that will have cells below it, or take one that has; one of something else is refused."""
    folder = results_folder(Path(out), TRIALS)
    (folder / TRIALS).mkdir(exist_ok=True)
    return folder


def trial_dir(cell: Trial, out: Path) -> Path:
    """Where a cell's result and run are."""
    return out / TRIALS / cell.name


def write_result(result: TrialResult, out: Path) -> None:
    """Write what a cell leaves; with that it is finished."""
    folder = trial_dir(result.trial, out)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULT, result.document())


def read_result(cell: Trial, out: Path) -> TrialResult | None:
    """The result of a cell, or None where there is none, or none of this cell: it is then trained again."""
    try:
        result = TrialResult.from_document(json.loads((trial_dir(cell, out) / RESULT).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if result.trial == cell else None


def group_by_seed(cells: Iterable[Trial]) -> list[tuple[Trial, ...]]:
    """Cells grouped by what they have in common but the seed, in their order."""
    ordered: dict[Trial, list[Trial]] = {}
    for cell in cells:
        ordered.setdefault(cell.kind, []).append(cell)
    return [tuple(group) for group in ordered.values()]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
