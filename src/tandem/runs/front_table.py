"""A front as a table: a row a policy, for spreadsheets and data frames."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from tandem.feel.constraints import CONSTRAINTS
from tandem.feel.objectives import OBJECTIVES
from tandem.runs.files import written_whole
from tandem.runs.front import GOALS, Front, PolicyRecord


def write_csv(path: Path, front: Front) -> None:
    """Write the front; numbers with every digit they have, so that nothing is lost on the way back."""
    rows = [_row(policy) for policy in front.policies]
    with written_whole(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["index"])
        writer.writeheader()
        writer.writerows(rows)


def in_order(front: Front, by: str) -> list[PolicyRecord]:
    """The policies, the best in an objective (accuracy, latency or energy) first."""
    objective = GOALS.index(by)
    sign = -1 if by == "accuracy" else 1
    return sorted(front.policies, key=lambda policy: sign * policy.objectives[objective])


def _row(policy: PolicyRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"index": policy.index}
    for name, mean, width in zip(OBJECTIVES, policy.objectives, policy.half_width, strict=True):
        row |= {name: mean, f"{name}_half_width_95": width}
    row |= {f"reward_{name}": value for name, value in zip(GOALS, policy.rewards, strict=True)}
    row["violation_rate"] = policy.violation_rate
    row |= {f"violation_rate_{name}": rate for name, rate in zip(CONSTRAINTS, policy.violation_rates, strict=True)}
    row |= {f"preference_{name}": weight for name, weight in zip(GOALS, policy.preference, strict=True)}
    return row | {"stage": policy.stage, "improved": policy.improved, "network": policy.network}
