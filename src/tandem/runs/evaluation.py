"""Evaluation of a front on new seeds: its quality with intervals, and whether a heuristic would improve it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpy.typing import ArrayLike

from tandem.errors import InputError
from tandem.feel.constraints import CONSTRAINTS
from tandem.feel.environment import Environment
from tandem.feel.system import System
from tandem.io.atomic import check_replaceable, explain_write_errors
from tandem.io.tables import write_json
from tandem.learn.validation import within_tolerance
from tandem.objectives import OBJECTIVE_KEYS, to_maximised
from tandem.pareto import Ranges, expected_utility, hypervolume, simplex_grid
from tandem.policy.evaluate import evaluate_policies, unstack
from tandem.policy.heuristics import HEURISTICS
from tandem.policy.neural_policy import NeuralPolicy
from tandem.progress import Progress, ProgressCallback, ignore_progress
from tandem.rng import EVALUATION_SEED_START
from tandem.runs.front import Front, PolicyRecord, Values, keeps_samples, landmarks, measured_fields
from tandem.runs.run import Run
from tandem.runs.run_dir import read_scenario
from tandem.runs.simulation import episode_keys, half_width, simulate
from tandem.scenario import Scenario
from tandem.stats import basic_interval

IDEAL_POINT = (1.0, 0.0, 0.0)  # accuracy, -latency, -energy: the point with utility 1
DIVISIONS = 20  # of the grid of preferences that the expected utility is a mean over


@dataclass(frozen=True)
class HeuristicRecord:
    """The result of a heuristic on the same seeds."""

    name: str
    objectives: tuple[float, ...]  # accuracy, latency (s), energy (J)
    half_width: tuple[float | None, ...]  # of their 95 % confidence intervals
    violation_rate: float
    # Whether it is within the tolerance, and no policy that counts is at least as good in every objective.
    outside: bool
    adds: float  # the hypervolume that the front would gain by it

    def document(self) -> dict[str, Any]:
        """Return the record as a JSON document."""
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
    """The results of a front's policies on some seeds."""

    front: Front  # as measured on these seeds
    seeds: tuple[int, ...]
    rewards: Values  # [policies, seeds, 3], maximised
    heuristics: tuple[HeuristicRecord, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the hypervolume of the policies that count; None for a single seed."""
        return hypervolume_interval(self.rewards[self.front.counted], to_maximised(self.front.reference))

    @property
    def tolerance(self) -> float:
        """The share of rounds in violation that is tolerated."""
        return self.front.tolerance

    @property
    def safe(self) -> int:
        """The number of policies within the tolerance."""
        return int(self.front.counted.sum())

    @property
    def worst_violation_rate(self) -> dict[str, float]:
        """The largest violation rate of any policy, over all constraints and by constraint."""
        rates = np.array([(policy.violation_rate, *policy.violation_rates) for policy in self.front.policies])
        return dict(zip(("all", *CONSTRAINTS), rates.max(axis=0).tolist(), strict=True))

    @property
    def landmarks(self) -> dict[str, PolicyRecord]:
        """The best of each objective and the knee, by name."""
        return {name: self.front.policies[index] for name, index in landmarks(self.front, self.tolerance).items()}

    def summary(self) -> dict[str, Any]:
        """Return the results as a JSON document."""
        interval = self.interval
        return {
            "seeds": list(self.seeds),
            "hypervolume": self.front.hypervolume,
            "hypervolume_interval_95": None if interval is None else list(interval),
            "reference": dict(zip(OBJECTIVE_KEYS, self.front.reference, strict=True)),
            "sparsity": self.front.sparsity,
            "expected_utility": utility(self.front),
            "policies_played": len(self.front.policies),
            "cardinality": self.front.cardinality,
            "tolerance": self.tolerance,
            "within_tolerance": self.safe,
            "worst_violation_rate": self.worst_violation_rate,
            "landmarks": {name: policy.index for name, policy in self.landmarks.items()},
            "policies": [policy.document() for policy in self.front.policies],
            "rules": [rule.document() for rule in self.heuristics],
        }


def hypervolume_interval(rewards: Values, reference: ArrayLike, resamples: int = 2000) -> tuple[float, float] | None:
    """Return the 95 % interval of the hypervolume of mean rewards, [policies, seeds, 3]; None for a single seed."""
    return basic_interval(lambda means: hypervolume(means, reference), rewards, resamples)


def utility(front: Front) -> float:
    """Return the expected utility over all preferences: 0 at the reference point, 1 at the ideal point.

    Like the hypervolume, it is 0 if no policy counts.
    """
    scale = Ranges(to_maximised(front.reference), np.array(IDEAL_POINT))
    points = front.counted_points
    return expected_utility(points, simplex_grid(DIVISIONS), scale) if len(points) else 0.0


def evaluate(
    system: System,
    policies: NeuralPolicy,
    front: Front,
    seeds: Sequence[int],
    tolerance: float,
    *,
    heuristics: bool = False,
    on_progress: ProgressCallback = ignore_progress,
) -> Evaluation:
    """Evaluate the policies of a front, stacked in its order, on the same seeds; with ``heuristics``, those as well."""
    names = list(HEURISTICS) if heuristics else []
    total = len(front.policies) + len(names)
    on_progress(Progress(0, total, "evaluating"))
    rewards: list[Values] = []
    policy_records: list[PolicyRecord] = []
    for means in evaluate_policies(Environment(system), policies, episode_keys(seeds)):
        for policy_means in unstack(means):
            measured = measured_fields(policy_means)
            policy_records.append(dataclasses.replace(front.policies[len(policy_records)], **measured))
        rewards.append(np.asarray(means.reward))
        on_progress(Progress(len(policy_records), total, "evaluating"))
    evaluated = Front(tuple(policy_records), front.reference, tolerance)
    heuristic_records: list[HeuristicRecord] = []
    for name in names:
        heuristic_records.append(_evaluate_heuristic(name, system, evaluated, seeds))
        on_progress(Progress(len(policy_records) + len(heuristic_records), total, "evaluating"))
    return Evaluation(evaluated, tuple(seeds), np.concatenate(rewards), tuple(heuristic_records))


def _evaluate_heuristic(name: str, system: System, front: Front, seeds: Sequence[int]) -> HeuristicRecord:
    result = simulate(system, HEURISTICS[name](), seeds)
    reward, violation_rate = result.reward.mean(axis=0), float(result.violation_rate.mean())
    points = front.counted_points
    outside = bool(within_tolerance(violation_rate, front.tolerance)) and not (points >= reward).all(axis=1).any()
    with_heuristic = hypervolume(np.vstack([points, reward]), to_maximised(front.reference))
    return HeuristicRecord(
        name=name,
        objectives=tuple(result.objectives.mean(axis=0).tolist()),
        half_width=tuple(half_width(result.objectives)),
        violation_rate=violation_rate,
        outside=outside,
        adds=with_heuristic - front.hypervolume if outside else 0.0,
    )


def evaluate_to(
    path: Path | None,
    run: Run,
    seeds: Sequence[int] = range(EVALUATION_SEED_START, EVALUATION_SEED_START + 32),
    *,
    overrides: Sequence[str] = (),
    heuristics: bool = False,
    best_known: Callable[[Scenario, Sequence[float]], float | None] | None = None,
    on_progress: ProgressCallback = ignore_progress,
) -> tuple[Evaluation, dict[str, Any]]:
    """Evaluate a run's front on its scenario, or on one with ``overrides``, and write the results as JSON to ``path``.

    Returns the evaluation and the document, which is not written if ``path`` is None. ``best_known`` returns the best
    known hypervolume of a scenario for a reference point, or None.
    """
    if path is not None:
        with explain_write_errors(path):
            check_replaceable(path)
    scenario, system = with_overrides(run, overrides)
    evaluation = evaluate(
        system,
        run.policies(),
        run.front,
        seeds,
        run.config.tolerance,
        heuristics=heuristics,
        on_progress=on_progress,
    )
    document: dict[str, Any] = {
        "run": str(run.folder),
        "scenario": scenario.name,
        "changes": list(overrides),
        "devices": system.size,
        "rounds": system.rounds,
        "shield": system.shielded,
        "keeps_samples": keeps_samples(system),
        "hypervolume_when_trained": run.front.hypervolume,
        "best_known_hypervolume": None if best_known is None else best_known(scenario, run.front.reference),
        **evaluation.summary(),
    }
    if path is not None:
        with explain_write_errors(path):
            write_json(path, document)
    return evaluation, document


def with_overrides(run: Run, overrides: Sequence[str]) -> tuple[Scenario, System]:
    """Return the run's scenario with some fields changed, as in ``fleet.size=30``, and its system.

    Raises InputError if the run's policies do not fit the changed fleet.
    """
    if not overrides:
        return run.scenario, run.system()
    scenario = read_scenario(run.folder, overrides)
    system = run.system_builder(scenario)
    check_fits(run, system)
    return scenario, system


def check_fits(run: Run, system: System) -> None:
    """Raise InputError if the run's policies cannot decide for a fleet."""
    before = run.system()
    if not _fits(run.policy(0), system):
        if system.observation != before.observation:
            raise InputError(
                f"{run.folder}: its policies were trained on the {before.observation!r} observation and cannot use the "
                f"{system.observation!r} one; leave observation as it is."
            )
        raise InputError(
            f"{run.folder}: its policies were trained for {before.size} devices and cannot decide for {system.size}; "
            f"train for that size, or use the network deep-set, which fits any size."
        )


def _fits(policy: NeuralPolicy, system: System) -> bool:
    """Return whether the network takes the observations of this fleet; only shapes are evaluated."""

    def decide(key: jax.Array) -> object:
        environment = Environment(system)
        return policy(environment, environment.reset(key), key)

    try:
        eqx.filter_eval_shape(decide, jax.random.key(0))
    except (TypeError, ValueError):  # raised by JAX for arrays of other shapes
        return False
    return True
