"""Claims as data: a statement, the metric and the comparison that check it, and the paper's value.

A comparison computes margins: numbers with a 95 % interval that are positive where results support the claim. A claim
agrees with the results if every margin's interval is above zero, disagrees if one is below zero, and is open
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, Protocol

from tandem.experiments.plotting import OURS, label
from tandem.experiments.tables import Samples, X
from tandem.stats import Estimate, mean, mean_relative_gain, relative_gain

Verdict = Literal["agrees", "disagrees", "open"]
VERDICTS: tuple[Verdict, ...] = ("agrees", "disagrees", "open")
EVERY: tuple[str, ...] = ()  # as groups of a comparison: all that there are
QUALITATIVE, GOAL = "qualitative", "our goal"  # in place of the paper's value


@dataclass(frozen=True)
class Finding:
    """The result of checking a claim: numbers by label, and the verdict."""

    numbers: tuple[tuple[str, Estimate], ...]
    verdict: Verdict
    note: str = ""


class Comparison(Protocol):
    """A comparison of groups that checks a claim about a metric."""

    def check(self, metric: str, samples: Samples) -> Finding:
        """Compare the metric of some groups."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or a goal of ours, with the metric and the comparison that check it."""

    id: str
    text: str
    metric: str
    comparison: Comparison
    paper: str = QUALITATIVE  # the paper's value
    unit: str = ""  # of the numbers
    censored: str | None = None  # a metric of 0 or 1: the claim is open if it is 1 in most trainings

    @property
    def is_goal(self) -> bool:
        """Whether the claim is a goal of ours, not the paper's."""
        return self.paper.startswith(GOAL)

    def check(self, samples: Samples) -> CheckedClaim:
        """Check the claim against results."""
        if self.censored is not None:
            flags = [flag for group in samples.groups for flag in samples.seeds(self.censored, group)]
            if 2 * sum(flags) > len(flags):
                note = f"{self.censored.replace('_', ' ')} in {sum(flags):.0f} of {len(flags)} trainings"
                return CheckedClaim(self, Finding((), "open", note))
        return CheckedClaim(self, self.comparison.check(self.metric, samples))


@dataclass(frozen=True)
class CheckedClaim:
    """A claim and the result of checking it."""

    claim: Claim
    finding: Finding

    @property
    def verdict(self) -> Verdict:
        """The verdict: whether results agree with the claim."""
        return self.finding.verdict

    @property
    def numbers(self) -> str:
        """The numbers with their intervals, on one line."""
        unit = f" {self.claim.unit}" if self.claim.unit else ""
        parts = [f"{name} {estimate}{unit}".strip() for name, estimate in self.finding.numbers]
        return "; ".join([*parts, *([self.finding.note] if self.finding.note else [])])


def check_claims(claims: Iterable[Claim], samples: Samples) -> tuple[CheckedClaim, ...]:
    """Check claims against results. Goals are left out where our algorithm is not compared."""
    return tuple(one.check(samples) for one in claims if not one.is_goal or OURS in samples.groups)


def decide(margins: Sequence[Estimate]) -> Verdict:
    """Return the verdict: agrees if all intervals are positive, disagrees if one is negative, otherwise open."""
    if margins and all(margin.low > 0 for margin in margins):
        return "agrees"
    return "disagrees" if any(margin.high < 0 for margin in margins) else "open"


