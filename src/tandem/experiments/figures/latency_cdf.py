"""Distribution of latency under each algorithm's latency-oriented policy: the paper's Fig. 8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tandem.experiments.claims import Claim, Ordering, check_claims
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import PAPERS, PROPOSED, RANDOM, add_grid, label, line_style, write_figure
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.run_trial import QUANTILES
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Data, Samples, group_rows
from tandem.experiments.trial import Values
from tandem.stats import mean

NAME, TITLE = "latency-cdf", "Distribution of latency under the latency-oriented policies"
TAIL = 0.99
SHARES = np.linspace(0, 1, QUANTILES)
CLAIMS = (
    Claim(
        "latency-c-moppo-soonest",
        "C-MOPPO's latency reaches its bound soonest: 99 % of its batches are served before the others'.",
        "tail_latency_s",
        Ordering((PROPOSED,), PAPERS, lower=True),
        unit="s",
    ),
    Claim(
        "latency-r-ppo-tail",
        "R+PPO has the longest tail.",
        "tail_latency_s",
        Ordering((RANDOM,), PAPERS),
        unit="s",
    ),
)


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Collect the quantiles of latency of every trial."""
    rows = [
        {"algorithm": trial.algorithm, "seed": trial.seed, "share": f"{share:g}", "latency_s": latency}
        for trial in scale.default_trials(algorithms)
        for share, latency in zip(SHARES, results[trial].latency_s, strict=True)
    ]
    return {NAME: rows}


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Check the claims, make the table and draw the figure."""
    quantiles = {
        name: np.array([[row["latency_s"] for row in own] for own in group_rows(rows, "seed").values()])
        for (name,), rows in group_rows(data[NAME], "algorithm").items()
    }
    tails = {name: quantile_at(own, TAIL) for name, own in quantiles.items()}
    return ReportSection(
        name=NAME,
        title=TITLE,
        about="The paper's Fig. 8. The policy of lowest mean latency of each front; the latency (waiting and "
        "inference) of every batch of requests it serves on new seeds, over devices and rounds. Lines are means of "
        "the seeds' quantiles.",
        claims=check_claims(CLAIMS, Samples.from_seeds({"tail_latency_s": tails})),
        tables=(_table(quantiles),),
        figures=(_draw(quantiles, out),),
    )


def quantile_at(quantiles: Values, share: float) -> list[float]:
    """Return the latency that a share of the batches does not exceed, one number per seed."""
    return [float(value) for value in quantiles[:, round(share * (QUANTILES - 1))]]


def _table(quantiles: dict[str, Values]) -> Table:
    rows = tuple(
        (label(name), *(str(mean(quantile_at(own, share))) for share in (0.5, 0.9, TAIL, 1.0)))
        for name, own in quantiles.items()
    )
    return Table("Latency in seconds by share of batches", ("", "median", "90 %", "99 %", "maximum"), rows)


def _draw(quantiles: dict[str, Values], out: Path) -> str:
    figure = Figure(figsize=(6.5, 4.6), layout="constrained")
    axes = figure.subplots()
    for name, own in quantiles.items():
        axes.plot(own.mean(axis=0), SHARES, label=label(name), color=line_style(name)["color"])
    axes.set(xlabel="latency (s)", ylabel="share of batches served by then", ylim=(0, 1.02))
    add_grid(axes)
    axes.legend(frameon=False, fontsize=9)
    return write_figure(figure, out, NAME)


LATENCY_CDF = Experiment(NAME, TITLE, Scale.default_trials, collect, make_section)
