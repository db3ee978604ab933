"""Choosing a policy of a front: by preference, at the knee, or within limits, with the reason in one sentence.

Points are maximised (accuracy, -latency, -energy); limits, messages and reasons are in the user's units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.errors import InputError
from tandem.objectives import NUM_OBJECTIVES, OBJECTIVES, Objective, to_user_units
from tandem.pareto.points import (
    HostMask,
    HostPoints,
    Ranges,
    as_points,
    finite_rows,
    nondominated_indices,
    normalise,
)

TOLERANCE = 1e-9  # smaller differences of normalised objectives are rounding


@dataclass(frozen=True)
class Choice:
    """The policy chosen, and the reason."""

    index: int
    reason: str


def pick(
    points: ArrayLike,
    preference: ArrayLike | None = None,
    *,
    min_accuracy: float | None = None,
    max_latency_s: float | None = None,
    max_energy_j: float | None = None,
) -> Choice:
    """Choose the best policy for a preference, or the knee without one, among those within the limits."""
    rows = as_points(points)
    _require_points(rows)
    limits = _build_limits(min_accuracy, max_latency_s, max_energy_j)
    allowed = np.flatnonzero(_meets_limits(rows, limits))
    if len(allowed) == 0:
        raise InputError(_explain_unmet_limits(rows, limits))
    if preference is None:
        chosen = knee_point(rows[allowed])
        merit = "the knee, beyond which more of one objective costs much of the others"
    else:
        # The scale is that of the whole front, so that a limit does not change the meaning of a weight.
        chosen = best_for_preference(preference, rows[allowed], Ranges.from_points(rows[nondominated_indices(rows)]))
        shares = ", ".join(f"{weight:.3g}" for weight in _normalise_weights(preference))
        merit = f"the best for weights {shares} of accuracy, latency and energy"
    index = int(allowed[chosen])
    among = f"the {len(allowed)} of {len(rows)} policies within the limits" if limits else f"{len(rows)} policies"
    return Choice(index, f"Policy {index} has {_describe_point(rows[index])}: {merit}, among {among}.")


def knee_point(points: ArrayLike) -> int:
    """Return the index of the non-dominated point farthest beyond the plane through the best points of each objective.

    Distances are in normalised objectives. If those points span no plane that faces the ideal, the plane through the
    ends of the axes is used. If no point lies beyond it (a flat or a hollow front), there is no knee, and the most
    balanced point is taken: the one whose smallest objective is largest.
    """
    rows = as_points(points)
    _require_points(rows)
    candidates = nondominated_indices(rows)
    scaled = normalise(rows[candidates], Ranges.from_points(rows[candidates]))
    varied = np.ptp(scaled, axis=0) > 0
    if not varied.any():
        return int(candidates[0])
    scaled = scaled[:, varied]
    ends = scaled[np.argmax(scaled, axis=0)]
    distance = (scaled - ends[0]) @ _plane_normal(ends)
    farthest = np.max(distance)
    eligible = distance >= farthest - TOLERANCE if farthest > TOLERANCE else np.ones(len(scaled), bool)
    balance = np.where(eligible, np.round(scaled.min(axis=1) / TOLERANCE), -np.inf)
    return int(candidates[np.argmax(balance)])


def best_for_preference(preference: ArrayLike, points: ArrayLike, ranges: Ranges | None = None) -> int:
    """Return argmax over non-dominated z of w . z, with z normalised to ``ranges`` (by default those of the front).

    Ties, which zero weights cause, go to the largest sum of normalised objectives, then to the first.
    """
    weights = _normalise_weights(preference)
    rows = as_points(points)
    _require_points(rows)
    candidates = nondominated_indices(rows)
    scaled = normalise(rows[candidates], Ranges.from_points(rows[candidates]) if ranges is None else ranges)
    utility = np.round(scaled @ weights / TOLERANCE)
    return int(candidates[np.lexsort((-scaled.sum(axis=1), -utility))[0]])


def spread_subset(points: ArrayLike, size: int, include: Sequence[int] = ()) -> list[int]:
    """Choose at most ``size`` points that cover the front evenly, ``include`` among them; returns sorted indices.

    Farthest-point selection: the point that is farthest from all chosen ones, in normalised objectives, is added until
    there are enough. Points that are not finite are left out.
    """
    rows = as_points(points)
    _require_points(rows)
    usable = finite_rows(rows)
    scaled = np.where(usable[:, None], normalise(rows, Ranges.from_points(rows)), np.inf)
    chosen = list(dict.fromkeys(include)) or [int(np.argmax(usable))]
    while len(chosen) < min(size, int(usable.sum())):
        gaps = np.linalg.norm(scaled[:, None] - scaled[chosen][None], axis=2).min(axis=1)
        gaps[~usable] = -np.inf
        gaps[chosen] = -np.inf
        chosen.append(int(np.argmax(gaps)))
    return sorted(chosen)


class _Limit(NamedTuple):
    """A bound on one objective."""

    name: str  # of the argument
    number: int  # of the objective
    bound: float  # in the user's units

    @property
    def objective(self) -> Objective:
        return OBJECTIVES[self.number]

    @property
    def is_minimum(self) -> bool:
        return self.objective.sign > 0

    def shortfall(self, points: HostPoints) -> NDArray[np.float64]:
        """Return how far each point is from meeting the limit; positive if it does not."""
        return np.asarray(self.objective.sign * self.bound - points[:, self.number])

    def best(self, points: HostPoints) -> float:
        """Return the best value of the objective, in the user's units."""
        return self.objective.sign * float(np.max(points[:, self.number]))

    def format(self, value: float, rounding: str | None = None) -> str:
        """Write a value with its unit."""
        context = Context(prec=4, rounding=rounding) if rounding else Context(prec=12)
        unit = f" {self.objective.unit}" if self.objective.unit else ""
        return f"{context.create_decimal(Decimal(repr(value))).normalize(context):f}{unit}"

    def describe(self) -> str:
        """Write the limit in words."""
        return f"{self.objective.label} at {'least' if self.is_minimum else 'most'} {self.format(self.bound)}"


