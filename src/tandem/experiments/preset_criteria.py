"""Criteria for a fair scenario, checked with heuristics only.

The paper does not give most of the constants of its system. Those of the ``paper`` preset were found once by
studies/preset_search.py, before any learning algorithm was compared, so that

1. every heuristic runs whole episodes on both axes of the paper's sweeps (fleet sizes at the default arrival rate, and
   rates at the default size) without a violation of C1 to C5 and without discarding a sample; and the uplink admits one
   trainer more than the timetable of the shield reserves, so that policies have a choice,
2. the policies best in accuracy, latency and energy are three different ones,
3. the objectives of feasible policies are in the paper's box and have the order of magnitude of its Table III, and the
   accuracy mapping is bounded by its constants, not by clipping at 1,
4. nothing was tuned to an algorithm: no learner appears in this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.federated.build import build_system
from tandem.feel.environment import Environment
from tandem.feel.queues import FRESH_AGE_S
from tandem.feel.system import System
from tandem.objectives import to_user_units
from tandem.policy.evaluate import rollout_stack
from tandem.policy.heuristics import (
    HEURISTICS,
    DriftPlusPenalty,
    Heuristic,
    RandomHeuristic,
    RoundRobin,
    ServeUntilFull,
    Threshold,
    Urgency,
)
from tandem.policy.rollout import EpisodeMeans, rollout_means
from tandem.scenario import load_scenario

FLEET_SIZES = (5, 10, 15, 20, 25, 30)  # the paper's sweep over devices
REQUEST_RATES = (2.0, 4.0, 6.0, 8.0, 10.0)  # the paper's sweep over the mean arrival rate
PAPER_BOX = ((0.0, 1.0), (0.0, 5.0), (0.0, 44.0))  # accuracy, latency (s), energy (J): its reference point
TABLE_3_MEDIANS = (0.772, 3.47, 16.4)  # over the nine policies of C-MOPPO in Table III
DISTINCT = 1.2  # ratio by which two corners must differ
SAME_ORDER = 3.0  # factor within which medians have the same order of magnitude

Values = NDArray[np.float64]


class Cell(NamedTuple):
    """One fleet of the paper's sweeps."""

    size: int  # N
    rate: float  # mean lambda, requests/s


class Losses(NamedTuple):
    """What criterion 1 forbids, over all episodes of a heuristic on one fleet."""

    violation_rate: float  # share of rounds that violate a constraint
    discarded: float  # samples


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
    yield [Urgency(m, s, p, f) for m in (1.0, 3.0) for s in (0.25, 0.75) for p in (0.0, 1.0) for f in levels]
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

    losses: dict[Cell, dict[str, Losses]]  # of each heuristic on each fleet of the sweeps; empty if not measured
    corners: Values  # rows: best in accuracy, latency, energy
    medians: Values
    lowest: Values
    highest: Values
    best_server_accuracy: float  # G of the most data that a round can train on, fresh, before clipping at 1
    spare_trainers: int  # that the uplink admits beside the reserved ones, in the fleet of the sweeps with the fewest

    @property
    def nothing_lost(self) -> bool:
        """Whether criterion 1 is met."""
        zero = all(one == Losses(0.0, 0.0) for cell in self.losses.values() for one in cell.values())
        return bool(self.losses) and zero and self.spare_trainers >= 1

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


@dataclass(frozen=True)
class Capacity:
    """The fleets of the sweeps, which all can be served."""

    most_data: float  # samples that one round can train on, in the fleet where that is most
    spare_trainers: int  # that the uplink admits beside the reserved ones, in the fleet with the fewest


def sweep_cells(scenario: str, overrides: Mapping[str, Any] | None = None) -> list[Cell]:
    """Return both axes of the paper's sweeps: not their product, which the paper does not visit."""
    default = load_scenario(scenario, overrides or {})
    size, rate = default.fleet.size, default.workload.request_rate_per_s
    by_size, by_rate = [Cell(n, rate) for n in FLEET_SIZES], [Cell(size, r) for r in REQUEST_RATES]
    return list(dict.fromkeys(by_size + by_rate))


def build_cell(scenario: str, overrides: Mapping[str, Any] | None, cell: Cell) -> System:
    """Build one fleet of the sweeps."""
    changes = {**(overrides or {}), "fleet.size": cell.size, "workload.request_rate_per_s": cell.rate}
    return build_system(load_scenario(scenario, changes))


