"""Results over a swept variable, for the figures over devices (the paper's Fig. 4) and arrivals (Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tandem.experiments.experiment import Algorithms, Results
from tandem.experiments.plotting import add_grid, error_bars, label, line_style, write_figure, zoom_to_leaders
from tandem.experiments.report import Table
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Rows, Samples
from tandem.experiments.trial import Trial

HYPERVOLUME, SPARSITY = "hypervolume", "sparsity"
METRICS = (HYPERVOLUME, SPARSITY, "expected_utility", "cardinality", "violation_rate", "rounds", "wall_s")


def sweep_trials(scale: Scale, algorithms: Algorithms, field: str, values: Sequence[Any]) -> list[Trial]:
    """Return the trials of every algorithm at every value of a field of ``Scale.trial``, for all seeds."""
    return [
        scale.trial(algorithm, seed, **{field: value})
        for algorithm in algorithms
        for value in values
        for seed in range(scale.seeds)
    ]


def sweep_rows(trials: Sequence[Trial], results: Results, field: str) -> Rows:
    """Return a row of metrics for every trial."""
    return [
        {"algorithm": one.algorithm, field: getattr(one, field), "seed": one.seed}
        | {metric: getattr(results[one], metric) for metric in METRICS}
        for one in trials
    ]


def sweep_table(samples: Samples, metric: str, title: str) -> Table:
    """Return a table with a row per algorithm and a column per value."""
    rows = tuple((label(name), *map(str, samples.line(metric, name))) for name in samples.groups)
    return Table(title, ("", *(f"{value:g}" for value in samples.values)), rows)


def draw_sweep(samples: Samples, axis: str, out: Path, name: str) -> str:
    """Draw hypervolume and sparsity over the swept variable; return the figure's name."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), (HYPERVOLUME, SPARSITY), strict=True):
        centres = {}
        for algorithm in samples.groups:
            line = samples.line(metric, algorithm)
            centres[algorithm] = [point.value for point in line]
            style = {"label": label(algorithm), "capsize": 3, **line_style(algorithm)}
            axes.errorbar(samples.values, centres[algorithm], yerr=error_bars(line), **style)
        axes.set(xlabel=axis, ylabel=metric)
        add_grid(axes)
        if metric == SPARSITY:
            axes.set_yscale("log")
        else:
            zoom_to_leaders(axes, centres)
    figure.axes[0].legend(frameon=False, fontsize=9)
    return write_figure(figure, out, name)
