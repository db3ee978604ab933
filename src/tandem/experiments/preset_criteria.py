"""Criteria for a fair scenario, checked with heuristics only.

The paper does not give most of the constants of its system. Those of the ``paper`` preset were found once by
studies/preset_search.py, before any learning algorithm was compared, so that

1. a heuristic runs whole episodes without a violation at every fleet size and arrival rate of the paper,
2. the policies best in accuracy, latency and energy are three different ones,
3. the objectives of feasible policies are in the paper's box and have the order of magnitude of its Table III, and the
   accuracy mapping is bounded by its constants, not by clipping at 1,
4. nothing was tuned to an algorithm: no learner appears in this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.federated.build import build_system
from tandem.feel.environment import Environment
from tandem.feel.queues import FRESH_AGE_S
from tandem.feel.system import System
from tandem.objectives import to_user_units
from tandem.policy.evaluate import rollout_stack
from tandem.policy.heuristics import DriftPlusPenalty, Heuristic, RandomHeuristic, RoundRobin, ServeUntilFull, Threshold
from tandem.policy.rollout import EpisodeMeans, rollout_means
from tandem.scenario import load_scenario

FLEET_SIZES = (5, 10, 15, 20, 25, 30)  # the paper's sweep over devices
REQUEST_RATES = (2.0, 4.0, 6.0, 8.0, 10.0)  # the paper's sweep over the mean arrival rate
PAPER_BOX = ((0.0, 1.0), (0.0, 5.0), (0.0, 44.0))  # accuracy, latency (s), energy (J): its reference point
TABLE_3_MEDIANS = (0.772, 3.47, 16.4)  # over the nine policies of C-MOPPO in Table III
DISTINCT = 1.2  # ratio by which two corners must differ
SAME_ORDER = 3.0  # factor within which medians have the same order of magnitude

Values = NDArray[np.float64]


@dataclass(frozen=True)
class HeuristicFront:
    """Objectives of a family of heuristics on a scenario: one row each, in the user's units (accuracy, s, J)."""

    rules: list[Heuristic]
    objectives: Values
    violation_rate: Values

    def feasible(self) -> Values:
        """Return the objectives of heuristics without violations."""
        return np.asarray(self.objectives[self.violation_rate == 0])

    def corner(self, objective: int) -> Values:
        """Return the feasible point that is best in one objective."""
        points = self.feasible()
        best = np.argmax(points[:, 0]) if objective == 0 else np.argmin(points[:, objective])
        return np.asarray(points[best])


def heuristic_family() -> Iterator[list[Heuristic]]:
    """Yield heuristics over a grid of their settings, a list per type, so that each type is one program."""
    levels = (0.0, 0.25, 0.5, 1.0)
    shares = (0.02, 0.1, 0.2, 0.4, 0.7, 2.0)  # 2 means never
    yield [Threshold(s, p, f) for s in shares for p in (0.0, 0.5, 1.0) for f in levels]
    yield [RoundRobin(m, p, f) for m in (0.5, 1.0, 2.0, 3.0) for p in (0.0, 1.0) for f in levels]
    yield [RandomHeuristic(chance) for chance in (0.05, 0.2, 0.5)]
    yield [ServeUntilFull(p, f) for p in (0.0, 1.0) for f in levels]
    weights = (0.05, 0.3, 1.0, 3.0)
    yield [DriftPlusPenalty(a, s, e) for a in weights for s in weights for e in weights]


def heuristic_front(system: System, episodes: int = 8, seed: int = 0) -> HeuristicFront:
    """Simulate every heuristic of the family for some episodes."""
    keys = jax.random.split(jax.random.key(seed), episodes)
    rules: list[Heuristic] = []
    outcomes: list[EpisodeMeans] = []
    for members in heuristic_family():
        stacked = jax.tree.map(lambda *settings: jnp.asarray(settings, float), *members)
        outcomes.append(_rollout_family(Environment(system), stacked, keys))
        rules += members
    objectives = np.concatenate([np.asarray(o.objectives, np.float64).mean(axis=1) for o in outcomes])
    violations = np.concatenate([np.asarray(o.violated_any, np.float64).mean(axis=1) for o in outcomes])
    return HeuristicFront(rules, to_user_units(objectives), violations)


