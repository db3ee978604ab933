"""Reference fronts: the best policies of several algorithms, trained with ten times the budget.

There is one for the paper's fleet, one for the largest fleet, and one without a shield. In each setting, the
non-dominated policies are found on the seeds that every run is evaluated on. Selecting the best of thousands on these
seeds biases their results upwards, so they are evaluated again on separate seeds; the policies that are non-dominated
on those form the reference front. Only policies within the tolerance of violations count, on both sets of seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.api import open_run
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import RANDOM, label
from tandem.experiments.reference_front import REFERENCE_FRONTS
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Data, Rows, group_rows
from tandem.experiments.trial import RUN, Trial, Values, group_by_seed, scenario_digest, trial_dir
from tandem.feel.environment import Environment
from tandem.io.tables import write_json
from tandem.learn.config import AlgorithmConfig
from tandem.learn.registry import make_config
from tandem.learn.validation import within_tolerance
from tandem.objectives import OBJECTIVE_KEYS, to_maximised, to_user_units
from tandem.pareto import hypervolume, nondominated_indices
from tandem.policy.evaluate import evaluate_policies
from tandem.rng import REFERENCE_FRONT_SEEDS
from tandem.runs.simulation import episode_keys
from tandem.runs.trainer import override_shield
from tandem.stats import mean
from tandem.tree import tree_index

NAME, TITLE = "reference", "The best known fronts"
TRIALS = f"{NAME}-trials"
BUDGET_FACTOR = 10  # times the budget of other trials at the same scale
MAX_SEEDS = 5
# Larger steps: a tenfold budget in small steps would take a GPU ten times as long. The preference-conditioned policy
# also gets more episodes near single objectives, since it is weakest at the extremes of its front.
LARGER_STEPS: Mapping[str, Mapping[str, Any]] = {
    "pc-ppo": {"num_envs": 128, "dirichlet_alpha": 0.25},
    "c-moppo": {"num_envs": 32},
    "pg-morl": {"num_envs": 32},
    "s-ppo": {"num_envs": 32},
    "moea-d": {"num_envs": 32, "episodes_per_eval": 8},
    "nsga2": {"num_envs": 32, "episodes_per_eval": 8},
}


@dataclass(frozen=True)
class Setting:
    """A system that a reference front is made for."""

    name: str
    size: int  # number of devices
    overrides: Mapping[str, Any]  # of the scenario ``paper``
    shield: bool

    def trials(self, scale: Scale, algorithms: Algorithms) -> list[Trial]:
        """Return the trials of all algorithms except R+PPO, whose random modes contribute nothing."""
        steps = LARGER_STEPS if scale.name == "full" else {}
        changes: dict[str, Any] = {"budget": BUDGET_FACTOR * scale.budget}
        changes |= {} if self.shield else {"shield": False}
        return [
            scale.trial(
                name, seed, size=self.size, curve_points=1, overrides=self.overrides, **changes, **steps.get(name, {})
            )
            for name in algorithms
            if name != RANDOM
            for seed in range(min(scale.seeds, MAX_SEEDS))
        ]


def settings(scale: Scale) -> tuple[Setting, ...]:
    """Return the paper's fleet, the largest fleet, and the smallest fleet of medium hardness without a shield."""
    grid = scale.literal
    hardness = grid.hardness[len(grid.hardness) // 2]
    return (
        Setting(f"{scale.size} devices", scale.size, {}, True),
        Setting(f"{max(scale.sizes)} devices", max(scale.sizes), {}, True),
        Setting(f"{grid.sizes[0]} devices, {hardness.name}, no shield", grid.sizes[0], hardness.overrides, False),
    )


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Return the trials of all settings."""
    return [trial for setting in settings(scale) for trial in setting.trials(scale, algorithms)]


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Merge the fronts of each setting, evaluate the best policies again, and write the reference fronts as JSON."""
    policies, rows, fronts = [], [], []
    for setting in settings(scale):
        sources = setting.trials(scale, algorithms)
        best, own = _merge(sources, folder)
        fronts.append(_document(scale, setting, sources, results, own))
        policies += [{"setting": setting.name, **policy} for policy in own]
        rows += [
            {"setting": setting.name, "algorithm": trial.algorithm, "seed": trial.seed}
            | {"hypervolume": results[trial].hypervolume, "policies": len(results[trial].front)}
            | {"nondominated": int(np.sum(best == index))}
            for index, trial in enumerate(sources)
        ]
    write_json(folder / REFERENCE_FRONTS, {"fronts": fronts})
    return {NAME: policies, TRIALS: rows}


def _merge(sources: list[Trial], folder: Path) -> tuple[NDArray[np.int_], Rows]:
    """Return the trial of each non-dominated policy, and those that are non-dominated when evaluated again."""
    fronts = [open_run(trial_dir(trial, folder) / RUN).front for trial in sources]
    points = np.concatenate([front.objectives[front.counted] for front in fronts])
    trial_index = np.concatenate([np.full(np.sum(front.counted), index) for index, front in enumerate(fronts)])
    policy_index = np.concatenate([np.flatnonzero(front.counted) for front in fronts])
    best = nondominated_indices(to_maximised(points))
    evaluated, violation_rate = _evaluate_again(sources, trial_index[best], policy_index[best], folder)
    safe = np.flatnonzero(within_tolerance(violation_rate, AlgorithmConfig().tolerance))
    kept = safe[nondominated_indices(to_maximised(evaluated[safe]))]
    policies = [
        {"algorithm": sources[index].algorithm, "seed": sources[index].seed}
        | dict(zip(OBJECTIVE_KEYS, point.tolist(), strict=True))
        for index, point in zip(trial_index[best][kept], evaluated[kept], strict=True)
    ]
    return trial_index[best], policies


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Return the section with the fronts and the contribution of each algorithm."""
    policies, rows = group_rows(data[NAME], "setting"), group_rows(data[TRIALS], "setting")
    about, tables = [], []
    for setting, own in rows.items():
        volume = _hypervolume(policies.get(setting, []))
        count, nondominated = (sum(row[key] for row in own) for key in ("policies", "nondominated"))
        about.append(
            f"{setting[0]}: {count:,} policies of {len(own)} trainings; {nondominated:,} are non-dominated, and "
            f"{len(policies.get(setting, [])):,} still are when evaluated on {len(REFERENCE_FRONT_SEEDS)} other seeds, "
            f"with hypervolume {volume:.2f}."
        )
        tables.append(_table(setting[0], policies.get(setting, []), own, volume))
    return ReportSection(
        name=NAME,
        title=TITLE,
        about=f"Trainings of {BUDGET_FACTOR * scale.budget:,} rounds, in larger steps. {' '.join(about)}",
        claims=(),
        tables=tuple(tables),
    )


def _evaluate_again(
    sources: list[Trial], trial_index: NDArray[np.int_], policy_index: NDArray[np.int_], folder: Path
) -> tuple[Values, Values]:
    """Evaluate policies of several runs on separate seeds.

    Returns rewards in the user's units, penalties included, and the share of rounds with a violation.
    """
    rewards, violation_rate = np.full((len(trial_index), 3), np.nan), np.full(len(trial_index), np.nan)
    for index in np.unique(trial_index):
        run = open_run(trial_dir(sources[int(index)], folder) / RUN)
        own = np.flatnonzero(trial_index == index)
        policies = tree_index(run.policies(), policy_index[own])
        batches = list(evaluate_policies(Environment(run.system()), policies, episode_keys(REFERENCE_FRONT_SEEDS)))
        rewards[own] = to_user_units(np.concatenate([batch.reward.mean(axis=1) for batch in batches]))
        violation_rate[own] = np.concatenate([batch.violated_any.mean(axis=1) for batch in batches])
    return rewards, violation_rate


def _hypervolume(policies: Rows) -> float:
    points = np.array([[row[key] for key in OBJECTIVE_KEYS] for row in policies]).reshape(-1, 3)
    return hypervolume(to_maximised(points), to_maximised(AlgorithmConfig().reference_point))


def _document(scale: Scale, setting: Setting, sources: list[Trial], results: Results, policies: Rows) -> dict[str, Any]:
    single = {group[0].algorithm: [results[one].hypervolume for one in group] for group in group_by_seed(sources)}
    first = sources[0]
    config = make_config(first.algorithm, first.preset, first.changes)
    return {
        "name": setting.name,
        "command": f"tandem reproduce reference --scale {scale.name}",
        "scenario": {"extends": "paper", "fleet.size": setting.size, "workload.request_rate_per_s": scale.rate}
        | dict(setting.overrides)
        | {"shield.enabled": setting.shield},
        "scenario_digest": scenario_digest(override_shield(config, first.scenario())),
        "trainings": len(sources),
        "rounds": BUDGET_FACTOR * scale.budget,
        "options": {trial.algorithm: trial.changes for trial in sources},
        "seeds": [REFERENCE_FRONT_SEEDS.start, REFERENCE_FRONT_SEEDS.stop],
        "hypervolume": _hypervolume(policies),
        "reference": list(AlgorithmConfig().reference_point),
        "hypervolumes_of_single_trainings": single,
        "policies": policies,
    }


def _table(setting: str, policies: Rows, trials: Rows, volume: float) -> Table:
    contributed = group_rows(policies, "algorithm")
    rows = []
    for (name,), own in group_rows(trials, "algorithm").items():
        hypervolumes = mean([row["hypervolume"] for row in own])
        share = f"{hypervolumes.scaled(100 / volume)} %" if volume else ""
        rows.append((label(name), str(hypervolumes), share, str(len(contributed.get((name,), [])))))
    headings = ("", "hypervolume", "share of the best", "policies contributed")
    return Table(f"With ten times the budget, {setting}", headings, tuple(rows))


REFERENCE = Experiment(NAME, TITLE, trials, collect, make_section)