def _build_limits(min_accuracy: float | None, max_latency_s: float | None, max_energy_j: float | None) -> list[_Limit]:
    bounds = {"min_accuracy": min_accuracy, "max_latency_s": max_latency_s, "max_energy_j": max_energy_j}
    limits = [
        _Limit(name, index, float(bound)) for index, (name, bound) in enumerate(bounds.items()) if bound is not None
    ]
    for limit in limits:
        if np.isnan(limit.bound):
            raise InputError(f"{limit.name} is not a number; give one, or leave the limit out.")
    return limits


def _meets_limits(points: HostPoints, limits: Sequence[_Limit]) -> HostMask:
    meets = finite_rows(points)
    for limit in limits:
        meets = meets & (limit.shortfall(points) <= 0)
    return meets


def _explain_unmet_limits(points: HostPoints, limits: Sequence[_Limit]) -> str:
    """Name the limit to relax when no policy meets all, and the best value it could have.

    A limit that fails even alone must be relaxed, the one that is farthest off first. If limits fail only together, as
    many as possible are kept, and of those that could be relaxed the one that needs the smallest change is named.
    """
    rows = points[finite_rows(points)]
    span = np.ptp(rows, axis=0)
    scale = np.where(span > 0, span, 1.0)

    def missing(limit: _Limit, kept: Sequence[_Limit]) -> float:
        return float(np.min(limit.shortfall(rows[_meets_limits(rows, kept)])) / scale[limit.number])

    unattainable = [limit for limit in limits if missing(limit, ()) > 0]
    if unattainable:
        return _describe_unmet_limit(rows, max(unattainable, key=lambda limit: missing(limit, ())), ())
    for size in range(len(limits) - 1, 0, -1):
        options = [
            (limit, kept)
            for limit in limits
            for kept in combinations([other for other in limits if other is not limit], size)
            if _meets_limits(rows, kept).any()
        ]
        if options:
            return _describe_unmet_limit(rows, *min(options, key=lambda option: missing(*option)))
    raise AssertionError("every limit can be met alone, so at least one can be kept")


def _describe_unmet_limit(points: HostPoints, limit: _Limit, kept: Sequence[_Limit]) -> str:
    # Rounded to the side on which the limit is met, so that at least one policy meets the value in the message.
    rounding = ROUND_FLOOR if limit.is_minimum else ROUND_CEILING
    attainable = limit.format(limit.best(points[_meets_limits(points, kept)]), rounding)
    others = " and ".join(other.describe() for other in kept)
    return (
        f"No policy has {limit.describe()}{' with ' + others if others else ''}; the best attainable is "
        f"{attainable}: set {limit.name} to that or {'less' if limit.is_minimum else 'more'}."
    )


def _plane_normal(ends: HostPoints) -> NDArray[np.float64]:
    """Return the unit normal of the plane through the ends, facing the ideal."""
    ones = np.ones(len(ends))
    normal: NDArray[np.floating] = ones
    if np.linalg.matrix_rank(ends, tol=TOLERANCE**0.5) == len(ends):
        through = np.linalg.solve(ends, ones)
        if (through > 0).all():
            normal = through
    return np.asarray(normal / np.linalg.norm(normal))


def _normalise_weights(preference: ArrayLike) -> NDArray[np.float64]:
    weights = np.asarray(preference, np.float64)
    usable = (
        weights.shape == (NUM_OBJECTIVES,) and np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0
    )
    if not usable:
        raise InputError(
            f"preference is {preference!r}; give three weights for accuracy, latency and energy, none negative."
        )
    return np.asarray(weights / weights.sum())


def _require_points(points: HostPoints) -> None:
    if not finite_rows(points).any():
        raise InputError("points: there is no policy to choose from; give at least one point with finite objectives.")


def _describe_point(point: NDArray[np.float64]) -> str:
    accuracy, latency_s, energy_j = to_user_units(point)
    return f"accuracy {accuracy:.4g}, latency {latency_s:.4g} s and energy {energy_j:.4g} J"
