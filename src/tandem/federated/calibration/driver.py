"""Calibration of the accuracy mapping: measure accuracy on a task, fit the mappings, write calibrated scenarios.

The calibration of the ``paper`` preset is different (docs/system-model.md): it chose the values that the paper does not
give, without any data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tandem import __version__
from tandem.errors import InputError, did_you_mean
from tandem.federated.calibration.cache import MeasurementCache
from tandem.federated.calibration.fit import Fit, fit_all
from tandem.federated.calibration.grid import VOLUMES, Measurements, measure, plan_for
from tandem.federated.plots import write_calibration_figure
from tandem.federated.simulation import FederatedSimulation
from tandem.feel.accuracy import mappings_by_kind
from tandem.feel.system import System
from tandem.io.tables import write_csv, write_json, write_text
from tandem.scenario import Scenario, dump_scenario
from tandem.scenario.plugins import AccuracyMappingConfig

RESULT, SCENARIO, TABLE, FIGURE = "calibration.json", "scenario.yaml", "measurements.csv", "calibration.png"
SO_FAR = "measured-so-far.json"
COLUMNS = ("samples", "data_age_s", "model_age_s", "accuracy", "standard_error")
MIN_ROUNDS = 9  # of a measurement


@dataclass(frozen=True)
class Calibration:
    """The measurements on a task and the mappings fitted to them."""

    scenario: Scenario  # with the task
    measured: Measurements
    fits: list[Fit]  # the best first
    chosen: Fit  # the fit in scenario.yaml
    how: dict[str, Any]  # seed, worlds (realisations of the drift), rounds: all that is needed to repeat it

    def document(self) -> dict[str, Any]:
        """Return the calibration as a JSON document."""
        assert self.scenario.accuracy.task is not None
        return {
            "scenario": self.scenario.name,
            "task": self.scenario.accuracy.task.model_dump(mode="json", exclude={"path"}),  # differs between machines
            **self.how,
            "pretrained": self.measured.pretrained,
            "accuracy_range": [float(self.measured.accuracy.min()), float(self.measured.accuracy.max())],
            "chosen": self.chosen.kind,
            "fits": [fit.document() for fit in self.fits],
        }

    def with_fit(self, fit: Fit) -> Scenario:
        """Return the scenario with the constants of a fit and without the task, so that accuracy is estimated."""
        accuracy = self.scenario.accuracy
        changes = {
            "mapping": AccuracyMappingConfig.parse({"kind": fit.kind, "kappa": fit.kappa}),
            "model_decay_per_s": fit.decay_per_s,
            "pretrained": self.measured.pretrained,
            "task": None,
        }
        return self.scenario.model_copy(update={"accuracy": accuracy.model_copy(update=changes)})


def calibrate(
    scenario: Scenario,
    system: System,
    worlds: int,
    rounds: int | None = None,
    seed: int = 0,
    mapping: str = "best",
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    folder: Path | None = None,
) -> Calibration:
    """Measure accuracy on the scenario's task, with the scenario's system, and fit all mappings.

    Accuracies are means over ``worlds`` realisations of the drift, each of ``rounds`` rounds (as many as the scenario
    has, unless given). ``on_progress`` is called with the numbers of finished and of all cells. Finished cells are
    kept in ``folder``, if given, until ``write_calibration`` writes the result, so that an interrupted calibration
    continues there.
    """
    simulation = system.measured_accuracy
    assert isinstance(simulation, FederatedSimulation)
    round_s = max(scenario.limits.round_floor_s, scenario.limits.idle_round_s)
    length = max(MIN_ROUNDS, scenario.rounds) if rounds is None else rounds
    plan = plan_for(simulation, system.size, round_s, max(VOLUMES), length)
    how = {"seed": seed, "worlds": worlds, "rounds": length, "round_s": round_s, "trainers": plan.trainers}
    cache = None if folder is None else MeasurementCache(folder / SO_FAR, measurement_id(scenario, simulation, how))
    measured = measure(simulation, plan, worlds, seed, on_progress=on_progress, cache=cache)
    fits = fit_all(measured)
    return Calibration(scenario, measured, fits, chosen_fit(fits, mapping), how)


def measurement_id(scenario: Scenario, simulation: FederatedSimulation, how: dict[str, Any]) -> str:
    """Hash everything that a measurement depends on, so that cached cells of another measurement are not used."""
    text = [__version__, scenario.model_dump_json(), json.dumps(how), str(jax.default_backend())]
    text.append(simulation.algorithm.describe())
    arrays = jax.tree.leaves((simulation.model, simulation.pool))
    return hashlib.sha256("\n".join(text).encode() + b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest()


def chosen_fit(fits: list[Fit], kind: str) -> Fit:
    """Return the fit of a kind of mapping, or the best fit."""
    check_kind(kind)
    return fits[0] if kind == "best" else next(fit for fit in fits if fit.kind == kind)


def check_kind(kind: str) -> None:
    """Raise InputError for an unknown mapping, before the measurement."""
    known = ["best", *mappings_by_kind()]
    if kind not in known:
        raise InputError(f"--mapping {kind}: is not an accuracy mapping; {did_you_mean(kind, known)}.")


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write the scenario (and one for each mapping), the measurements, the figure, and last calibration.json."""
    assert calibration.scenario.accuracy.task is not None
    task = calibration.scenario.accuracy.task.kind
    for fit in calibration.fits:
        write_text(folder / f"{fit.kind}.yaml", _as_yaml(calibration, fit, task))
    write_text(folder / SCENARIO, _as_yaml(calibration, calibration.chosen, task))
    write_csv(folder / TABLE, COLUMNS, calibration.measured.rows())
    write_calibration_figure(folder / FIGURE, f"Accuracy measured on {task}", calibration.measured, calibration.fits)
    write_json(folder / RESULT, calibration.document())
    (folder / SO_FAR).unlink(missing_ok=True)


def _as_yaml(calibration: Calibration, fit: Fit, task: str) -> str:
    note = (
        f"# The accuracy part was fitted to measurements on the task {task} by 'tandem calibrate':\n"
        f"# {fit.kind}, R2 {fit.device.r2:.3f}, RMSE {fit.device.rmse:.4f} over volumes and ages.\n"
    )
    return note + dump_scenario(calibration.with_fit(fit))
