"""What an experiment has to say: statements of the paper beside what was found, tables, figures, data."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

from tandem.experiments.plotting import COMPARED, label
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Trial, TrialResult
from tandem.io.atomic import atomic_write
from tandem.stats import Estimate

Verdict = Literal["agrees", "disagrees", "open"]
Results = dict[Trial, TrialResult]
Algorithms = Sequence[str]


@dataclass(frozen=True)
class Claim:
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
class ReportSection:
    """An experiment as it stands in the report."""

    name: str
    title: str
    about: str
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...] = ()
    figures: tuple[str, ...] = ()  # names of files, without their ending


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper: which cells it needs, and what it makes of them."""

    name: str
    title: str
    trials: Callable[[Scale, Algorithms], list[Trial]]
    section: Callable[[Scale, Algorithms, Results, Path], ReportSection] = field(repr=False)
    on_task: Literal["never", "possible", "always"] = "never"  # whether accuracy is measured on a task
    algorithms: Algorithms = COMPARED  # where nobody says which


def check_claim(stated: str, found: str, *margins: Estimate) -> Claim:
    """Agrees if every margin is surely positive, disagrees if any is surely negative; else seeds leave it open."""
    if not margins:
        return Claim(stated, f"{found} (not compared: an algorithm is left out)", "open")
    if all(margin.low > 0 for margin in margins):
        return Claim(stated, found, "agrees")
    return Claim(stated, found, "disagrees" if any(margin.high < 0 for margin in margins) else "open")


def check_close(stated: str, number: Estimate, expected: float, within: float) -> Claim:
    """Whether a number is what the paper has, give or take a share of it."""
    inside = abs(number.value / expected - 1) <= within
    return Claim(stated, str(number), "agrees" if inside else "disagrees")


def write_csv(path: Path, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table of data, all or nothing."""
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(headings)
        writer.writerows(rows)


def write_figure(figure: Figure, out: Path, name: str) -> str:
    """Write a figure as PNG and as SVG; returns its name."""
    for ending in ("png", "svg"):
        # Without a date, and with names that are not drawn by lot, the same data make the same file.
        steady = matplotlib.rc_context({"svg.hashsalt": "tandem"})
        with atomic_write(out / f"{name}.{ending}") as temporary, steady:
            figure.savefig(temporary, dpi=130, metadata={"Date": None} if ending == "svg" else None)
    return name


def describe_by_value(estimates: Mapping[str, Estimate]) -> str:
    """Numbers by algorithm."""
    return ", ".join(f"{label(name)} {estimate}" for name, estimate in estimates.items())