def find_capacity(scenario: str, overrides: Mapping[str, Any] | None = None) -> Capacity | None:
    """Return the capacity of the fleets of the sweeps, or None if one of them cannot be served. Simulates nothing."""
    try:
        systems = [build_cell(scenario, overrides, cell) for cell in sweep_cells(scenario, overrides)]
    except InputError:
        return None
    return Capacity(max(map(most_data, systems)), min(map(spare_trainers, systems)))


def check_criteria(
    scenario: str, overrides: Mapping[str, Any] | None = None, episodes: int = 8, seed: int = 0
) -> CriteriaResult:
    """Check all criteria of a scenario; criterion 1 on both axes of the paper's sweeps."""
    losses = measure_losses(scenario, overrides, sweep_cells(scenario, overrides), episodes, seed)
    return check_at_default_size(scenario, overrides or {}, episodes, seed, losses=losses)


def check_at_default_size(
    scenario: str,
    overrides: Mapping[str, Any],
    episodes: int = 8,
    seed: int = 0,
    *,
    capacity: Capacity | None = None,
    losses: dict[Cell, dict[str, Losses]] | None = None,
) -> CriteriaResult:
    """Check criteria 2 and 3 of a scenario, at its own fleet size and arrival rate: a tenth of the work."""
    system = build_system(load_scenario(scenario, overrides))
    front = heuristic_front(system, episodes, seed)
    points = front.feasible()
    capacity = capacity or find_capacity(scenario, overrides)
    if capacity is None:
        raise InputError(f"{scenario}: a fleet of the paper's sweeps cannot be served.")
    return CriteriaResult(
        losses=losses or {},
        corners=np.stack([front.corner(objective) for objective in range(3)]),
        medians=np.median(points, axis=0),
        lowest=points.min(axis=0),
        highest=points.max(axis=0),
        best_server_accuracy=accuracy_of_fresh_data(system, capacity.most_data),
        spare_trainers=capacity.spare_trainers,
    )


def accuracy_of_fresh_data(system: System, samples: float) -> float:
    """Return G of fresh data, before it is bounded to [0, 1]."""
    return float(system.accuracy_mapping(jnp.asarray(samples, float), jnp.asarray(FRESH_AGE_S, float)))


def most_data(system: System) -> float:
    """Return the most samples that one round can train on.

    A round of k trainers has only devices that can share the uplink with k - 1 others, and the uploads of k leave each
    of them less time to compute.
    """
    worst_case, devices = system.worst_case, system.devices
    names = ("max_trainers", "max_data", "upload_s", "round_limit_s", "reserved")
    admitted, full, upload_s, round_s, reserved = (np.asarray(getattr(worst_case, name), np.float64) for name in names)
    cycles = float(system.iterations) * np.asarray(devices.training_cycles_per_sample, np.float64)
    best = 0.0
    for trainers in range(1, system.size + 1):
        able = admitted >= trainers
        if able.sum() < trainers:
            break
        left_s = np.maximum(round_s - trainers * upload_s, 0.0)
        trainable = left_s * np.asarray(devices.frequency_max_hz, np.float64) / cycles
        data = full if trainers <= reserved else np.minimum(full, trainable)
        best = max(best, float(np.sort(data[able])[-trainers:].sum()))
    return best


def spare_trainers(system: System) -> int:
    """Return how many trainers the uplink admits beside those that the timetable of the shield reserves."""
    return int(np.min(np.asarray(system.worst_case.max_trainers))) - int(system.worst_case.reserved)


def measure_losses(
    scenario: str, overrides: Mapping[str, Any] | None, cells: list[Cell], episodes: int = 8, seed: int = 0
) -> dict[Cell, dict[str, Losses]]:
    """Simulate every heuristic, with its default settings, on these fleets."""
    keys = jax.random.split(jax.random.key(seed), episodes)
    losses: dict[Cell, dict[str, Losses]] = {}
    for cell in cells:
        environment = Environment(build_cell(scenario, overrides, cell))
        losses[cell] = {}
        for name, rule in HEURISTICS.items():
            outcome = rollout_means(environment, rule(), keys)
            losses[cell][name] = Losses(
                float(np.mean(np.asarray(outcome.violated_any))), float(np.sum(np.asarray(outcome.discarded)))
            )
    return losses