def combine(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on several claims together, by the same rule."""
    if verdicts and all(verdict == "agrees" for verdict in verdicts):
        return "agrees"
    return "disagrees" if "disagrees" in verdicts else "open"


def _finding(numbers: Sequence[tuple[str, Estimate]], margins: Sequence[Estimate]) -> Finding:
    note = "" if margins else "not compared: an algorithm is missing"
    return Finding(tuple(numbers), decide(margins), note)


def _where(value: X) -> str:
    if value is None:
        return ""
    return f" with {value}" if isinstance(value, str) else f" at {value:g}"


def _chosen(groups: Sequence[str], samples: Samples) -> list[str]:
    return [name for name in samples.groups if name in groups or groups == EVERY]


@dataclass(frozen=True)
class Ordering:
    """A check that some groups have a higher (or lower) mean than others at every value of the sweep.

    The numbers are margins, the smallest over the sweep for each pair of groups.
    """

    first: tuple[str, ...]
    second: tuple[str, ...] = EVERY
    lower: bool = False
    from_value: float | None = None  # only from this value of the sweep on; the last value if none is as large

    def check(self, metric: str, samples: Samples) -> Finding:
        """Compare every pair of groups at every value."""
        values = self._values(samples)
        first, second = _chosen(self.first, samples), _chosen(self.second, samples)
        numbers: list[tuple[str, Estimate]] = []
        margins: list[Estimate] = []
        for one, other in ((one, other) for one in first for other in second if one != other):
            high, low = (other, one) if self.lower else (one, other)
            own = [samples.difference(metric, (high, value), (low, value)) for value in values]
            smallest = min(range(len(own)), key=lambda index: own[index].value)
            numbers.append((f"{label(one)} vs {label(other)}{_where(values[smallest])}:", own[smallest]))
            margins += own
        if len(first) == 1 and margins and samples.values == [None]:
            numbers.insert(0, (f"{label(first[0])}:", samples.mean(metric, first[0])))
        return _finding(numbers, margins)

    def _values(self, samples: Samples) -> list[X]:
        if self.from_value is None:
            return samples.values
        numbers = [x for x in samples.values if isinstance(x, (int, float)) and x >= self.from_value]
        return [*numbers] or samples.values[-1:]


@dataclass(frozen=True)
class Trend:
    """A check that the mean rises (or falls) from the first value of the sweep to the last, for every group."""

    groups: tuple[str, ...] = EVERY
    falls: bool = False

    def check(self, metric: str, samples: Samples) -> Finding:
        """Compare the last value with the first."""
        first, last = samples.values[0], samples.values[-1]
        names = _chosen(self.groups, samples)
        changes = {name: samples.difference(metric, (name, last), (name, first)) for name in names}
        numbers = [(f"{label(name)}:", change) for name, change in changes.items()]
        if len(names) == 1:
            ends = [(f"at {value:g}:", samples.mean(metric, names[0], value)) for value in (first, last)]
            numbers = [*ends, ("change:", changes[names[0]])]
        return _finding(numbers, [change.scaled(-1.0 if self.falls else 1.0) for change in changes.values()])


@dataclass(frozen=True)
class Hump:
    """A check that the mean first rises and then falls over the sweep, for every group."""

    groups: tuple[str, ...]

    def check(self, metric: str, samples: Samples) -> Finding:
        """Compare the highest value with the first and with the last."""
        numbers = []
        for name in _chosen(self.groups, samples):
            line = samples.line(metric, name)
            top = samples.values[max(range(len(line)), key=lambda index: line[index].value)]
            for what, end in (("rise", samples.values[0]), ("fall", samples.values[-1])):
                numbers.append((f"{label(name)} {what}:", samples.difference(metric, (name, top), (name, end))))
        return _finding(numbers, [margin for _, margin in numbers])


@dataclass(frozen=True)
class Near:
    """A check that the mean of a group is the expected number, within a relative tolerance."""

    group: str
    expected: float
    tolerance: float

    def check(self, metric: str, samples: Samples) -> Finding:
        """Compare the mean with the expected number."""
        if self.group not in samples.groups:
            return _finding([], [])
        found = samples.mean(metric, self.group)
        return Finding((("", found),), _near(found.value, self.expected, self.tolerance))


@dataclass(frozen=True)
class MeanGain:
    """A check of the relative gain of one group over another, averaged over the sweep. Numbers are in percent."""

    first: str
    second: str
    expected: float
    tolerance: float | None = None  # relative; None means at least the expected gain

    def check(self, metric: str, samples: Samples) -> Finding:
        """Compare the mean gain with the expected one."""
        if not {self.first, self.second} <= set(samples.groups):
            return _finding([], [])
        means = ([samples.seeds(metric, name, x) for x in samples.values] for name in (self.first, self.second))
        gain = mean_relative_gain(*means)
        numbers = (("", gain.scaled(100)),)
        if self.tolerance is not None:
            return Finding(numbers, _near(gain.value, self.expected, self.tolerance))
        return _finding(numbers, [gain.shifted(-self.expected)])


@dataclass(frozen=True)
class AtLeast:
    """A check that the mean of a group is at least a number. A seed without a number (NaN) contradicts the claim."""

    group: str
    least: float

    def check(self, metric: str, samples: Samples) -> Finding:
        """Compare the mean with the number."""
        if self.group not in samples.numbers[metric]:
            return _finding([], [])
        seeds = samples.seeds(metric, self.group)
        known = [number for number in seeds if not math.isnan(number)]
        note = f"{len(known)} of {len(seeds)} seeds"
        numbers = (("", mean(known)),) if known else ()
        if len(known) < len(seeds):
            return Finding(numbers, "disagrees", note)
        return Finding(numbers, decide([mean(known).shifted(-self.least)]), note)


@dataclass(frozen=True)
class GapBelow:
    """A check that all groups are less than a limit below a reference group. Numbers are in percent."""

    reference: str
    limit: float

    def check(self, metric: str, samples: Samples) -> Finding:
        """Compare the relative gap of every group with the limit."""
        others = [name for name in samples.groups if name != self.reference]
        reference = samples.seeds(metric, self.reference)
        gaps = {name: relative_gain(samples.seeds(metric, name), reference).scaled(-100) for name in others}
        margins = [gap.scaled(-1).shifted(100 * self.limit) for gap in gaps.values()]
        return _finding([(f"gap of {name}:", gap) for name, gap in gaps.items()], margins)


@dataclass(frozen=True)
class SpreadBelow:
    """A check that all groups but one are within a limit of each other. The number is the largest gap in percent."""

    excluded: str
    limit: float

    def check(self, metric: str, samples: Samples) -> Finding:
        """Compare the relative gap of every pair of groups with the limit."""
        others = [name for name in samples.groups if name != self.excluded]
        gaps = {
            (one, other): relative_gain(samples.seeds(metric, one), samples.seeds(metric, other)).scaled(100)
            for one, other in permutations(others, 2)
        }
        largest = max(gaps, key=lambda pair: gaps[pair].value, default=None)
        numbers = [] if largest is None else [(f"gap of {largest[1]} to {largest[0]}:", gaps[largest])]
        return _finding(numbers, [gap.scaled(-1).shifted(100 * self.limit) for gap in gaps.values()])


def _near(value: float, expected: float, tolerance: float) -> Verdict:
    return "agrees" if abs(value / expected - 1) <= tolerance else "disagrees"
