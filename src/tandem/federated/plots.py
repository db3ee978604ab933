"""Figures of measured accuracy: compared with its estimate, and with the fitted mappings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tandem.federated.calibration.fit import Fit
from tandem.federated.calibration.grid import Measurements
from tandem.federated.fidelity import Fidelity, Values
from tandem.feel.state import FleetState, RoundOutcome
from tandem.io.atomic import atomic_write

MEASURED, ESTIMATED = "#1f6fb2", "#d98c21"


def write_fidelity_figure(path: Path, title: str, states: FleetState, outcome: RoundOutcome) -> None:
    """Plot one seed: measured and estimated accuracy over time, and one against the other."""
    fidelity = Fidelity.from_history([outcome])
    time_s = np.asarray(states.clock_s)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    over_time, against = figure.subplots(1, 2, width_ratios=[1.9, 1])
    figure.suptitle(title)
    for values, label, color in (
        (fidelity.measured, "measured", MEASURED),
        (fidelity.estimated, "estimated by the mapping", ESTIMATED),
    ):
        known = ~np.isnan(values).all(axis=1)
        low, middle, high = np.nanquantile(values[known], (0.1, 0.5, 0.9), axis=1)
        over_time.plot(time_s[known], middle, color=color, label=f"{label}: median, 80 % of devices")
        over_time.fill_between(time_s[known], low, high, color=color, alpha=0.15, linewidth=0)
    over_time.set(xlabel="time (s)", ylabel="accuracy of serving devices", ylim=(0, 1.02))
    over_time.legend(frameon=False, loc="lower left")
    against.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    against.plot(fidelity.estimated.ravel(), fidelity.measured.ravel(), ".", color=MEASURED, markersize=3, alpha=0.4)
    against.set(xlabel="estimated", ylabel="measured", xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=130)


def write_calibration_figure(path: Path, title: str, measured: Measurements, fits: Sequence[Fit]) -> None:
    """Plot accuracy over data volume, data age and model age; points are measured, lines are the best fit."""
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    figure.suptitle(title)
    best, middle = fits[0], len(measured.samples) // 2
    x, y, age = measured.samples, measured.data_age_s, measured.model_age_s
    ages = (0, len(y) // 2, len(y) - 1)
    volumes = (0, middle, len(x) - 1)
    for k in dict.fromkeys(ages):
        estimate = best.estimate(x, np.full_like(x, y[k]), np.zeros_like(x))
        _draw(
            axes[0], x, measured.accuracy[:, k, 0], measured.standard_error[:, k, 0], estimate, f"data {y[k]:g} s old"
        )
    axes[0].set(xscale="log", xlabel="samples in a round", ylabel="accuracy", ylim=(0, 1.02))
    for k in dict.fromkeys(volumes):
        estimate = best.estimate(np.full_like(y, x[k]), y, np.zeros_like(y))
        _draw(axes[1], y, measured.accuracy[k, :, 0], measured.standard_error[k, :, 0], estimate, f"{x[k]:g} samples")
        estimate = best.estimate(np.full_like(age, x[k]), np.full_like(age, y[0]), age)
        _draw(axes[2], age, measured.accuracy[k, 0], measured.standard_error[k, 0], estimate, f"{x[k]:g} samples")
    axes[1].set(xlabel="mean age of the data (s)")
    axes[2].set(xlabel="age of the model (s)")
    for part in axes:
        part.legend(frameon=False, loc="lower left", fontsize=8)
    axes[2].set_title(f"lines: {best.kind}, R² {best.device.r2:.2f}, RMSE {best.device.rmse:.3f}", fontsize=9)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=130)


def _draw(axes: Axes, at: Values, measured: Values, error: Values, estimate: Values, label: str) -> None:
    points = axes.errorbar(
        at, measured, yerr=np.nan_to_num(1.96 * error), fmt="o", markersize=4, capsize=2, label=label
    )
    axes.plot(at, estimate, color=points[0].get_color(), linewidth=1.2)
