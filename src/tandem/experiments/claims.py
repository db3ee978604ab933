"""What an experiment has to say: statements of the paper beside what was found, tables, figures, data."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

from tandem.experiments.plotting import COMPARED, PAPERS, label
from tandem.experiments.scale import Scale
from tandem.experiments.sweep_results import SPARSITY, Swept
from tandem.experiments.trial import Cell, Result
from tandem.io.atomic import written_whole
from tandem.stats import Estimate

Verdict = Literal["agrees", "disagrees", "open"]
Results = dict[Cell, Result]
Algorithms = Sequence[str]


@dataclass(frozen=True)
class Statement:
    """What was stated, by the paper or by us, and what the sweep says to it."""

    stated: str
    found: str
    verdict: Verdict


@dataclass(frozen=True)
class Table:
    """Rows under headings."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """An experiment as it stands in the report."""

    name: str
    title: str
    about: str
    statements: tuple[Statement, ...]
    tables: tuple[Table, ...] = ()
    figures: tuple[str, ...] = ()  # names of files, without their ending


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper: which cells it needs, and what it makes of them."""

    name: str
    title: str
    cells: Callable[[Scale, Algorithms], list[Cell]]
    section: Callable[[Scale, Algorithms, Results, Path], Section] = field(repr=False)
    measured: Literal["never", "also", "only"] = "never"  # on a task
    algorithms: Algorithms = COMPARED  # where nobody says which


def judged(stated: str, found: str, *margins: Estimate) -> Statement:
    """Agrees if every margin is surely positive, disagrees if any is surely negative; else seeds leave it open."""
    if not margins:
        return Statement(stated, f"{found} (not compared: an algorithm is left out)", "open")
    if all(margin.low > 0 for margin in margins):
        return Statement(stated, found, "agrees")
    return Statement(stated, found, "disagrees" if any(margin.high < 0 for margin in margins) else "open")


def near(stated: str, number: Estimate, expected: float, within: float) -> Statement:
    """Whether a number is what the paper has, give or take a share of it."""
    inside = abs(number.value / expected - 1) <= within
    return Statement(stated, str(number), "agrees" if inside else "disagrees")


def write_csv(path: Path, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table of data, all or nothing."""
    with written_whole(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(headings)
        writer.writerows(rows)


def write_figure(figure: Figure, out: Path, name: str) -> str:
    """Write a figure as PNG and as SVG; returns its name."""
    for ending in ("png", "svg"):
        # Without a date, and with names that are not drawn by lot, the same data make the same file.
        steady = matplotlib.rc_context({"svg.hashsalt": "tandem"})
        with written_whole(out / f"{name}.{ending}") as temporary, steady:
            figure.savefig(temporary, dpi=130, metadata={"Date": None} if ending == "svg" else None)
    return name


def others(swept: Swept, algorithm: str, everyone: bool = False) -> list[str]:
    """Whom the paper compares an algorithm with, or everyone there is."""
    return [name for name in swept.algorithms if name != algorithm and (everyone or name in PAPERS)]


def by_value(estimates: Mapping[str, Estimate]) -> str:
    """Numbers by algorithm."""
    return ", ".join(f"{label(name)} {estimate}" for name, estimate in estimates.items())


def exceeds(swept: Swept, measure: str, first: str, second: str, values: Sequence[Any] | None = None) -> str:
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


def lead(swept: Swept, measure: str, algorithm: str, stated: str, everyone: bool = False) -> Statement:
    """Whether an algorithm is the best at every value; what is said is how far it is from the best of the others."""
    rivals = others(swept, algorithm, everyone)
    if algorithm not in swept.algorithms or not rivals:
        return judged(stated, "")
    found, margins = [], []
    for value in swept.values:
        ahead = {rival: swept.ahead(measure, algorithm, rival, [value])[0] for rival in rivals}
        nearest = min(rivals, key=lambda rival: ahead[rival].value)
        found.append(f"at {value:g}: {ahead[nearest]} against {label(nearest)}")
        margins += list(ahead.values())
    return judged(stated, f"{label(algorithm)}'s lead over the best of the others: " + "; ".join(found), *margins)
