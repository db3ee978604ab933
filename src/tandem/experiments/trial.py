"""A trial: one training run of a sweep, identified by its complete specification, and its result."""

from __future__ import annotations

import functools
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
from tandem.learn.registry import config_document, make_config
from tandem.scenario import Scenario, load_scenario
from tandem.scenario.plugins import TaskConfig

Values = NDArray[np.float64]
Overrides = tuple[tuple[str, Any], ...]  # of a scenario's fields, sorted by name
TRIALS, RESULT, RUN = "trials", "result.json", "run"


@dataclass(frozen=True)
class Trial:
    """One algorithm on the paper's system with a given number of devices, request rate and seed."""

    algorithm: str
    seed: int
    size: int = 10  # number of devices
    rate: float = 6.0  # requests per second, mean over devices
    preset: str = "default"
    config: tuple[tuple[str, Any], ...] = ()  # changes to the preset, sorted by name
    curve_points: int = 1  # number of points of the learning curve, the final one included
    reward_source: RewardSource | None = None  # set if accuracy is measured on a task
    overrides: Overrides = ()  # further changes to the scenario ``paper``; values are hashable

    @property
    def name(self) -> str:
        """The unique name of the trial and of its folder. Fields that are not in the name are part of a digest.

        The digest covers all hyperparameters, defaults included, and the content of the scenario. Trials stored under
        other names are trained again, so a result of other defaults is not reused.
        """
        digest = _digest(
            {
                **self.without_seed.document(),
                "scenario": self.fingerprint,
                "hyperparameters": _hyperparameters(self.algorithm, self.preset, self.config),
            }
        )
        return f"{self.algorithm}-n{self.size}-r{self.rate:g}-{digest}-seed{self.seed}"

    @property
    def fingerprint(self) -> str:
        """A short digest of the scenario's content, so that a result of another preset ``paper`` is not reused."""
        return _fingerprint(self.size, self.rate, self.overrides, self.reward_source)

    @property
    def without_seed(self) -> Trial:
        """A copy with seed 0, which is equal for trials that differ in their seed only."""
        return replace(self, seed=0)

    def scenario(self) -> Scenario:
        """Load the scenario that the policy is trained on."""
        source = self.reward_source
        return self._scenario({} if source is None else source.overrides(measured=source.oracle))

    def evaluation_scenario(self) -> Scenario | None:
        """Load the scenario that fronts are evaluated on, with measured accuracy; None if it is that of training."""
        return None if self.reward_source is None else self._scenario(self.reward_source.overrides(measured=True))

    def _scenario(self, accuracy: Mapping[str, Any]) -> Scenario:
        return _load(self.size, self.rate, {**dict(self.overrides), **accuracy})

    @property
    def changes(self) -> dict[str, Any]:
        """The changes to the preset's hyperparameters, by name."""
        return dict(self.config)

    def document(self) -> dict[str, Any]:
        """Return the trial as a JSON document."""
        source = {} if self.reward_source is None else {"reward_source": self.reward_source.document()}
        overrides = {"overrides": dict(self.overrides)} if self.overrides else {}
        plain = {name: value for name, value in asdict(self).items() if name not in ("reward_source", "overrides")}
        return {**plain, "config": self.changes, **source, **overrides}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Trial:
        """Read a trial from its JSON document; raises KeyError or TypeError if it is not valid."""
        source = RewardSource.from_document(document["reward_source"]) if "reward_source" in document else None
        config, overrides = freeze(document["config"]), freeze(document.get("overrides", {}))
        return cls(**{**document, "config": config, "reward_source": source, "overrides": overrides})


