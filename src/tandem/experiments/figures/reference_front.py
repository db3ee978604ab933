"""The reference front: the best policies of several algorithms, trained with ten times the budget.

The non-dominated policies are found on the seeds that every run is evaluated on. Selecting the best of thousands on
these seeds biases their results upwards, so they are evaluated again on separate seeds; the policies that are
non-dominated on those form the reference front.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.api import open_run
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import RANDOM, label
from tandem.experiments.reference_front import REFERENCE_FRONT
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Data, Rows, group_rows
from tandem.experiments.trial import RUN, Trial, Values, group_by_seed, trial_dir
from tandem.feel.environment import Environment
from tandem.io.tables import write_json
from tandem.learn.config import AlgorithmConfig
from tandem.objectives import OBJECTIVE_KEYS, to_maximised, to_user_units
from tandem.pareto import hypervolume, nondominated_indices
from tandem.policy.evaluate import evaluate_policies
from tandem.rng import REFERENCE_FRONT_SEEDS
from tandem.runs.simulation import episode_keys
from tandem.stats import mean
from tandem.tree import tree_index

NAME, TITLE = "reference", "The best known front"
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


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Return the trials of all algorithms except R+PPO, whose random modes contribute nothing, on the paper's fleet."""
    steps = LARGER_STEPS if scale.name == "full" else {}
    return [
        scale.trial(algorithm, seed, budget=BUDGET_FACTOR * scale.budget, **steps.get(algorithm, {}))
        for algorithm in algorithms
        if algorithm != RANDOM
        for seed in range(min(scale.seeds, MAX_SEEDS))
    ]


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Merge the fronts, evaluate the best policies again, and write the reference front as JSON."""
    sources = trials(scale, algorithms)
    points = np.concatenate([results[trial].front for trial in sources])
    trial_index = np.concatenate([np.full(len(results[trial].front), index) for index, trial in enumerate(sources)])
    policy_index = np.concatenate([np.arange(len(results[trial].front)) for trial in sources])
    best = nondominated_indices(to_maximised(points))
    evaluated = _evaluate_again(sources, trial_index[best], policy_index[best], folder)
    kept = nondominated_indices(to_maximised(evaluated))
    policies = [
        {"algorithm": sources[index].algorithm, "seed": sources[index].seed}
        | dict(zip(OBJECTIVE_KEYS, point.tolist(), strict=True))
        for index, point in zip(trial_index[best][kept], evaluated[kept], strict=True)
    ]
    rows = [
        {"algorithm": trial.algorithm, "seed": trial.seed, "hypervolume": results[trial].hypervolume}
        | {"policies": len(results[trial].front), "nondominated": int(np.sum(trial_index[best] == index))}
        for index, trial in enumerate(sources)
    ]
    write_json(folder / REFERENCE_FRONT, _document(scale, sources, results, policies))
    return {NAME: policies, TRIALS: rows}


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Return the section with the front and the contribution of each algorithm."""
    volume = _hypervolume(data[NAME])
    count, nondominated = (sum(row[key] for row in data[TRIALS]) for key in ("policies", "nondominated"))
    return ReportSection(
        name=NAME,
        title=TITLE,
        about=f"{count:,} policies of {len(data[TRIALS])} trainings of {BUDGET_FACTOR * scale.budget:,} rounds, in "
        f"larger steps; {nondominated:,} are non-dominated, and {len(data[NAME]):,} still are when evaluated on "
        f"{len(REFERENCE_FRONT_SEEDS)} other seeds: hypervolume {volume:.2f}.",
        claims=(),
        tables=(_table(data, volume),),
    )


def _evaluate_again(
    sources: list[Trial], trial_index: NDArray[np.int_], policy_index: NDArray[np.int_], folder: Path
) -> Values:
    """Evaluate policies of several runs on separate seeds; return rewards in the user's units, penalties included."""
    rewards = np.full((len(trial_index), 3), np.nan)
    for index in np.unique(trial_index):
        run = open_run(trial_dir(sources[int(index)], folder) / RUN)
        own = np.flatnonzero(trial_index == index)
        policies = tree_index(run.policies(), policy_index[own])
        batches = evaluate_policies(Environment(run.system()), policies, episode_keys(REFERENCE_FRONT_SEEDS))
        rewards[own] = to_user_units(np.concatenate([batch.reward.mean(axis=1) for batch in batches]))
    return rewards


def _hypervolume(policies: Rows) -> float:
    points = [[row[key] for key in OBJECTIVE_KEYS] for row in policies]
    return hypervolume(to_maximised(points), to_maximised(AlgorithmConfig().reference_point))


def _document(scale: Scale, sources: list[Trial], results: Results, policies: Rows) -> dict[str, Any]:
    single = {group[0].algorithm: [results[one].hypervolume for one in group] for group in group_by_seed(sources)}
    return {
        "command": f"tandem reproduce reference --scale {scale.name}",
        "scenario": {"extends": "paper", "fleet.size": scale.size, "workload.request_rate_per_s": scale.rate},
        "trainings": len(sources),
        "rounds": BUDGET_FACTOR * scale.budget,
        "options": {trial.algorithm: trial.changes for trial in sources},
        "seeds": [REFERENCE_FRONT_SEEDS.start, REFERENCE_FRONT_SEEDS.stop],
        "hypervolume": _hypervolume(policies),
        "reference": list(AlgorithmConfig().reference_point),
        "hypervolumes_of_single_trainings": single,
        "policies": policies,
    }


def _table(data: Data, volume: float) -> Table:
    contributed = group_rows(data[NAME], "algorithm")
    rows = []
    for (name,), own in group_rows(data[TRIALS], "algorithm").items():
        hypervolumes = mean([row["hypervolume"] for row in own])
        share = f"{hypervolumes.scaled(100 / volume)} %"
        rows.append((label(name), str(hypervolumes), share, str(len(contributed.get((name,), [])))))
    headings = ("", "hypervolume", "share of the best", "policies contributed")
    return Table("With ten times the budget", headings, tuple(rows))


REFERENCE = Experiment(NAME, TITLE, trials, collect, make_section)
