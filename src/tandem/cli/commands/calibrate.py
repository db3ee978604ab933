"""``tandem calibrate``: fit the accuracy mapping of a scenario to accuracies measured on a task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.formatting import make_console, print_table
from tandem.cli.options import JsonOption, ScenarioArgument, SetOption, parse_overrides, print_json
from tandem.cli.progress import progress_bar, spinner
from tandem.cli.task_options import DataOption, task_overrides, task_spinner
from tandem.errors import InputError
from tandem.io.atomic import explain_write_errors, folder_name, results_folder
from tandem.rng import MAX_SEED
from tandem.scenario import load_scenario
from tandem.scenario.plugins import AccuracyMappingConfig

if TYPE_CHECKING:
    from tandem.federated.calibration.driver import Calibration

NUMBERS = ("κ1", "κ2", "κ3", "ρ (/s)", "R² (age 0)", "RMSE (age 0)", "R²", "RMSE")


def calibrate(
    scenario: ScenarioArgument = "paper",
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="digits or cifar10; default: the scenario's task, or digits.", show_default=False
        ),
    ] = None,
    data: DataOption = None,
    mapping: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help=f"Mapping of scenario.yaml: {', '.join(AccuracyMappingConfig.choices)} or best.",
        ),
    ] = "best",
    worlds: Annotated[
        int, typer.Option(min=1, max=1000, help="Independent realisations of the drift to average over.")
    ] = 8,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=9, max=10_000, help="Rounds of each realisation; default: the scenario's.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Random seed.")] = 0,
    overrides: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results; default: calibrations/SCENARIO-TASK.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit the accuracy mapping of a scenario to a task.

    Measures accuracy over data volume, data age and model age. Writes scenario.yaml, the scenario with the fitted
    constants, and one scenario for each mapping; calibration.json with the quality of each fit; measurements.csv; and a
    figure. If the command is interrupted, run it again: it continues from the last finished measurement.
    (docs/system-model.md explains how the constants of the paper preset were chosen.)
    """
    changes = parse_overrides(overrides)
    if task is not None or load_scenario(scenario).accuracy.task is None:
        changes = {**task_overrides(task or "digits", data), **changes}
    elif data is not None:
        raise InputError(f"--data {data}: needs --task; name the task, or set accuracy.task.path.")
    loaded = load_scenario(scenario, changes)
    assert loaded.accuracy.task is not None

    # Importing JAX takes a second, so arguments are checked first.
    from tandem.federated.build import build_system
    from tandem.federated.calibration.driver import RESULT, SO_FAR, check_kind, write_calibration
    from tandem.federated.calibration.driver import calibrate as fit_to_task

    check_kind(mapping)
    kind = loaded.accuracy.task.kind
    folder = results_folder(out or Path("calibrations") / f"{folder_name(loaded.name)}-{kind}", RESULT, SO_FAR)
    with task_spinner(loaded):
        system = build_system(loaded)
    with explain_write_errors(folder, then="run the same command again"):
        with progress_bar(f"Measuring accuracy on {kind}, {worlds} realisations of the drift") as progress:
            how = (worlds, rounds, seed, mapping)
            calibration = fit_to_task(loaded, system, *how, lambda done, total: progress(done, total, "cells"), folder)
        with spinner("Writing the scenario and the figure"):
            write_calibration(folder, calibration)
    if as_json:
        print_json({**calibration.document(), "folder": str(folder)})
        return
    _print(calibration, folder)


def _print(calibration: Calibration, folder: Path) -> None:
    out = make_console()
    low, high = calibration.measured.accuracy.min(), calibration.measured.accuracy.max()
    out.print(
        f"Measured {calibration.measured.accuracy.size} accuracies from {low:.3f} to {high:.3f}; "
        f"pre-trained, before drift: {calibration.measured.pretrained:.3f}",
        highlight=False,
    )
    rows = [
        {
            "mapping": fit.kind,
            **{f"κ{k + 1}": f"{constant:.4g}" for k, constant in enumerate(fit.kappa)},
            "ρ (/s)": f"{fit.decay_per_s:.4g}",
            "R² (age 0)": f"{fit.server.r2:.3f}",
            "RMSE (age 0)": f"{fit.server.rmse:.4f}",
            "R²": f"{fit.device.r2:.3f}",
            "RMSE": f"{fit.device.rmse:.4f}",
        }
        for fit in calibration.fits
    ]
    print_table(out, rows, NUMBERS, spare=("RMSE (age 0)", "R² (age 0)"))
    out.print(
        f"Written to {folder}/; {folder / 'scenario.yaml'} uses {calibration.chosen.kind}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