_rollout_family = jax.jit(rollout_stack)


@dataclass(frozen=True)
class CriteriaResult:
    """The criteria, and the numbers that decide them."""

    violations: dict[tuple[int, float], float]  # violation rate of the heuristic, by (N, mean lambda)
    corners: Values  # rows: best in accuracy, latency, energy
    medians: Values
    lowest: Values
    highest: Values
    best_server_accuracy: float  # G of the most data that a round can train on, fresh, before clipping at 1

    @property
    def no_violations(self) -> bool:
        """Whether criterion 1 is met."""
        return all(rate == 0 for rate in self.violations.values())

    @property
    def corner_ratios(self) -> tuple[float, float, float]:
        """The ratios between corners, one for each objective.

        In accuracy: the best corner to the worse of the others. In latency: the energy corner to the latency corner. In
        energy: the latency corner to the energy corner.
        """
        accuracy, latency, energy = self.corners
        return (
            float(accuracy[0] / min(latency[0], energy[0])),
            float(energy[1] / latency[1]),
            float(latency[2] / energy[2]),
        )

    @property
    def corners_distinct(self) -> bool:
        """Whether criterion 2 is met."""
        return min(self.corner_ratios) >= DISTINCT

    @property
    def inside_box(self) -> bool:
        """Whether criterion 3 is met."""
        low, high = np.array(PAPER_BOX).T
        order = self.medians / np.array(TABLE_3_MEDIANS)
        in_box = np.all(self.lowest > low) and np.all(self.highest < high)
        same_order = np.all(order < SAME_ORDER) and np.all(order > 1 / SAME_ORDER)
        return bool(in_box and same_order and self.best_server_accuracy <= 1)


def check_criteria(
    scenario: str, overrides: Mapping[str, Any] | None = None, episodes: int = 8, seed: int = 0
) -> CriteriaResult:
    """Check all criteria of a scenario; criterion 1 at every fleet size and arrival rate of the paper."""
    changes = dict(overrides or {})
    grid = violation_grid(scenario, Threshold(), changes, episodes, seed)
    return check_at_default_size(scenario, changes, episodes, seed, grid)


def check_at_default_size(
    scenario: str,
    overrides: Mapping[str, Any],
    episodes: int = 8,
    seed: int = 0,
    violations: dict[tuple[int, float], float] | None = None,
) -> CriteriaResult:
    """Check criteria 2 and 3 of a scenario, at its own fleet size and arrival rate: a tenth of the work."""
    system = build_system(load_scenario(scenario, overrides))
    front = heuristic_front(system, episodes, seed)
    points = front.feasible()
    largest = build_system(load_scenario(scenario, {**overrides, "fleet.size": max(FLEET_SIZES)}))
    return CriteriaResult(
        violations=violations or {},
        corners=np.stack([front.corner(objective) for objective in range(3)]),
        medians=np.median(points, axis=0),
        lowest=points.min(axis=0),
        highest=points.max(axis=0),
        best_server_accuracy=best_server_accuracy(largest),
    )


def best_server_accuracy(system: System) -> float:
    """Return G of the most data that one round can train on, all of it fresh."""
    trainers = int(np.max(np.asarray(system.worst_case.max_trainers)))
    most_data = np.sort(np.asarray(system.worst_case.max_data, np.float64))[-trainers:].sum()
    return float(system.accuracy_mapping(jnp.asarray(most_data, float), jnp.asarray(FRESH_AGE_S, float)))


def violation_grid(
    scenario: str, rule: Heuristic, overrides: Mapping[str, Any] | None = None, episodes: int = 8, seed: int = 0
) -> dict[tuple[int, float], float]:
    """Return the share of rounds with a violation under a heuristic, by fleet size and mean arrival rate."""
    keys = jax.random.split(jax.random.key(seed), episodes)
    rates = {}
    for size in FLEET_SIZES:
        for rate in REQUEST_RATES:
            changes = {**(overrides or {}), "fleet.size": size, "workload.request_rate_per_s": rate}
            outcome = rollout_means(Environment(build_system(load_scenario(scenario, changes))), rule, keys)
            rates[size, rate] = float(np.mean(np.asarray(outcome.violated_any)))
    return rates
