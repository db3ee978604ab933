"""The front of a run: policies with their objectives in the user's units, and the origin of each policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.feel.constraints import CONSTRAINTS
from tandem.feel.system import System
from tandem.io.tables import write_csv
from tandem.learn.validation import within_tolerance
from tandem.objectives import OBJECTIVE_KEYS, OBJECTIVE_LABELS, to_maximised, to_user_units
from tandem.pareto import best_for_preference, cardinality, hypervolume, knee_point, sparsity, spread_subset
from tandem.policy.rollout import EpisodeMeans
from tandem.runs.simulation import discarded_share, half_width

Values = NDArray[np.float64]


@dataclass(frozen=True)
class PolicyRecord:
    """One policy of a front, as measured over some seeds."""

    index: int
    objectives: tuple[float, float, float]  # accuracy, latency (s), energy (J)
    half_width: tuple[float | None, float | None, float | None]  # of their 95 % confidence intervals
    rewards: tuple[float, float, float]  # maximised, a round in violation counting as its penalty
    violation_rate: float  # share of rounds that violated any constraint
    violation_rates: tuple[float, ...]  # by constraint
    discarded_share: float | None  # of the samples made; None in a front.json that was written without it
    preference: tuple[float, float, float]  # accuracy, latency, energy
    stage: str  # in which it was trained
    improved: str | None  # the objective it was trained to improve; None if it follows its preference
    network: int  # index of its network among the stored ones

    def document(self) -> dict[str, Any]:
        """Return the record as a JSON document."""
        return {
            "index": self.index,
            "objectives": dict(zip(OBJECTIVE_KEYS, self.objectives, strict=True)),
            "objectives_half_width_95": dict(zip(OBJECTIVE_KEYS, self.half_width, strict=True)),
            "reward": list(self.rewards),
            "violation_rate": {
                "all": self.violation_rate,
                **dict(zip(CONSTRAINTS, self.violation_rates, strict=True)),
            },
            "discarded_share": self.discarded_share,
            "preference": dict(zip(OBJECTIVE_LABELS, self.preference, strict=True)),
            "stage": self.stage,
            "improved": self.improved,
            "network": self.network,
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> PolicyRecord:
        """Read a record from a JSON document. Raises KeyError, TypeError or ValueError if it is not valid."""
        rates, discarded = document["violation_rate"], document.get("discarded_share")
        return cls(
            index=int(document["index"]),
            objectives=_three(document["objectives"][name] for name in OBJECTIVE_KEYS),
            half_width=_half_widths(document["objectives_half_width_95"]),
            rewards=_three(document["reward"]),
            violation_rate=float(rates["all"]),
            violation_rates=tuple(float(rates[name]) for name in CONSTRAINTS),
            discarded_share=None if discarded is None else float(discarded),
            preference=_three(document["preference"][name] for name in OBJECTIVE_LABELS),
            stage=str(document["stage"]),
            improved=document["improved"],
            network=int(document["network"]),
        )


@dataclass(frozen=True)
class Front:
    """The policies of a front, and what its quality is measured by.

    Hypervolume, sparsity and cardinality count only the policies whose measured violation rate is within the tolerance.
    """

    policies: tuple[PolicyRecord, ...]
    reference: tuple[float, float, float]  # accuracy, latency (s), energy (J)
    tolerance: float  # largest share of rounds in violation of a policy that counts

    @property
    def points(self) -> Values:
        """The mean rewards of all policies, [policies, 3], maximised and with penalties."""
        return np.array([policy.rewards for policy in self.policies], np.float64).reshape(-1, 3)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which policies count, [policies]: those whose violation rate is within the tolerance."""
        return within_tolerance(self.violation_rate, self.tolerance)

    @property
    def counted_points(self) -> Values:
        """The mean rewards of the policies that count: the points of dominance and hypervolume."""
        return self.points[self.counted]

    @property
    def objectives(self) -> Values:
        """The objectives of the policies, [policies, 3], in the user's units."""
        return np.array([policy.objectives for policy in self.policies], np.float64).reshape(-1, 3)

    @property
    def violation_rate(self) -> Values:
        """The share of rounds in which each policy violated any constraint, [policies]."""
        return np.array([policy.violation_rate for policy in self.policies], np.float64)

    @property
    def discarded_share(self) -> Values:
        """The share of its samples that each policy discarded, [policies]; NaN if it was not measured."""
        return np.array([policy.discarded_share for policy in self.policies], np.float64)

    @property
    def discards(self) -> bool:
        """Whether any policy is known to have discarded samples."""
        return bool((self.discarded_share > 0).any())

    @property
    def hypervolume(self) -> float:
        """The hypervolume of the policies that count over the reference point; 0 if there is none."""
        return hypervolume(self.counted_points, to_maximised(self.reference))

    @property
    def sparsity(self) -> float:
        """The sparsity of the policies that count as defined in the paper, not normalised; 0 for fewer than two."""
        return sparsity(self.counted_points)

    @property
    def cardinality(self) -> int:
        """The number of different non-dominated points among the policies that count."""
        return cardinality(self.counted_points)


