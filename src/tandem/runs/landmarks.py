"""The policies of a front that a user asks for first: the best of each objective, and the knee."""

from __future__ import annotations

import numpy as np

from tandem.feel.objectives import IN_USERS_UNITS
from tandem.learn.delivery import within_tolerance
from tandem.pareto import best_for, knee_point
from tandem.runs.front import Front, Values

EXTREMES = ("highest accuracy", "lowest latency", "lowest energy")
KNEE = "knee"


def landmarks(front: Front, tolerance: float) -> dict[str, int]:
    """The index of each, by name; one policy may be several. Empty for a front without policies."""
    if not front.policies:
        return {}
    points = choosable(front, tolerance)
    best = {name: best_for(weights, points) for name, weights in zip(EXTREMES, np.eye(3), strict=True)}
    return {**best, KNEE: knee_point(points)}


def choosable(front: Front, tolerance: float) -> Values:
    """[policies, 3] measured objectives, maximised; NaN for policies in violation too often, unless all of them are."""
    safe = within_tolerance(front.violation_rate, tolerance)
    points = front.objectives * IN_USERS_UNITS
    return np.where(safe[:, None], points, np.nan) if safe.any() else points
