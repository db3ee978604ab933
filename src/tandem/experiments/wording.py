"""Found numbers in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.experiments.algorithms import PAPERS, label
from tandem.experiments.estimates import Estimate
from tandem.experiments.section import Statement, judged
from tandem.experiments.swept import SPARSITY, Swept


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
