"""Which policy of a front to use: by preference, at the knee, or within limits, with the reason in one sentence.

Points are as everywhere inside (accuracy, -latency, -energy); limits, messages and reasons are in the user's units.
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
from tandem.objectives import NUM_OBJECTIVES
from tandem.pareto.dominance import nondominated_indices
from tandem.pareto.points import Ranges, as_points, finite_rows, normalise, ranges_of
from tandem.pareto.types import HostMask, HostPoints

TOLERANCE = 1e-9  # of normalised objectives: smaller differences are rounding


@dataclass(frozen=True)
class Choice:
    """A policy and why it."""

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
    """The best policy for a preference, or without one the knee, among those within the limits."""
    rows = as_points(points)
    _require_some(rows)
    limits = _limits(min_accuracy, max_latency_s, max_energy_j)
    allowed = np.flatnonzero(_meets(rows, limits))
    if len(allowed) == 0:
        raise InputError(_why_none(rows, limits))
    if preference is None:
        chosen, merit = (
            knee_point(rows[allowed]),
            "the knee, beyond which more of one objective costs much of the others",
        )
    else:
        # The scale is that of the whole front, so that a limit does not change what a weight means.
        chosen = best_for_preference(preference, rows[allowed], ranges_of(rows[nondominated_indices(rows)]))
        shares = ", ".join(f"{weight:.3g}" for weight in _weights(preference))
        merit = f"the best for weights {shares} of accuracy, latency and energy"
    index = int(allowed[chosen])
    among = f"the {len(allowed)} of {len(rows)} policies within the limits" if limits else f"{len(rows)} policies"
    return Choice(index, f"Policy {index} has {_in_users_units(rows[index])}: {merit}, among {among}.")


def knee_point(points: ArrayLike) -> int:
    """The index of the non-dominated point farthest beyond the plane through the best points of each objective.

    Distances are in normalised objectives. Where those points span no plane that faces the ideal, the plane is that
    through the ends of the axes; where no point lies beyond it (a flat or a hollow front), there is no knee, and the
    most balanced point is taken: the largest smallest objective.
    """
    rows = as_points(points)
    _require_some(rows)
    candidates = nondominated_indices(rows)
    scaled = normalise(rows[candidates], ranges_of(rows[candidates]))
    varied = np.ptp(scaled, axis=0) > 0
    if not varied.any():
        return int(candidates[0])
    scaled = scaled[:, varied]
    ends = scaled[np.argmax(scaled, axis=0)]
    beyond = (scaled - ends[0]) @ _normal(ends)
    at_most = np.max(beyond)
    eligible = beyond >= at_most - TOLERANCE if at_most > TOLERANCE else np.ones(len(scaled), bool)
    balance = np.where(eligible, np.round(scaled.min(axis=1) / TOLERANCE), -np.inf)
    return int(candidates[np.argmax(balance)])


def best_for_preference(preference: ArrayLike, points: ArrayLike, ranges: Ranges | None = None) -> int:
    """argmax over non-dominated z of w . z, with z normalised to ``ranges`` (of the front itself, if not given).

    Ties, as weights of zero leave them, go to the largest sum of normalised objectives, then to the first.
    """
    weights = _weights(preference)
    rows = as_points(points)
    _require_some(rows)
    candidates = nondominated_indices(rows)
    scaled = normalise(rows[candidates], ranges_of(rows[candidates]) if ranges is None else ranges)
    utility = np.round(scaled @ weights / TOLERANCE)
    return int(candidates[np.lexsort((-scaled.sum(axis=1), -utility))[0]])


def within_limits(
    points: ArrayLike,
    min_accuracy: float | None = None,
    max_latency_s: float | None = None,
    max_energy_j: float | None = None,
) -> HostMask:
    """The mask of the points that meet every limit given; a limit met exactly is met."""
    return _meets(as_points(points), _limits(min_accuracy, max_latency_s, max_energy_j))


class _Limit(NamedTuple):
    """A bound on one objective."""

    name: str
    objective: int
    bound: float  # in the user's units
    sign: float  # from the user's units to the maximised ones
    wording: str
    unit: str

    def shortfall(self, points: HostPoints) -> NDArray[np.float64]:
        """How far each point is from meeting the limit; positive if it does not."""
        return np.asarray(self.sign * self.bound - points[:, self.objective])

    def written(self, value: float, rounding: str | None = None) -> str:
        """A value with its unit."""
        context = Context(prec=4, rounding=rounding) if rounding else Context(prec=12)
        return f"{context.create_decimal(Decimal(repr(value))).normalize(context):f}{self.unit}"


def _limits(min_accuracy: float | None, max_latency_s: float | None, max_energy_j: float | None) -> list[_Limit]:
    limits = []
    if min_accuracy is not None:
        limits.append(_Limit("min_accuracy", 0, float(min_accuracy), 1.0, "accuracy at least", ""))
    if max_latency_s is not None:
        limits.append(_Limit("max_latency_s", 1, float(max_latency_s), -1.0, "latency at most", " s"))
    if max_energy_j is not None:
        limits.append(_Limit("max_energy_j", 2, float(max_energy_j), -1.0, "energy at most", " J"))
    for limit in limits:
        if np.isnan(limit.bound):
            raise InputError(f"{limit.name} is not a number; give one, or leave the limit out.")
    return limits


def _meets(points: HostPoints, limits: Sequence[_Limit]) -> HostMask:
    meets = finite_rows(points)
    for limit in limits:
        meets = meets & (limit.shortfall(points) <= 0)
    return meets


def _why_none(points: HostPoints, limits: Sequence[_Limit]) -> str:
    """The sentence for limits that no policy meets: the limit in the way, and the best value it could have.

    A limit that fails even alone is in the way, the one farthest off first. Limits that fail only together leave a
    choice: as many as possible are held, and of those that then could give way the one that gives way least is named.
    """
    rows = points[finite_rows(points)]
    span = np.ptp(rows, axis=0)
    scale = np.where(span > 0, span, 1.0)

    def missing(limit: _Limit, held: Sequence[_Limit]) -> float:
        return float(np.min(limit.shortfall(rows[_meets(rows, held)])) / scale[limit.objective])

    alone = [limit for limit in limits if missing(limit, ()) > 0]
    if alone:
        return _sentence(rows, max(alone, key=lambda limit: missing(limit, ())), ())
    for size in range(len(limits) - 1, 0, -1):
        ways = [
            (limit, held)
            for limit in limits
            for held in combinations([other for other in limits if other is not limit], size)
            if _meets(rows, held).any()
        ]
        if ways:
            return _sentence(rows, *min(ways, key=lambda way: missing(*way)))
    raise AssertionError("limits that each can be met alone are held at least alone")


def _sentence(points: HostPoints, limit: _Limit, held: Sequence[_Limit]) -> str:
    best = limit.sign * float(np.max(points[_meets(points, held), limit.objective]))
    # Rounded to the side on which the limit is met: who writes what the message says gets a policy.
    attainable = limit.written(best, ROUND_FLOOR if limit.sign > 0 else ROUND_CEILING)
    given = " and ".join(f"{other.wording} {other.written(other.bound)}" for other in held)
    return (
        f"No policy has {limit.wording} {limit.written(limit.bound)}{' with ' + given if given else ''}; "
        f"the best attainable is {attainable}: set {limit.name} to that or {'less' if limit.sign > 0 else 'more'}."
    )


def _normal(ends: HostPoints) -> NDArray[np.float64]:
    """The unit normal of the plane through the ends, facing the ideal."""
    ones = np.ones(len(ends))
    normal: NDArray[np.floating] = ones
    if np.linalg.matrix_rank(ends, tol=TOLERANCE**0.5) == len(ends):
        through = np.linalg.solve(ends, ones)
        if (through > 0).all():
            normal = through
    return np.asarray(normal / np.linalg.norm(normal))


def _weights(preference: ArrayLike) -> NDArray[np.float64]:
    weights = np.asarray(preference, np.float64)
    usable = (
        weights.shape == (NUM_OBJECTIVES,) and np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0
    )
    if not usable:
        raise InputError(
            f"preference is {preference!r}; give three weights for accuracy, latency and energy, none negative."
        )
    return np.asarray(weights / weights.sum())


def _require_some(points: HostPoints) -> None:
    if not finite_rows(points).any():
        raise InputError("There is no policy to choose from; give at least one point with finite objectives.")


def _in_users_units(point: NDArray[np.float64]) -> str:
    accuracy, minus_latency_s, minus_energy_j = (float(value) for value in point)
    return f"accuracy {accuracy:.4g}, latency {-minus_latency_s:.4g} s and energy {-minus_energy_j:.4g} J"
