"""Hypervolume over the rounds used: the paper's Fig. 6."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tandem.experiments.claims import GOAL, AtLeast, Claim, Near, Ordering, check_claims
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import (
    EVOLVED,
    GUIDED,
    OURS,
    PROPOSED,
    add_grid,
    draw_curves,
    label,
    line_style,
    write_figure,
    zoom_to_leaders,
)
from tandem.experiments.reference_front import share_of_best
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Data, Rows, Samples, group_rows
from tandem.experiments.trial import TrialResult, Values
from tandem.stats import mean

NAME, TITLE = "convergence", "Hypervolume over rounds"
CURVE = ("rounds", "hypervolume", "sparsity")  # columns of a learning curve
TOLERANCE = 0.1  # relative, for the paper's final hypervolumes
CLAIMS = (
    *(
        Claim(
            f"convergence-{name}-end",
            f"{label(name)} converges to about {expected}.",
            "final_hypervolume",
            Near(name, expected, TOLERANCE),
            paper=str(expected),
        )
        for name, expected in ((PROPOSED, 79), (GUIDED, 66), (EVOLVED, 48))
    ),
    Claim(
        "convergence-c-moppo-highest",
        "C-MOPPO ends highest of the three.",
        "final_hypervolume",
        Ordering((PROPOSED,), (GUIDED, EVOLVED)),
    ),
    Claim(
        "convergence-pc-ppo-speedup",
        "PC-PPO reaches PG-MORL's final hypervolume in a fifth of the rounds.",
        "speedup",
        AtLeast(OURS, 5.0),
        paper=f"{GOAL}: 5 times fewer",
        unit="times fewer",
    ),
)


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Collect the learning curves."""
    rows = [
        {"algorithm": trial.algorithm, "seed": trial.seed, **point}
        for trial in scale.default_trials(algorithms)
        for point in curve_rows(results[trial])
    ]
    return {NAME: rows}


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Check the claims, make the table and draw the figure."""
    curves = {name: read_curves(rows) for (name,), rows in group_rows(data[NAME], "algorithm").items()}
    metrics = {"final_hypervolume": {name: final_values(own) for name, own in curves.items()}}
    return ReportSection(
        name=NAME,
        title=TITLE,
        about="The paper's Fig. 6. The front that each algorithm would have delivered if it had been stopped earlier: "
        "validated, selected and measured on new seeds like a final front. Rounds include that validation.",
        claims=check_claims(CLAIMS, Samples.from_seeds({**metrics, "speedup": speedups(curves)})),
        tables=(_table(scale, curves),),
        figures=(_draw(curves, out),),
    )


def curve_rows(result: TrialResult) -> Rows:
    """Return a row for each point of a result's learning curve."""
    return [{"rounds": int(point[0]), "hypervolume": point[1], "sparsity": point[2]} for point in result.curve]


def read_curves(rows: Rows) -> list[Values]:
    """Return the learning curves of all seeds, [points, 3] each."""
    return [np.array([[row[key] for key in CURVE] for row in own]) for own in group_rows(rows, "seed").values()]


def final_values(curves: list[Values]) -> list[float]:
    """Return the final hypervolume of each seed."""
    return [float(curve[-1, 1]) for curve in curves]


def speedups(curves: dict[str, list[Values]]) -> dict[str, list[float]]:
    """Return how many times fewer rounds our algorithm needs to reach PG-MORL's mean final hypervolume.

    The value is NaN for a seed that does not reach it.
    """
    if not {OURS, GUIDED} <= set(curves):
        return {}
    target = float(np.mean(final_values(curves[GUIDED])))
    theirs = float(np.mean([curve[-1, 0] for curve in curves[GUIDED]]))
    rounds = [rounds_to(curve, target) for curve in curves[OURS]]
    return {OURS: [theirs / one if np.isfinite(one) else float("nan") for one in rounds]}


def rounds_to(curve: Values, target: float) -> float:
    """Return the rounds until a curve first reaches a hypervolume, linearly interpolated; infinity if it never does."""
    rounds, reached = curve[:, 0], np.maximum.accumulate(curve[:, 1])
    index = int(np.argmax(reached >= target))
    if reached[index] < target:
        return float("inf")
    if index == 0:
        return float(rounds[0])
    return float(np.interp(target, reached[index - 1 : index + 1], rounds[index - 1 : index + 1]))


def _table(scale: Scale, curves: dict[str, list[Values]]) -> Table:
    rows = []
    for name, own in curves.items():
        last = mean(final_values(own))
        half = mean([float(np.interp(scale.budget / 2, curve[:, 0], curve[:, 1])) for curve in own])
        share = share_of_best(scale, final_values(own))
        rows.append((label(name), str(half), str(last), "" if share is None else f"{share.scaled(100)} %"))
    headings = ("", "at half of the rounds", "at the end", "share of the best known")
    return Table("Hypervolume during training and at the end", headings, tuple(rows))


def _draw(curves: dict[str, list[Values]], out: Path) -> str:
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.subplots()
    centres = {name: draw_curves(axes, own, label(name), line_style(name)) for name, own in curves.items()}
    zoom_to_leaders(axes, centres)
    axes.set(xlabel="environment rounds", ylabel="hypervolume on new seeds")
    add_grid(axes)
    axes.legend(frameon=False, fontsize=9)
    return write_figure(figure, out, NAME)


CONVERGENCE = Experiment(NAME, TITLE, Scale.default_trials, collect, make_section)
