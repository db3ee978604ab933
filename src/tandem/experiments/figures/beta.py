"""Hypervolume and sparsity of C-MOPPO over beta, the share of the other objectives that it must keep: Fig. 7."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from tandem.experiments.claims import Claim, Trend, check_claims
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import PROPOSED, add_grid, error_bars, line_style, write_figure
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Data, Samples
from tandem.experiments.trial import Trial

NAME, TITLE = "beta", "Hypervolume and sparsity of C-MOPPO over beta"
METRICS = ("hypervolume", "sparsity")
CLAIMS = (
    Claim(
        "beta-hypervolume-rises",
        "Hypervolume rises with beta.",
        "hypervolume",
        Trend((PROPOSED,)),
        paper="56.6 at 0.5, 75.2 at 0.9",
    ),
    Claim(
        "beta-sparsity-falls",
        "Sparsity falls with beta.",
        "sparsity",
        Trend((PROPOSED,), falls=True),
        paper="0.56 at 0.5, 0.36 at 0.9",
    ),
)


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Return the trials of C-MOPPO for every beta, whichever algorithms are compared elsewhere."""
    return [trial for beta in scale.betas for trial in _seeds(scale, beta)]


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Collect hypervolume and sparsity of every trial."""
    rows = [
        {"beta": beta, "seed": trial.seed} | {metric: getattr(results[trial], metric) for metric in METRICS}
        for beta in scale.betas
        for trial in _seeds(scale, beta)
    ]
    return {NAME: rows}


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Check the claims, make the table and draw the figure."""
    samples = Samples.from_rows([{"algorithm": PROPOSED, **row} for row in data[NAME]], METRICS, "beta")
    columns = [samples.line(metric, PROPOSED) for metric in METRICS]
    rows = tuple((f"{beta:g}", *map(str, row)) for beta, *row in zip(samples.values, *columns, strict=True))
    return ReportSection(
        name=NAME,
        title=TITLE,
        about="The paper's Fig. 7.",
        claims=check_claims(CLAIMS, samples),
        tables=(Table("C-MOPPO by beta", ("beta", *METRICS), rows),),
        figures=(_draw(samples, out),),
    )


def _seeds(scale: Scale, beta: float) -> list[Trial]:
    return [scale.trial(PROPOSED, seed, beta=beta) for seed in range(scale.seeds)]


def _draw(samples: Samples, out: Path) -> str:
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), METRICS, strict=True):
        line = samples.line(metric, PROPOSED)
        centre = [point.value for point in line]
        axes.errorbar(samples.values, centre, yerr=error_bars(line), capsize=3, **line_style(PROPOSED))
        axes.set(xlabel="beta", ylabel=metric)
        add_grid(axes)
    return write_figure(figure, out, NAME)


BETA = Experiment(NAME, TITLE, trials, collect, make_section)
