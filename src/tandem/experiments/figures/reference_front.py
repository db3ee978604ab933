"""The reference front: the best policies of several algorithms with ten times the rounds, put together.

Which policies are not dominated is seen on the seeds that every run is measured on; the best of thousands owe some of
that to luck, so they are measured once more, on seeds of their own, and what that leaves is the front.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tandem.api import open_run
from tandem.experiments.claims import Algorithms, Experiment, ReportSection, Results, Table, write_csv
from tandem.experiments.plotting import RANDOM, label
from tandem.experiments.reference_front import REFERENCE_FRONT
from tandem.experiments.scale import Scale
from tandem.experiments.trial import RUN, Trial, Values, group_by_seed, trial_dir
from tandem.io.tables import write_json
from tandem.learn.config import AlgorithmConfig
from tandem.objectives import OBJECTIVE_KEYS, to_maximised, to_user_units
from tandem.pareto import hypervolume, nondominated_indices
from tandem.policy.evaluate import evaluate_policies
from tandem.rng import REFERENCE_FRONT_SEEDS
from tandem.runs.simulation import episode_keys
from tandem.stats import mean
from tandem.tree import tree_index

TITLE = "The best front known"
TIMES = 10  # the rounds of a training, beside those at the same scale
SEEDS = 5  # at most
# Larger steps: a tenfold budget in small ones would take a GPU ten times as long. And of the conditioned policy more
# episodes near single goals, since of its front the ends are worth most beside those of the others.
LARGER_STEPS: Mapping[str, Mapping[str, Any]] = {
    "pc-ppo": {"num_envs": 128, "dirichlet_alpha": 0.25},
    "c-moppo": {"num_envs": 32},
    "pg-morl": {"num_envs": 32},
    "s-ppo": {"num_envs": 32},
    "moea-d": {"num_envs": 32, "episodes_per_eval": 8},
    "nsga2": {"num_envs": 32, "episodes_per_eval": 8},
}


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """The paper's fleet; random modes have nothing to add."""
    steps = LARGER_STEPS if scale.name == "full" else {}
    return [
        scale.trial(algorithm, seed, budget=TIMES * scale.budget, **steps.get(algorithm, {}))
        for algorithm in algorithms
        if algorithm != RANDOM
        for seed in range(min(scale.seeds, SEEDS))
    ]


def make_section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """Put the fronts together, measure what is best once more, and write it."""
    wanted = trials(scale, algorithms)
    reference = np.array(AlgorithmConfig().reference_point)
    everyone = np.concatenate([results[cell].front for cell in wanted])
    owner = np.concatenate([np.full(len(results[cell].front), place) for place, cell in enumerate(wanted)])
    within = np.concatenate([np.arange(len(results[cell].front)) for cell in wanted])
    best = nondominated_indices(to_maximised(everyone))
    measured = _measured_again(wanted, owner[best], within[best], out)
    kept = nondominated_indices(to_maximised(measured))
    points = measured[kept]
    volume = hypervolume(to_maximised(points), to_maximised(reference))
    makers = [wanted[place] for place in owner[best][kept]]
    rows = [(cell.algorithm, cell.seed, *point) for cell, point in zip(makers, points, strict=True)]
    write_csv(out / "reference.csv", ("algorithm", "seed", *OBJECTIVE_KEYS), rows)
    write_json(out / REFERENCE_FRONT, _document(scale, wanted, results, rows, volume))
    return ReportSection(
        name="reference",
        title=TITLE,
        about=f"{len(everyone):,} policies of {len(wanted)} trainings of {TIMES * scale.budget:,} rounds, "
        f"in larger steps; {len(best):,} are not dominated, and {len(points):,} still are not when measured on "
        f"{len(REFERENCE_FRONT_SEEDS)} other seeds: hypervolume {volume:.2f}.",
        claims=(),
        tables=(_table(wanted, results, makers, volume),),
    )


def _measured_again(wanted: list[Trial], owner: Values, within: Values, out: Path) -> Values:
    """The chosen policies of each run on other seeds, in the user's units, violations counting as their penalty."""
    found = np.full((len(owner), 3), np.nan)
    for place in np.unique(owner):
        run = open_run(trial_dir(wanted[int(place)], out) / RUN)
        mine = np.flatnonzero(owner == place)
        policies = tree_index(run.policies(), within[mine])
        rewards = [
            part.reward.mean(axis=1)
            for part in evaluate_policies(run.system(), policies, episode_keys(REFERENCE_FRONT_SEEDS))
        ]
        found[mine] = to_user_units(np.concatenate(rewards))
    return found


def _document(
    scale: Scale, wanted: list[Trial], results: Results, rows: list[tuple[Any, ...]], volume: float
) -> dict[str, Any]:
    single = {kind[0].algorithm: [results[cell].hypervolume for cell in kind] for kind in group_by_seed(wanted)}
    return {
        "command": f"tandem reproduce reference --scale {scale.name}",
        "scenario": {"extends": "paper", "fleet.size": scale.size, "workload.request_rate_per_s": scale.rate},
        "trainings": len(wanted),
        "rounds": TIMES * scale.budget,
        "options": {cell.algorithm: cell.changes for cell in wanted},
        "seeds": [REFERENCE_FRONT_SEEDS.start, REFERENCE_FRONT_SEEDS.stop],
        "hypervolume": volume,
        "reference": list(AlgorithmConfig().reference_point),
        "hypervolumes_of_single_trainings": single,
        "policies": [dict(zip(("algorithm", "seed", *OBJECTIVE_KEYS), row, strict=True)) for row in rows],
    }


def _table(wanted: list[Trial], results: Results, makers: list[Trial], volume: float) -> Table:
    rows = []
    for name in dict.fromkeys(cell.algorithm for cell in wanted):
        own = mean([results[cell].hypervolume for cell in wanted if cell.algorithm == name])
        count = sum(cell.algorithm == name for cell in makers)
        rows.append((label(name), str(own), f"{own.scaled(100 / volume)} %", str(count)))
    return Table("With ten times the rounds", ("", "hypervolume", "share of the best", "policies in it"), tuple(rows))


REFERENCE = Experiment("reference", TITLE, trials, make_section)
