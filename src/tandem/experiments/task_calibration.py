"""Calibration of a scale on a task: the mappings are fitted once and kept in the folder of the trials that use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tandem.errors import InputError
from tandem.experiments.reward_source import RewardSource
from tandem.experiments.scale import Scale, TaskBudget
from tandem.experiments.trial import make_trials_dir
from tandem.federated.build import build_system
from tandem.federated.calibration.driver import RESULT, calibrate, write_calibration
from tandem.scenario import Scenario, load_scenario

OnProgress = Callable[[int, int], None]  # (measurements done, all measurements)
MAPPINGS = ("log-exponential", "log-rational", "power-law-exponential")  # the paper's default, then its variants


def calibrate_scale(
    scale: Scale,
    task: str,
    data: str | Path | None = None,
    out: str | Path = "reproduced",
    on_progress: OnProgress = lambda done, total: None,
) -> Scale:
    """Return a scale with accuracy measured on a task. ``data`` is the folder of the task's data, if it needs any.

    The mappings are calibrated into a folder below ``out``, as by 'tandem calibrate', unless it exists. Their
    constants are part of a trial's identity.
    """
    budget = scale.task(task)
    path = None if data is None else str(Path(data).absolute())
    folder = calibration_folder(make_trials_dir(out), task)
    calibrated = load_calibrations(_scenario(scale, task, path), budget, folder, on_progress)
    sources = [RewardSource.from_calibration(calibrated[kind], task, budget.episodes, path) for kind in MAPPINGS]
    return scale.for_task(task, sources)


def calibration_folder(out: Path, task: str) -> Path:
    """Return the folder of the calibration on a task."""
    return out / f"calibration-{task}"


def load_calibrations(
    scenario: Scenario, budget: TaskBudget, folder: Path, on_progress: OnProgress
) -> dict[str, Scenario]:
    """Load the scenario with each calibrated mapping from a folder; calibrate first if the folder has no result."""
    if not (folder / RESULT).exists():
        folder.mkdir(exist_ok=True)
        system = build_system(scenario)
        calibration = calibrate(
            scenario, system, budget.worlds, budget.calibration_rounds, on_progress=on_progress, folder=folder
        )
        write_calibration(folder, calibration)
    calibrated = {kind: load_scenario(folder / f"{kind}.yaml") for kind in MAPPINGS}
    for kind, one in calibrated.items():
        if one.model_copy(update={"accuracy": scenario.accuracy}) != scenario:
            raise InputError(
                f"{folder / f'{kind}.yaml'}: calibrated for another fleet than that of this scale; choose another "
                "folder with --out, or remove the calibration to repeat it."
            )
    return calibrated


def _scenario(scale: Scale, task: str, data: str | None) -> Scenario:
    fleet = {"fleet.size": scale.size, "workload.request_rate_per_s": scale.rate}
    path = {} if data is None else {"path": data}
    return load_scenario("paper", {**fleet, "accuracy.task": {"kind": task, **path}})
