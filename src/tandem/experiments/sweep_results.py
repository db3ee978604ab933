"""Hypervolume and sparsity over something that is swept: devices (the paper's Fig. 4), arrivals (Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tandem.experiments.claims import Algorithms, Results, Table, write_csv, write_figure
from tandem.experiments.plotting import label, look, look_closely
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Cell
from tandem.stats import Estimate, difference, mean

HYPERVOLUME, SPARSITY = "hypervolume", "sparsity"


@dataclass(frozen=True)
class Swept:
    """Results by algorithm and by what is swept."""

    scale: Scale
    algorithms: Algorithms
    field: str  # of Scale.cell: size or rate
    values: Sequence[Any]
    results: Results

    def cells(self, algorithm: str, value: Any) -> list[Cell]:
        """The seeds of one point of a line."""
        return [self.scale.cell(algorithm, seed, **{self.field: value}) for seed in range(self.scale.seeds)]

    def all_cells(self) -> list[Cell]:
        """Of all lines."""
        return [cell for name in self.algorithms for value in self.values for cell in self.cells(name, value)]

    def seeds(self, measure: str, algorithm: str, value: Any) -> list[float]:
        """One number a seed."""
        return [getattr(self.results[cell], measure) for cell in self.cells(algorithm, value)]

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
                style = {"label": label(algorithm), "capsize": 3, **look(algorithm)}
                axes.errorbar(self.values, centres[algorithm], yerr=spread, **style)
            axes.set(xlabel=axis, ylabel=measure)
            axes.grid(color="#e6e6e6", linewidth=0.7)
            if measure == SPARSITY:
                axes.set_yscale("log")
            else:
                look_closely(axes, centres)
        figure.axes[0].legend(frameon=False, fontsize=9)
        return write_figure(figure, out, name)

    def _write_data(self, out: Path, name: str) -> None:
        measures = ("hypervolume", "sparsity", "expected_utility", "cardinality", "violation_rate", "rounds", "wall_s")
        rows = [
            (cell.algorithm, getattr(cell, self.field), cell.seed, *(getattr(self.results[cell], m) for m in measures))
            for cell in self.all_cells()
        ]
        write_csv(out / f"{name}.csv", ("algorithm", self.field, "seed", *measures), rows)
