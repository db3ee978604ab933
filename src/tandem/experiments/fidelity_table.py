"""How estimates of accuracy compare with what is measured under the policies that were learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tandem.experiments.claims import Table, write_csv
from tandem.experiments.plotting import label
from tandem.experiments.trial import TrialResult
from tandem.stats import mean

NUMBERS = ("rounds", "measured", "estimated", "correlation", "rmse", "bias")
NOTE = (
    "Estimated and measured accuracy are compared in every round of every device, under the best policy of each "
    "objective and the knee of each front."
)


def fidelity_table(groups: Iterable[tuple[str, str, Sequence[TrialResult]]], task: str) -> Table:
    """A row for each algorithm and what it learned from: means over seeds."""
    rows = []
    for algorithm, ground, results in groups:
        found = [result.fidelity for result in results if result.fidelity]
        means = (_mean([one[name] for one in found]) for name in ("measured", "estimated", "correlation", "rmse"))
        rows.append((label(algorithm), ground, *means, _mean([one["fleet_rounds"]["correlation"] for one in found])))
    headings = ("", "learned from", "measured", "estimated", "correlation", "RMSE", "correlation of round means")
    return Table(f"Accuracy by device and round, estimated and measured on {task}", headings, tuple(rows))


def write_fidelity(path: Path, groups: Iterable[tuple[str, str, Sequence[TrialResult]]]) -> None:
    """Write what the table is made of, and the same for every device."""
    rows: list[tuple[Any, ...]] = []
    for algorithm, ground, results in groups:
        for result in results:
            found = result.fidelity or {}
            parts = {"all": found, "round means": found.get("fleet_rounds", {}), **found.get("by_device", {})}
            seed = result.trial.seed
            rows += [(algorithm, ground, seed, of, *map(part.get, NUMBERS)) for of, part in parts.items()]
    write_csv(path, ("algorithm", "learned_from", "seed", "of", *NUMBERS), rows)


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return str(mean(known)) if known else "none"