def measured_fields(means: EpisodeMeans) -> dict[str, Any]:
    """Return the measured fields of a record, from the episodes of one policy."""
    objectives = to_user_units(means.objectives)
    return {
        "objectives": _three(objectives.mean(axis=0)),
        "half_width": tuple(half_width(objectives)),
        "rewards": _three(np.asarray(means.reward, np.float64).mean(axis=0)),
        "violation_rate": float(np.mean(np.asarray(means.violated_any, np.float64))),
        "violation_rates": tuple(np.asarray(means.violated, np.float64).mean(axis=0).tolist()),
        "discarded_share": discarded_share(means.discarded, means.converted),
    }


def _three(values: Any) -> tuple[float, float, float]:
    first, second, third = (float(value) for value in values)
    return first, second, third


def _half_widths(document: Any) -> tuple[float | None, float | None, float | None]:
    first, second, third = (None if document[name] is None else float(document[name]) for name in OBJECTIVE_KEYS)
    return first, second, third


EXTREMES = ("highest accuracy", "lowest latency", "lowest energy")
KNEE = "knee"


def landmarks(front: Front, tolerance: float) -> dict[str, int]:
    """Return the indices of the extremes and the knee by name, which may coincide; empty for an empty front."""
    if not front.policies:
        return {}
    points = selectable_points(front, tolerance)
    best = {name: best_for_preference(weights, points) for name, weights in zip(EXTREMES, np.eye(3), strict=True)}
    return {**best, KNEE: knee_point(points)}


def representatives(front: Front, tolerance: float, size: int) -> list[int]:
    """Return the indices of at most ``size`` policies that cover the front evenly, the landmarks among them."""
    points = selectable_points(front, tolerance)
    return spread_subset(points, size, tuple(landmarks(front, tolerance).values())) if front.policies else []


def selectable_points(front: Front, tolerance: float) -> Values:
    """Return the objectives, [policies, 3], maximised; NaN for policies outside the tolerance, unless all are."""
    safe = within_tolerance(front.violation_rate, tolerance)
    points = to_maximised(front.objectives)
    return np.where(safe[:, None], points, np.nan) if safe.any() else points


def describe_tolerance(front: Front) -> str | None:
    """Return how many policies of a front count, as a sentence; None if all do."""
    counted, number = int(front.counted.sum()), len(front.policies)
    if counted == number:
        return None
    limit = f"within the tolerance of {100 * front.tolerance:g} % of rounds in violation"
    if number == 1:
        return f"The policy is not {limit}, so hypervolume and sparsity are 0."
    return f"{counted} of {number} policies are {limit}; the others do not count in hypervolume and sparsity."


def describe_discarded(front: Front) -> str:
    """Return the shares of discarded samples, from the lowest to the highest of any policy, as text."""
    shares = front.discarded_share
    if np.isnan(shares).any():
        return "unknown"
    low, high = f"{shares.min():.1%}", f"{shares.max():.1%}"
    return high if low == high else f"{low} to {high}"


def keeps_samples(system: System) -> bool:
    """Return whether a system's shield keeps every sample until it is trained on, up to outages of the channel."""
    return system.shielded and not system.discards


def write_front_csv(path: Path, front: Front) -> None:
    """Write a row for each policy, with every digit of the numbers, so that a reader gets the same values back."""
    rows = [_row(policy) for policy in front.policies]
    write_csv(path, rows[0] if rows else ["index"], (tuple(row.values()) for row in rows))


def sorted_by(front: Front, by: str) -> list[PolicyRecord]:
    """Return the policies sorted by an objective (accuracy, latency or energy), the best first."""
    objective = OBJECTIVE_LABELS.index(by)
    sign = -1 if by == "accuracy" else 1
    return sorted(front.policies, key=lambda policy: sign * policy.objectives[objective])


def _row(policy: PolicyRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"index": policy.index}
    for name, mean, width in zip(OBJECTIVE_KEYS, policy.objectives, policy.half_width, strict=True):
        row |= {name: mean, f"{name}_half_width_95": width}
    row |= {f"reward_{name}": value for name, value in zip(OBJECTIVE_LABELS, policy.rewards, strict=True)}
    row["violation_rate"] = policy.violation_rate
    row |= {f"violation_rate_{name}": rate for name, rate in zip(CONSTRAINTS, policy.violation_rates, strict=True)}
    row["discarded_share"] = policy.discarded_share
    row |= {f"preference_{name}": weight for name, weight in zip(OBJECTIVE_LABELS, policy.preference, strict=True)}
    return row | {"stage": policy.stage, "improved": policy.improved, "network": policy.network}
