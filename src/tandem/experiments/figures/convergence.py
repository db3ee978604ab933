"""Hypervolume over the rounds spent: the paper's Fig. 6."""

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
    check_close,
    write_csv,
    write_figure,
)
from tandem.experiments.plotting import EVOLVED, GUIDED, OURS, PROPOSED, draw_curves, label, line_style, zoom_to_leaders
from tandem.experiments.reference_front import share_of_best
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Values
from tandem.stats import difference, mean

TITLE = "Hypervolume over rounds"
PAPERS_ENDS = {PROPOSED: 79.0, GUIDED: 66.0, EVOLVED: 48.0}  # the hypervolume each converges to there
WITHIN = 0.1  # of that
FEWER = 5.0  # times fewer rounds than PG-MORL: what we want of ours


def make_section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """Write data and figure, and judge."""
    curves = {a: [results[scale.trial(a, seed)].curve for seed in range(scale.seeds)] for a in algorithms}
    headings = ("algorithm", "seed", "rounds", "hypervolume", "sparsity")
    rows = [(a, seed, int(m[0]), *m[1:]) for a in algorithms for seed, one in enumerate(curves[a]) for m in one]
    write_csv(out / "convergence.csv", headings, rows)
    return ReportSection(
        name="convergence",
        title=TITLE,
        about="The paper's Fig. 6. What each algorithm would have delivered had it been stopped earlier: validated, "
        "chosen and measured on fresh seeds like a final front. Rounds include that validation.",
        claims=(*_of_the_paper(curves), *_of_ours(curves)),
        tables=(_table(scale, curves),),
        figures=(_draw(curves, out),),
    )


def final_values(curves: list[Values]) -> list[float]:
    """The last hypervolume of each seed."""
    return [float(curve[-1, 1]) for curve in curves]


def _of_the_paper(curves: dict[str, list[Values]]) -> list[Claim]:
    said = [
        check_close(
            f"{label(name)} converges to about {expected:g}.", mean(final_values(curves[name])), expected, WITHIN
        )
        for name, expected in PAPERS_ENDS.items()
        if name in curves
    ]
    rivals = [name for name in (GUIDED, EVOLVED) if name in curves and PROPOSED in curves]
    ahead = {name: difference(final_values(curves[PROPOSED]), final_values(curves[name])) for name in rivals}
    found = "It ends above " + ", ".join(f"{label(name)} by {margin}" for name, margin in ahead.items()) + "."
    return [*said, check_claim("C-MOPPO ends highest of the three.", found, *ahead.values())]


def _of_ours(curves: dict[str, list[Values]]) -> list[Claim]:
    if not {OURS, GUIDED} <= set(curves):
        return []
    target = float(np.mean(final_values(curves[GUIDED])))
    ours = [rounds_to(curve, target) for curve in curves[OURS]]
    theirs = float(np.mean([curve[-1, 0] for curve in curves[GUIDED]]))
    arrived = [rounds for rounds in ours if np.isfinite(rounds)]
    stated = f"Ours: Tandem needs {FEWER:g} times fewer rounds than PG-MORL to the same hypervolume."
    found = f"{len(arrived)} of {len(ours)} seeds reach PG-MORL's mean end, {target:.1f}"
    if not arrived:
        return [Claim(stated, f"{found}.", "disagrees")]
    ratios = mean([theirs / rounds for rounds in arrived])
    found = f"{found}, and these in {ratios} times fewer rounds than its {theirs:,.0f}."
    if len(arrived) < len(ours):
        return [Claim(stated, found, "disagrees")]
    return [check_claim(stated, found, ratios.shifted(-FEWER))]


def rounds_to(curve: Values, target: float) -> float:
    """Rounds until a curve first reaches a hypervolume, by straight lines between its marks; infinite if never."""
    rounds, reached = curve[:, 0], np.maximum.accumulate(curve[:, 1])
    place = int(np.argmax(reached >= target))
    if reached[place] < target:
        return float("inf")
    if place == 0:
        return float(rounds[0])
    return float(np.interp(target, reached[place - 1 : place + 1], rounds[place - 1 : place + 1]))


def _table(scale: Scale, curves: dict[str, list[Values]]) -> Table:
    rows = []
    for name, own in curves.items():
        last = mean(final_values(own))
        half = mean([float(np.interp(scale.budget / 2, curve[:, 0], curve[:, 1])) for curve in own])
        share = share_of_best(scale, final_values(own))
        rows.append((label(name), str(half), str(last), "" if share is None else f"{share.scaled(100)} %"))
    headings = ("", "at half of the rounds", "at the end", "share of the best known")
    return Table("Hypervolume on the way and at the end", headings, tuple(rows))


def _draw(curves: dict[str, list[Values]], out: Path) -> str:
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.subplots()
    centres = {name: draw_curves(axes, own, label(name), line_style(name)) for name, own in curves.items()}
    zoom_to_leaders(axes, centres)
    axes.set(xlabel="environment rounds", ylabel="hypervolume on fresh seeds")
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.legend(frameon=False, fontsize=9)
    return write_figure(figure, out, "convergence")


CONVERGENCE = Experiment("convergence", TITLE, Scale.default_trials, make_section)
