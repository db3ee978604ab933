"""A scale on a task: the mappings are calibrated there once, and kept beside the cells that are trained on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tandem.errors import InputError
from tandem.experiments.reward_source import RewardSource
from tandem.experiments.scale import Scale, TaskBudget
from tandem.experiments.trial import make_trials_dir
from tandem.federated.build import build_system
from tandem.federated.calibration.driver import MAPPINGS, RESULT, calibrate, write_calibration
from tandem.scenario import Scenario, load_scenario

Told = Callable[[int, int], None]


def calibrate_scale(
    scale: Scale,
    task: str,
    data: str | Path | None = None,
    out: str | Path = "reproduced",
    told: Told = lambda done, of: None,
) -> Scale:
    """The scale with accuracy measured on a task, whose data, if it needs any, are in a folder.

    The three mappings are calibrated into a folder below ``out``, as 'tandem calibrate' does it, unless they are there:
    their constants make cells what they are. ``told`` hears how much of how much is measured.
    """
    own = scale.task(task)
    where = None if data is None else str(Path(data).absolute())
    found = load_calibrations(_scenario(scale, task, where), own, calibration_folder(make_trials_dir(out), task), told)
    return scale.for_task(
        task, [RewardSource.from_calibration(found[kind], task, own.episodes, where) for kind in MAPPINGS]
    )


def calibration_folder(out: Path, task: str) -> Path:
    """Where the calibration on a task is kept."""
    return out / f"calibration-{task}"


def load_calibrations(scenario: Scenario, own: TaskBudget, folder: Path, told: Told) -> dict[str, Scenario]:
    """The scenario with each mapping as it was calibrated into a folder; if it was not yet, it is."""
    if not (folder / RESULT).exists():
        folder.mkdir(exist_ok=True)
        system = build_system(scenario)
        found = calibrate(scenario, system, own.worlds, own.calibration_rounds, on_progress=told, folder=folder)
        write_calibration(folder, found)
    read = {kind: load_scenario(folder / f"{kind}.yaml") for kind in MAPPINGS}
    for kind, one in read.items():
        if one.model_copy(update={"accuracy": scenario.accuracy}) != scenario:
            raise InputError(
                f"{folder / f'{kind}.yaml'}: was calibrated for another fleet than this scale has; name another folder "
                "with --out, or remove the calibration to do it again."
            )
    return read


def _scenario(scale: Scale, task: str, data: str | None) -> Scenario:
    fleet = {"fleet.size": scale.size, "workload.request_rate_per_s": scale.rate}
    where = {} if data is None else {"path": data}
    return load_scenario("paper", {**fleet, "accuracy.task": {"kind": task, **where}})
