"""How lucky are the policies that an archive keeps, and what is left of them in the form that is used?

    python studies/archive_bias.py SCENARIO [--task digits] [--oracle] [--rounds 200000] [--json]

C-MOPPO is trained on a scenario's estimates, or on what is measured on a task, as an oracle. Its archive keeps what
nothing dominates, by the episodes of training: sampled decisions, in a few worlds. Every policy in it is then played
again on other seeds: as it was trained, where the difference to what was seen is luck; and on the task, sampled and
deterministic.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from tandem.api import train
from tandem.federated.build import build_system
from tandem.feel.environment import Environment
from tandem.learn import train_loop as engine
from tandem.pareto import hypervolume
from tandem.policy.evaluate import evaluate_policies
from tandem.runs.checkpoint import read_checkpoint
from tandem.runs.simulation import episode_keys
from tandem.runs.trainer import load_algorithm, override_shield
from tandem.scenario import load_scenario

SEEDS = range(500, 508)
OPTIONS = {"validation_episodes": 3, "archive_size": 50, "extension_steps": 8}  # as digits at scale paper


class Last:
    """The algorithm of a finished run, and its archive at the end of training."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.algorithm = load_algorithm(folder, build_system=build_system)
        self.policy_archive = read_checkpoint(folder, self.algorithm, seed).checkpoint.state.policy_archive


def again(last: Last, system, sampling: str):
    """[policies, 3] mean rewards of all that the archive holds, and their trainers a round, on seeds new to it."""
    kept = last.policy_archive.kept
    policies = replace(last.algorithm.policy(kept.network, kept.normaliser, kept.preference), sampling=sampling)
    which = np.flatnonzero(np.asarray(last.policy_archive.archive.valid))
    parts = list(evaluate_policies(Environment(system), policies, episode_keys(SEEDS), which))
    means = [np.concatenate([getattr(part, name).mean(axis=1) for part in parts]) for name in ("reward", "trainers")]
    return means[0], means[1]


def found(last: Last, task_system) -> dict:
    archive, reference = last.policy_archive.archive, engine.reference_point(last.algorithm)
    seen = np.asarray(archive.points, np.float64)[np.asarray(archive.valid)]
    luck = seen - again(last, last.algorithm.environment.system, "stochastic")[0]
    sampled, sampled_trainers = again(last, task_system, "stochastic")
    used, used_trainers = again(last, task_system, "deterministic")
    best = int(np.argmax(sampled[:, 0]))
    return {
        "policies": len(seen),
        "luck_in_accuracy": {"mean": float(luck[:, 0].mean()), "deviation": float(luck[:, 0].std())},
        "hypervolume": {
            "seen": hypervolume(seen, reference),
            "sampled": hypervolume(sampled, reference),
            "deterministic": hypervolume(used, reference),
        },
        "most_accurate_when_sampled": {
            "sampled": {"accuracy": float(sampled[best, 0]), "trainers": float(sampled_trainers[best])},
            "deterministic": {"accuracy": float(used[best, 0]), "trainers": float(used_trainers[best])},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="paper")
    parser.add_argument("--task", default="digits")
    parser.add_argument("--oracle", action="store_true", help="train on what is measured")
    parser.add_argument("--rounds", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    options = parser.parse_args()
    estimated = load_scenario(options.scenario)
    measured = load_scenario(options.scenario, {"accuracy.task": options.task})
    changes = {"budget": options.rounds, **OPTIONS}
    with tempfile.TemporaryDirectory() as folder:
        what = (measured if options.oracle else estimated, "c-moppo", "default", options.seed, Path(folder) / "run")
        train(*what, changes)
        last = Last(what[-1], options.seed)
    result = found(last, build_system(override_shield(last.algorithm.config, measured)))
    if options.json:
        asked = {"task": options.task, "oracle": options.oracle, "seed": options.seed, "options": changes}
        print(json.dumps({**asked, **result}, indent=2))
        return
    luck, volumes = result["luck_in_accuracy"], result["hypervolume"]
    print(f"{result['policies']} policies in the archive")
    print(f"{luck['mean']:+.3f} ± {luck['deviation']:.3f} accuracy, seen above what it is again")
    print(f"{volumes['seen']:.1f} hypervolume as seen")
    print(f"{volumes['sampled']:.1f} again on {options.task}, {volumes['deterministic']:.1f} deterministic")
    for form, own in result["most_accurate_when_sampled"].items():
        print(f"the most accurate, {form}: {own['accuracy']:.3f} with {own['trainers']:.2f} trainers a round")


if __name__ == "__main__":
    main()
