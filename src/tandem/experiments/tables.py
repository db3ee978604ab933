"""Tables of an experiment's data: written as CSV, read back, and grouped by seed for statistics."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.io.tables import write_csv
from tandem.stats import Estimate, difference, mean

Rows = list[dict[str, Any]]  # each with the same columns
Data = dict[str, Rows]  # tables by the name of their file, without its ending
X = float | str | None  # a value of the swept variable, or a setting by name; None where nothing is swept


def write_data(data: Data, folder: Path) -> None:
    """Write every table as a CSV file into a folder, each atomically."""
    for name, rows in data.items():
        write_csv(folder / f"{name}.csv", list(rows[0]), (list(row.values()) for row in rows))


def read_data(folder: Path, names: Sequence[str]) -> Data:
    """Read tables that ``write_data`` wrote. Numbers come back exactly, empty cells as None."""
    data = {}
    for name in names:
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as handle:
            data[name] = [{key: _parse(cell) for key, cell in row.items()} for row in csv.DictReader(handle)]
    return data


def _parse(cell: str) -> Any:
    if cell == "":
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def group_rows(rows: Rows, *columns: str) -> dict[tuple[Any, ...], Rows]:
    """Group rows that agree in some columns, in the order of their first row."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


@dataclass(frozen=True)
class Samples:
    """One number per seed, by metric, group (an algorithm or a reward source) and value of the swept variable."""

    numbers: dict[str, dict[str, dict[X, list[float]]]]

    @classmethod
    def from_rows(cls, rows: Rows, metrics: Sequence[str], swept: str | None = None) -> Samples:
        """Create samples from columns of a table with a row per algorithm, swept value and seed."""
        numbers: dict[str, dict[str, dict[X, list[float]]]] = {metric: {} for metric in metrics}
        for row in rows:
            for metric in metrics:
                by_value = numbers[metric].setdefault(row["algorithm"], {})
                by_value.setdefault(None if swept is None else row[swept], []).append(float(row[metric]))
        return cls(numbers)

    @classmethod
    def from_seeds(cls, metrics: dict[str, dict[str, list[float]]]) -> Samples:
        """Create samples of an experiment without a swept variable, by metric and group."""
        return cls({metric: {name: {None: own} for name, own in groups.items()} for metric, groups in metrics.items()})

    @property
    def groups(self) -> list[str]:
        """The groups with at least one number."""
        return list(next(iter(self.numbers.values())))

    @property
    def values(self) -> list[X]:
        """The values of the swept variable."""
        first = next(iter(self.numbers.values()))
        return list(next(iter(first.values())))

    def seeds(self, metric: str, group: str, value: X = None) -> list[float]:
        """Return the number of every seed."""
        return self.numbers[metric][group][value]

    def mean(self, metric: str, group: str, value: X = None) -> Estimate:
        """Estimate the mean over seeds."""
        return mean(self.seeds(metric, group, value))

    def line(self, metric: str, group: str) -> list[Estimate]:
        """Estimate the mean at every value of the swept variable."""
        return [self.mean(metric, group, value) for value in self.values]

    def difference(self, metric: str, first: tuple[str, X], second: tuple[str, X]) -> Estimate:
        """Estimate the difference of two means, each named by its group and value."""
        return difference(self.seeds(metric, *first), self.seeds(metric, *second))
