"""A front on seeds it has not seen: how good it is, how sure that is, and whether a hand-written rule beats it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np

from tandem.errors import InputError
from tandem.feel.constraints import CONSTRAINTS
from tandem.feel.env import reset
from tandem.feel.system import System
from tandem.learn.validation import within_tolerance
from tandem.objectives import OBJECTIVE_KEYS, to_maximised
from tandem.pareto import Ranges, cardinality, expected_utility, hypervolume, simplex_grid
from tandem.policy.evaluate import evaluate_policies, unstack
from tandem.policy.heuristics import HEURISTICS
from tandem.policy.neural_policy import NeuralPolicy
from tandem.runs.front import Front, PolicyRecord, Values, landmarks, measured
from tandem.runs.run import Run
from tandem.runs.run_dir import SCENARIO
from tandem.runs.simulation import episode_keys, half_width, simulate
from tandem.scenario import Scenario, load_scenario
from tandem.stats import hypervolume_interval

IDEAL_POINT = (1.0, 0.0, 0.0)  # accuracy, -latency, -energy: the good end of the scale of utility
DIVISIONS = 20  # of the grid of preferences that a user may have
Progress = Callable[[int, int], None]  # told how many are done, of how many


@dataclass(frozen=True)
class HeuristicRecord:
    """A hand-written rule on the same seeds."""

    name: str
    objectives: tuple[float, ...]  # accuracy, latency (s), energy (J)
    half_width: tuple[float | None, ...]  # of their 95 % confidence intervals
    violation_rate: float
    outside: bool  # whether no policy of the front is at least as good in every objective
    adds: float  # the hypervolume that the front would gain by it

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "objectives": dict(zip(OBJECTIVE_KEYS, self.objectives, strict=True)),
            "objectives_half_width_95": dict(zip(OBJECTIVE_KEYS, self.half_width, strict=True)),
            "violation_rate": self.violation_rate,
            "outside": self.outside,
            "adds_hypervolume": self.adds,
        }


@dataclass(frozen=True)
class Evaluation:
    """What the policies of a front do on some seeds."""

    front: Front  # as measured on these seeds
    seeds: tuple[int, ...]
    rewards: Values  # [policies, seeds, 3], maximised
    tolerance: float  # share of rounds in violation that is tolerated
    heuristics: tuple[HeuristicRecord, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the hypervolume, 95 %."""
        return hypervolume_interval(self.rewards, to_maximised(self.front.reference))

    @property
    def safe(self) -> int:
        """How many policies are within the tolerance."""
        return int(within_tolerance(self.front.violation_rate, self.tolerance).sum())

    @property
    def worst_violation_rate(self) -> dict[str, float]:
        """The largest of any policy, over all constraints and by constraint."""
        rates = np.array([(policy.violation_rate, *policy.violation_rates) for policy in self.front.policies])
        return dict(zip(("all", *CONSTRAINTS), rates.max(axis=0).tolist(), strict=True))

    @property
    def landmarks(self) -> dict[str, PolicyRecord]:
        """The best of each objective and the knee, by name."""
        found = landmarks(self.front, self.tolerance)
        return {name: self.front.policies[index] for name, index in found.items()}

    def summary(self) -> dict[str, Any]:
        """One JSON document."""
        interval = self.interval
        return {
            "seeds": list(self.seeds),
            "hypervolume": self.front.hypervolume,
            "hypervolume_interval_95": None if interval is None else list(interval),
            "reference": dict(zip(OBJECTIVE_KEYS, self.front.reference, strict=True)),
            "sparsity": self.front.sparsity,
            "expected_utility": utility(self.front),
            "policies_played": len(self.front.policies),
            "cardinality": cardinality(self.front.points),
            "tolerance": self.tolerance,
            "within_tolerance": self.safe,
            "worst_violation_rate": self.worst_violation_rate,
            "landmarks": {name: policy.index for name, policy in self.landmarks.items()},
            "policies": [policy.document() for policy in self.front.policies],
            "rules": [rule.document() for rule in self.heuristics],
        }


def utility(front: Front) -> float:
    """The utility that a user of unknown preference can expect: 0 at the reference point, 1 at the ideal."""
    scale = Ranges(to_maximised(front.reference), np.array(IDEAL_POINT))
    return expected_utility(front.points, simplex_grid(DIVISIONS), scale)


def evaluate(
    system: System,
    policies: NeuralPolicy,
    front: Front,
    seeds: Sequence[int],
    tolerance: float,
    *,
    rules: bool = False,
    progress: Progress = lambda done, of: None,
) -> Evaluation:
    """Play the policies of a front, a stack in its order, on the same seeds each; with ``rules``, those as well."""
    names = list(HEURISTICS) if rules else []
    of = len(front.policies) + len(names)
    progress(0, of)
    rewards: list[Values] = []
    records: list[PolicyRecord] = []
    for means in evaluate_policies(system, policies, episode_keys(seeds)):
        for one in unstack(means):
            records.append(dataclasses.replace(front.policies[len(records)], **measured(one)))
        rewards.append(np.asarray(means.reward))
        progress(len(records), of)
    now = Front(tuple(records), front.reference)
    judged = []
    for name in names:
        judged.append(_judged(name, system, now, seeds))
        progress(len(records) + len(judged), of)
    return Evaluation(now, tuple(seeds), np.concatenate(rewards), tolerance, tuple(judged))


def _judged(name: str, system: System, front: Front, seeds: Sequence[int]) -> HeuristicRecord:
    result = simulate(system, HEURISTICS[name](), seeds)
    reward = result.reward.mean(axis=0)
    together = hypervolume(np.vstack([front.points, reward]), to_maximised(front.reference))
    return HeuristicRecord(
        name=name,
        objectives=tuple(result.objectives.mean(axis=0).tolist()),
        half_width=tuple(half_width(result.objectives)),
        violation_rate=float(result.violation_rate.mean()),
        outside=not bool((front.points >= reward).all(axis=1).any()),
        adds=together - front.hypervolume,
    )


def with_overrides(run: Run, overrides: Sequence[str]) -> tuple[Scenario, System]:
    """The run's scenario with some fields changed, as in ``fleet.size=30``; refused if its policies do not fit it."""
    if not overrides:
        return run.scenario, run.system()
    scenario = load_scenario(run.folder / SCENARIO, overrides)
    system = run.system_builder(scenario)
    check_fits(run, system)
    return scenario, system


def check_fits(run: Run, system: System) -> None:
    """Refuse a fleet that the run's policies cannot decide for."""
    before = run.system()
    if not _fits(run.policy(0), system):
        if system.observation != before.observation:
            raise InputError(
                f"{run.folder}: its policies were trained on the {before.observation!r} observation and cannot use the "
                f"{system.observation!r} one; leave observation as it is."
            )
        raise InputError(
            f"{run.folder}: its policies were trained for {before.size} devices and cannot decide for {system.size}; "
            f"train for that size, or use the fleet network, which fits any."
        )


def _fits(policy: NeuralPolicy, system: System) -> bool:
    """Whether the network takes what this fleet has to tell; only shapes are worked out."""

    def decide(key: jax.Array) -> object:
        return policy(system, reset(system, key), key)

    try:
        eqx.filter_eval_shape(decide, jax.random.key(0))
    except (TypeError, ValueError):  # as JAX refuses arrays of other shapes
        return False
    return True