@dataclass(frozen=True)
class TrialResult:
    """The numbers of a finished trial that figures and tables need."""

    trial: Trial
    scenario: str  # fingerprint of the scenario of the training
    rounds: int  # environment rounds that count against the budget
    training_rounds: int
    wall_s: float
    hypervolume: float
    sparsity: float
    expected_utility: float
    cardinality: int  # number of non-dominated policies
    violation_rate: float  # share of rounds with a violation, mean over the policies of the front
    policies_within_tolerance: int  # of the front
    discarded_share: float  # samples discarded, as a share of those made, mean over the policies of the front
    training_violation_rate: float  # share of rounds with a violation, over the whole training
    late_violation_rate: float  # the same over the last tenth of the training
    front: Values = field(repr=False)  # [policies, 3] accuracy, latency (s), energy (J)
    curve: Values = field(repr=False)  # [points, 3] rounds, hypervolume, sparsity
    latency_s: Values = field(repr=False)  # quantiles, evenly spaced from 0 to 1, of the lowest-latency policy
    device: str = ""
    tandem: str = ""
    fidelity: dict[str, Any] | None = None  # estimated against measured accuracy (``federated.Fidelity``), on a task

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        arrays = {name: _finite(value).tolist() for name, value in plain.items() if isinstance(value, np.ndarray)}
        return {**plain, **arrays, "trial": self.trial.document()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TrialResult:
        """Read a result from its JSON document; raises KeyError, TypeError or ValueError if it is not valid."""
        arrays = {name: np.asarray(document[name], np.float64) for name in ("front", "curve", "latency_s")}
        shaped = {**arrays, "front": arrays["front"].reshape(-1, 3), "curve": arrays["curve"].reshape(-1, 3)}
        return cls(**{**document, **shaped, "trial": Trial.from_document(document["trial"])})


def make_trials_dir(out: str | Path) -> Path:
    """Create a folder for trials, or reuse one that has trials. Raises InputError for a folder with other files."""
    folder = results_folder(Path(out), TRIALS)
    (folder / TRIALS).mkdir(exist_ok=True)
    return folder


def trial_dir(trial: Trial, out: Path) -> Path:
    """Return the folder of a trial's result and run."""
    return out / TRIALS / trial.name


def write_result(result: TrialResult, out: Path) -> None:
    """Write a trial's result, which marks the trial as finished."""
    folder = trial_dir(result.trial, out)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULT, result.document())


def read_result(trial: Trial, out: Path) -> TrialResult | None:
    """Read a trial's result, or return None if the trial is to be repeated.

    That is so if the result is missing or damaged, or if it is that of another trial or of a scenario that has changed.
    """
    try:
        result = TrialResult.from_document(json.loads((trial_dir(trial, out) / RESULT).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if (result.trial, result.scenario) == (trial, trial.fingerprint) else None


def group_by_seed(trials: Iterable[Trial]) -> list[tuple[Trial, ...]]:
    """Group trials that differ in their seed only, in the order given."""
    groups: dict[Trial, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.without_seed, []).append(trial)
    return [tuple(group) for group in groups.values()]


def _finite(values: Values) -> NDArray[Any]:
    """Replace NaN, which JSON does not have, by None."""
    return np.where(np.isnan(values), None, values)  # type: ignore[call-overload, no-any-return]


def freeze(changes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return changes as a tuple that can be hashed, sorted by name; lists become tuples."""
    return tuple(sorted((name, tuple(value) if isinstance(value, list) else value) for name, value in changes.items()))


def _load(size: int, rate: float, overrides: Mapping[str, Any]) -> Scenario:
    return load_scenario("paper", {"fleet.size": size, "workload.request_rate_per_s": rate, **overrides})


@functools.cache
def _hyperparameters(algorithm: str, preset: str, config: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return config_document(make_config(algorithm, preset, dict(config)))


@functools.cache  # a sweep asks for the names of its trials several times
def _fingerprint(size: int, rate: float, overrides: Overrides, source: RewardSource | None) -> str:
    accuracy, task = {}, {}
    if source is not None:
        # The folder of a task's data is not part of the identity: the defaults of the task are added without it.
        accuracy = source.overrides(measured=False)
        task = TaskConfig.choices[source.task].model_construct(kind=source.task).model_dump(mode="json")
    scenario = _load(size, rate, {**dict(overrides), **accuracy})
    return _digest({"scenario": scenario_content(scenario), "task": task})


def scenario_digest(scenario: Scenario) -> str:
    """Return a short digest of the content of a scenario, whatever its name."""
    return _digest(scenario_content(scenario))


def scenario_content(scenario: Scenario) -> dict[str, Any]:
    """Return the fields that determine results: all but the name and the description."""
    return scenario.model_dump(mode="json", exclude={"name", "description"})


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:8]
