"""How long requests wait under each algorithm's latency-oriented policy: the paper's Fig. 8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tandem.experiments.claims import (
    Algorithms,
    Claim,
    Experiment,
    ReportSection,
    Results,
    Table,
    check_claim,
    write_csv,
    write_figure,
)
from tandem.experiments.plotting import PAPERS, PROPOSED, RANDOM, label, line_style
from tandem.experiments.run_trial import QUANTILES
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Values
from tandem.stats import difference, mean

TITLE = "Distribution of latency under the latency-oriented policies"
TAIL = 0.99


def make_section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """Write data and figure, and judge."""
    shares = np.linspace(0, 1, QUANTILES)
    quantiles = {a: np.array([results[scale.trial(a, s)].latency_s for s in range(scale.seeds)]) for a in algorithms}
    rows = [
        (a, s, f"{p:g}", q)
        for a in algorithms
        for s in range(scale.seeds)
        for p, q in zip(shares, quantiles[a][s], strict=True)
    ]
    write_csv(out / "latency-cdf.csv", ("algorithm", "seed", "share", "latency_s"), rows)
    return ReportSection(
        name="latency-cdf",
        title=TITLE,
        about="The paper's Fig. 8. From each front the policy of lowest mean latency; the latency (waiting and "
        "inference) of every batch of requests it serves on fresh seeds, all devices and rounds. Lines are means of "
        "the seeds' quantiles.",
        claims=tuple(_statements(quantiles)),
        tables=(_table(quantiles),),
        figures=(_draw(shares, quantiles, out),),
    )


def quantile_at(quantiles: Values, share: float) -> list[float]:
    """The latency that this share of batches stays within, one number a seed."""
    return [float(value) for value in quantiles[:, round(share * (QUANTILES - 1))]]


def _statements(quantiles: dict[str, Values]) -> list[Claim]:
    tails = {name: quantile_at(own, TAIL) for name, own in quantiles.items() if name in PAPERS}
    shorter = {n: difference(tails[n], tails[PROPOSED]) for n in tails if n != PROPOSED and PROPOSED in tails}
    longer = {n: difference(tails[RANDOM], tails[n]) for n in tails if n != RANDOM and RANDOM in tails}
    return [
        check_claim(
            "C-MOPPO's latency reaches its bound soonest.",
            "99 % of its batches are served earlier by "
            + ", ".join(f"{margin} s than {label(name)}'s" for name, margin in shorter.items()),
            *shorter.values(),
        ),
        check_claim(
            "R+PPO has the longest tail.",
            "99 % of its batches are served later by "
            + ", ".join(f"{margin} s than {label(name)}'s" for name, margin in longer.items()),
            *longer.values(),
        ),
    ]


def _table(quantiles: dict[str, Values]) -> Table:
    rows = tuple(
        (label(name), *(str(mean(quantile_at(own, share))) for share in (0.5, 0.9, TAIL, 1.0)))
        for name, own in quantiles.items()
    )
    return Table("Latency in seconds by share of batches", ("", "median", "90 %", "99 %", "longest"), rows)


def _draw(shares: Values, quantiles: dict[str, Values], out: Path) -> str:
    figure = Figure(figsize=(6.5, 4.6), layout="constrained")
    axes = figure.subplots()
    for name, own in quantiles.items():
        axes.plot(own.mean(axis=0), shares, label=label(name), color=line_style(name)["color"])
    axes.set(xlabel="latency (s)", ylabel="share of batches served by then", ylim=(0, 1.02))
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.legend(frameon=False, fontsize=9)
    return write_figure(figure, out, "latency-cdf")


LATENCY_CDF = Experiment("latency-cdf", TITLE, Scale.default_trials, make_section)
