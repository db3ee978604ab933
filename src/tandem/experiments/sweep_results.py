"""Hypervolume and sparsity over something that is swept: devices (the paper's Fig. 4), arrivals (Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tandem.experiments.claims import Algorithms, Claim, Results, Table, check_claim, write_csv, write_figure
from tandem.experiments.plotting import PAPERS, label, line_style, zoom_to_leaders
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Trial
from tandem.stats import Estimate, difference, mean

HYPERVOLUME, SPARSITY = "hypervolume", "sparsity"


@dataclass(frozen=True)
class SweepResults:
    """Results by algorithm and by what is swept."""

    scale: Scale
    algorithms: Algorithms
    field: str  # of Scale.cell: size or rate
    values: Sequence[Any]
    results: Results

    def trials(self, algorithm: str, value: Any) -> list[Trial]:
        """The seeds of one point of a line."""
        return [self.scale.trial(algorithm, seed, **{self.field: value}) for seed in range(self.scale.seeds)]

    def all_trials(self) -> list[Trial]:
        """Of all lines."""
        return [cell for name in self.algorithms for value in self.values for cell in self.trials(name, value)]

    def seeds(self, measure: str, algorithm: str, value: Any) -> list[float]:
        """One number a seed."""
        return [getattr(self.results[cell], measure) for cell in self.trials(algorithm, value)]

    def mean(self, measure: str, algorithm: str, value: Any) -> Estimate:
        """Over seeds."""
        return mean(self.seeds(measure, algorithm, value))

    def line(self, measure: str, algorithm: str) -> list[Estimate]:
        """Over what is swept."""
        return [self.mean(measure, algorithm, value) for value in self.values]

    def ahead(self, measure: str, first: str, second: str, values: Sequence[Any] | None = None) -> list[Estimate]:
        """How far one algorithm is ahead of another at each value; less sparsity is better. Empty if one is missing."""
        if not {first, second} <= set(self.algorithms):
            return []
        sign = -1.0 if measure == SPARSITY else 1.0
        return [
            difference(self.seeds(measure, first, value), self.seeds(measure, second, value)).scaled(sign)
            for value in (self.values if values is None else values)
        ]

    def first_to_last(self, measure: str, algorithm: str) -> Estimate:
        """How much a measure grows from the lowest value to the highest."""
        return difference(
            self.seeds(measure, algorithm, self.values[-1]), self.seeds(measure, algorithm, self.values[0])
        )

    def table(self, measure: str, title: str) -> Table:
        """A row an algorithm, a column a value."""
        rows = tuple((label(name), *map(str, self.line(measure, name))) for name in self.algorithms)
        return Table(title, ("", *(f"{value:g}" for value in self.values)), rows)

    def write(self, out: Path, name: str, axis: str) -> str:
        """Write the data, and both measures over what is swept."""
        self._write_data(out, name)
        figure = Figure(figsize=(11, 4.4), layout="constrained")
        for axes, measure in zip(figure.subplots(1, 2), (HYPERVOLUME, SPARSITY), strict=True):
            centres = {}
            for algorithm in self.algorithms:
                line = self.line(measure, algorithm)
                centres[algorithm] = [point.value for point in line]
                spread = [[p.value - p.low for p in line], [p.high - p.value for p in line]]
                style = {"label": label(algorithm), "capsize": 3, **line_style(algorithm)}
                axes.errorbar(self.values, centres[algorithm], yerr=spread, **style)
            axes.set(xlabel=axis, ylabel=measure)
            axes.grid(color="#e6e6e6", linewidth=0.7)
            if measure == SPARSITY:
                axes.set_yscale("log")
            else:
                zoom_to_leaders(axes, centres)
        figure.axes[0].legend(frameon=False, fontsize=9)
        return write_figure(figure, out, name)

    def _write_data(self, out: Path, name: str) -> None:
        measures = ("hypervolume", "sparsity", "expected_utility", "cardinality", "violation_rate", "rounds", "wall_s")
        rows = [
            (cell.algorithm, getattr(cell, self.field), cell.seed, *(getattr(self.results[cell], m) for m in measures))
            for cell in self.all_trials()
        ]
        write_csv(out / f"{name}.csv", ("algorithm", self.field, "seed", *measures), rows)


def competitors(swept: SweepResults, algorithm: str, everyone: bool = False) -> list[str]:
    """Whom the paper compares an algorithm with, or everyone there is."""
    return [name for name in swept.algorithms if name != algorithm and (everyone or name in PAPERS)]


def describe_margin(
    swept: SweepResults, measure: str, first: str, second: str, values: Sequence[Any] | None = None
) -> str:
    """By how much a measure of the better one, as is claimed, is on the good side of that of the other."""
    chosen = swept.values if values is None else values
    margins = swept.ahead(measure, first, second, values)
    if not margins:
        return "not compared"
    larger, smaller = (second, first) if measure == SPARSITY else (first, second)
    said = f"{label(larger)}'s {measure} exceeds {label(smaller)}'s by"
    if len(margins) == 1:
        return f"{said} {margins[0]} at {chosen[0]:g}"
    ordered = sorted(zip(margins, chosen, strict=True), key=lambda pair: pair[0].value)
    (least, at_least), (most, at_most) = ordered[0], ordered[-1]
    return f"{said} {least} (at {at_least:g}) to {most} (at {at_most:g})"


def claim_leads(swept: SweepResults, measure: str, algorithm: str, stated: str, everyone: bool = False) -> Claim:
    """Whether an algorithm is the best at every value; what is said is how far it is from the best of the others."""
    rivals = competitors(swept, algorithm, everyone)
    if algorithm not in swept.algorithms or not rivals:
        return check_claim(stated, "")
    found, margins = [], []
    for value in swept.values:
        ahead = {rival: swept.ahead(measure, algorithm, rival, [value])[0] for rival in rivals}
        nearest = min(rivals, key=lambda rival: ahead[rival].value)
        found.append(f"at {value:g}: {ahead[nearest]} against {label(nearest)}")
        margins += list(ahead.values())
    return check_claim(stated, f"{label(algorithm)}'s lead over the best of the others: " + "; ".join(found), *margins)
