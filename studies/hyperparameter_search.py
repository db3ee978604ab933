"""A small search for the defaults of every algorithm, with the same budget for each of them.

    python studies/hyperparameter_search.py [--workers 12] [--trials reproduced/search] [--out docs/data/...json]

Rules, fixed before the search was run: as many configurations for every algorithm (four in a first round, two in a
second), two settings with 20 devices (with the shield, and without it at U = 2, D_max = 300), three seeds that no
reported result uses, and the budget of the scale ``full``. An algorithm's default is the configuration with the highest
mean hypervolume over settings and seeds. R+PPO is S-PPO with random modes and has its defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from tandem.experiments.executors import ProcessExecutor, SerialExecutor, default_seeds_per_job
from tandem.experiments.scale import load_scale
from tandem.experiments.sweep import Executor, JobOutcome, sweep
from tandem.experiments.trial import Trial, TrialResult, make_trials_dir
from tandem.io.tables import write_json

SIZE = 20
SEEDS = range(1000, 1003)
SETTINGS: dict[str, dict[str, Any]] = {
    "shield": {"overrides": {}},
    "no shield": {"overrides": {"training.iterations": 2, "limits.data_max": 300}, "shield": False},
}
# All values are given, so that the configurations keep their meaning when defaults change.
FIRST_ROUND: dict[str, list[dict[str, Any]]] = {
    "c-moppo": [
        {"selection_episodes": 0, "return_range": "front", "initialisation": 0.6},
        {"selection_episodes": 2, "return_range": "front", "initialisation": 0.6},
        {"selection_episodes": 2, "return_range": "box", "initialisation": 0.6},
        {"selection_episodes": 2, "return_range": "box", "initialisation": 0.8},
    ],
    "pc-ppo": [{"num_envs": envs, "dirichlet_alpha": alpha} for envs in (32, 16) for alpha in (0.7, 0.4)],
    "s-ppo": [{"num_envs": envs, "learning_rate": rate} for envs in (4, 2) for rate in (4e-3, 2e-3)],
    "pg-morl": [{"initialisation": share, "generation_steps": steps} for share in (0.6, 0.8) for steps in (10, 5)],
    "moea-d": [{"warm_start": share, "mutation_scale": scale} for share in (0.6, 0.8) for scale in (0.05, 0.1)],
    "nsga2": [{"warm_start": share, "mutation_scale": scale} for share in (0.6, 0.8) for scale in (0.05, 0.1)],
}
# The first round had one clear result: S-PPO learns more from smaller steps. All other algorithms that train ten
# policies start with it, so the second round gives them these steps, and S-PPO and PC-PPO still smaller ones.
SMALL_STEPS: dict[str, Any] = {"num_envs": 2, "learning_rate": 2e-3}
SECOND_ROUND: dict[str, list[dict[str, Any]]] = {
    "c-moppo": [{**FIRST_ROUND["c-moppo"][number], **SMALL_STEPS} for number in (0, 2)],
    "pc-ppo": [
        {"num_envs": 16, "dirichlet_alpha": 0.7, "learning_rate": 2e-3},
        {"num_envs": 8, "dirichlet_alpha": 0.7},
    ],
    "s-ppo": [{"num_envs": 2, "learning_rate": 1e-3}, {"num_envs": 1, "learning_rate": 2e-3}],
    "pg-morl": [{**FIRST_ROUND["pg-morl"][number], **SMALL_STEPS} for number in (0, 2)],
    "moea-d": [{**FIRST_ROUND["moea-d"][number], **SMALL_STEPS} for number in (1, 3)],
    "nsga2": [{**FIRST_ROUND["nsga2"][number], **SMALL_STEPS} for number in (1, 3)],
}
SEARCHED = {name: [*configs, *SECOND_ROUND[name]] for name, configs in FIRST_ROUND.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="full", help="scale with the budget (default: full, for a GPU)")
    parser.add_argument("--workers", type=int, default=1, help="processes on this machine")
    parser.add_argument("--trials", type=Path, default=Path("reproduced/search"), help="folder for the trials")
    parser.add_argument("--out", type=Path, default=Path("docs/data/hyperparameter-search.json"), help="result")
    arguments = parser.parse_args()
    executor: Executor = SerialExecutor() if arguments.workers == 1 else ProcessExecutor(arguments.workers)
    planned = {
        (algorithm, number, setting, seed): make_trial(arguments.scale, algorithm, config, setting, seed)
        for algorithm, configs in SEARCHED.items()
        for number, config in enumerate(configs)
        for setting in SETTINGS
        for seed in SEEDS
    }
    folder = make_trials_dir(arguments.trials)
    per_job = default_seeds_per_job(len(SEEDS))
    results = sweep(list(planned.values()), folder, executor, per_job, PrintedProgress())
    write_json(arguments.out, summarise({key: results[trial] for key, trial in planned.items()}, arguments.scale))


def make_trial(scale: str, algorithm: str, config: Mapping[str, Any], setting: str, seed: int) -> Trial:
    return load_scale(scale).trial(algorithm, seed, size=SIZE, curve_points=1, **SETTINGS[setting], **config)


class PrintedProgress:
    """The callback of the sweep: a line for each job."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    def on_start(self, finished: int, trials: int) -> None:
        self._console.print(f"{trials} trials, {finished} of them already finished")

    def on_job_end(self, outcome: JobOutcome) -> None:
        self._console.print(f"{outcome.job[0].name}: {outcome.failure or 'done'}")


def summarise(results: Mapping[tuple[str, int, str, int], TrialResult], scale: str) -> dict[str, Any]:
    """Return every configuration with its hypervolumes, and the number of the best one of each algorithm."""
    algorithms = {}
    for algorithm, configs in SEARCHED.items():
        rows = []
        for number, config in enumerate(configs):
            volumes = {
                setting: [round(results[algorithm, number, setting, seed].hypervolume, 3) for seed in SEEDS]
                for setting in SETTINGS
            }
            mean = fmean(volume for own in volumes.values() for volume in own)
            rows.append({"config": config, "hypervolume": volumes, "mean": round(mean, 3)})
        chosen = max(range(len(rows)), key=lambda number: rows[number]["mean"])
        algorithms[algorithm] = {"configurations": rows, "chosen": chosen}
    budget = load_scale(scale).budget
    command = "python studies/hyperparameter_search.py"
    return {"command": command, "size": SIZE, "budget": budget, "seeds": list(SEEDS), "algorithms": algorithms}


if __name__ == "__main__":
    main()
