"""Measure the selection bias of the policies that an archive keeps, and their quality in the form that is deployed.

    python studies/archive_bias.py SCENARIO [--task digits] [--oracle] [--budget 200000] [--json]

C-MOPPO is trained on a scenario's estimates or, as an oracle, on accuracy measured on a task. Its archive keeps the
policies that are non-dominated in the training episodes: sampled decisions, in a few drift realisations. Every policy
in it is then evaluated on other seeds: as it was trained, where the difference to the training episodes is selection
bias; and on the task, with sampled and with deterministic decisions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from tandem.api import build_system, train
from tandem.feel.environment import Environment
from tandem.learn.train_loop import reference_point
from tandem.pareto import hypervolume
from tandem.policy.evaluate import evaluate_policies
from tandem.runs.checkpoint import read_checkpoint
from tandem.runs.simulation import episode_keys
from tandem.runs.trainer import load_algorithm, override_shield
from tandem.scenario import load_scenario

SEEDS = range(500, 508)
OPTIONS = {"validation_episodes": 3, "archive_size": 50, "extension_steps": 8}  # as on digits at the scale full


class TrainedArchive:
    """The algorithm of a finished run, and its archive at the end of training."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.algorithm = load_algorithm(folder, build_system=build_system)
        self.archive = read_checkpoint(folder, self.algorithm, seed).checkpoint.state.policy_archive


def evaluate(trained: TrainedArchive, system, sampling: str):
    """Return [policies, 3] mean rewards of the archive's policies on new seeds, and their trainers per round."""
    snapshots = trained.archive.kept
    policies = trained.algorithm.policy(snapshots.network, snapshots.normaliser, snapshots.preference)
    valid = np.flatnonzero(np.asarray(trained.archive.archive.valid))
    batches = list(
        evaluate_policies(Environment(system), replace(policies, sampling=sampling), episode_keys(SEEDS), valid)
    )
    rewards, trainers = (
        np.concatenate([getattr(batch, name).mean(axis=1) for batch in batches]) for name in ("reward", "trainers")
    )
    return rewards, trainers


def measure(trained: TrainedArchive, task_system) -> dict:
    archive, reference = trained.archive.archive, reference_point(trained.algorithm)
    training = np.asarray(archive.points, np.float64)[np.asarray(archive.valid)]
    bias = training - evaluate(trained, trained.algorithm.environment.system, "stochastic")[0]
    sampled, sampled_trainers = evaluate(trained, task_system, "stochastic")
    deterministic, deterministic_trainers = evaluate(trained, task_system, "deterministic")
    best = int(np.argmax(sampled[:, 0]))
    return {
        "policies": len(training),
        "accuracy_bias": {"mean": float(bias[:, 0].mean()), "deviation": float(bias[:, 0].std())},
        "hypervolume": {
            "training": hypervolume(training, reference),
            "sampled": hypervolume(sampled, reference),
            "deterministic": hypervolume(deterministic, reference),
        },
        "most_accurate_when_sampled": {
            "sampled": {"accuracy": float(sampled[best, 0]), "trainers": float(sampled_trainers[best])},
            "deterministic": {
                "accuracy": float(deterministic[best, 0]),
                "trainers": float(deterministic_trainers[best]),
            },
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="paper")
    parser.add_argument("--task", default="digits")
    parser.add_argument("--oracle", action="store_true", help="train on measured accuracy")
    parser.add_argument("--budget", type=int, default=200_000, help="environment rounds of the training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    arguments = parser.parse_args()
    estimated = load_scenario(arguments.scenario)
    measured = load_scenario(arguments.scenario, {"accuracy.task": arguments.task})
    options = {"budget": arguments.budget, **OPTIONS}
    with tempfile.TemporaryDirectory() as folder:
        scenario = measured if arguments.oracle else estimated
        run = Path(folder) / "run"
        train(scenario, "c-moppo", "default", arguments.seed, run, options)
        trained = TrainedArchive(run, arguments.seed)
    result = measure(trained, build_system(override_shield(trained.algorithm.config, measured)))
    if arguments.json:
        settings = {"task": arguments.task, "oracle": arguments.oracle, "seed": arguments.seed, "options": options}
        print(json.dumps({**settings, **result}, indent=2))
        return
    bias, volumes = result["accuracy_bias"], result["hypervolume"]
    print(f"{result['policies']} policies in the archive")
    print(f"{bias['mean']:+.3f} ± {bias['deviation']:.3f} selection bias in accuracy")
    print(f"{volumes['training']:.1f} hypervolume in the training episodes")
    print(f"{volumes['sampled']:.1f} on {arguments.task}, sampled; {volumes['deterministic']:.1f} deterministic")
    for form, own in result["most_accurate_when_sampled"].items():
        print(f"most accurate policy, {form}: {own['accuracy']:.3f} with {own['trainers']:.2f} trainers per round")


if __name__ == "__main__":
    main()
