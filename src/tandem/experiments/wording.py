"""Found numbers in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.experiments.algorithms import PAPERS, label
from tandem.experiments.estimates import Estimate
from tandem.experiments.section import Statement, judged
from tandem.experiments.swept import Swept


def others(swept: Swept, algorithm: str, everyone: bool = False) -> list[str]:
    """Whom the paper compares an algorithm with, or everyone there is."""
    return [name for name in swept.algorithms if name != algorithm and (everyone or name in PAPERS)]


def by_value(estimates: Mapping[str, Estimate]) -> str:
    """Numbers by algorithm."""
    return ", ".join(f"{label(name)} {estimate}" for name, estimate in estimates.items())


def behind(swept: Swept, measure: str, first: str, second: str, values: Sequence[Any] | None = None) -> str:
    """By how much the second is behind the first, at each value."""
    chosen = swept.values if values is None else values
    margins = swept.ahead(measure, first, second, values)
    said = ", ".join(f"{margin.value:+.3g} at {value:g}" for margin, value in zip(margins, chosen, strict=False))
    return f"{label(second)} is behind {label(first)} in {measure} by {said}" if said else "not compared"


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
