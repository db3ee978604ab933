"""The three objectives: their names, their units, and whether higher or lower is better.

The code maximises all of them (accuracy, -latency, -energy). User interfaces show accuracy, latency in seconds and
energy in joules. ``to_user_units`` and ``to_maximised`` are the only places where signs change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Objective:
    """One of the objectives of scheduling."""

    key: str  # in documents and tables
    label: str  # as a user names it
    unit: str  # empty for a share
    sign: float  # 1 if higher is better, -1 if lower is better

    @property
    def axis_label(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


OBJECTIVES = (
    Objective("accuracy", "accuracy", "", 1.0),
    Objective("latency_s", "latency", "s", -1.0),
    Objective("energy_j", "energy", "J", -1.0),
)
NUM_OBJECTIVES = len(OBJECTIVES)
OBJECTIVE_KEYS = tuple(objective.key for objective in OBJECTIVES)
OBJECTIVE_LABELS = tuple(objective.label for objective in OBJECTIVES)
AXIS_LABELS = tuple(objective.axis_label for objective in OBJECTIVES)

_SIGNS = np.array([objective.sign for objective in OBJECTIVES])


def to_user_units(maximised: ArrayLike) -> NDArray[np.float64]:
    """Convert [..., 3] maximised values into accuracy, latency (s) and energy (J)."""
    return np.asarray(np.asarray(maximised, np.float64) * _SIGNS)


def to_maximised(user: ArrayLike) -> NDArray[np.float64]:
    """Convert [..., 3] accuracy, latency (s) and energy (J) into values to maximise."""
    return np.asarray(np.asarray(user, np.float64) * _SIGNS)
