"""Measure how often devices should train: accuracy over the number of trainers, estimated and measured.

    python studies/training_frequency.py SCENARIO [--task cifar10 --data FOLDER] [--trainers 0 0.1 ...] [--json]

A device that trains does not serve, and a model that is not trained ages. The heuristic ``round-robin`` is simulated
with more and more trainers per round (0.1: one device every tenth round), on the scenario's mapping and on real models.
Objectives count a training device as accuracy 0, as rewards do; the accuracy of serving devices is given beside it.
"""

from __future__ import annotations

import argparse
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tandem.api import build_system
from tandem.feel.environment import Environment
from tandem.policy import HEURISTICS
from tandem.policy.rollout import rollout
from tandem.runs.simulation import episode_keys, half_width
from tandem.scenario import load_scenario

TRAINERS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)


@eqx.filter_jit
def simulate(system, trainers, keys):
    """Return by number of trainers and episode: objectives, devices that trained, accuracy of serving devices."""

    def with_trainers(count):
        _, outcome = rollout(Environment(system), HEURISTICS["round-robin"](trainers=count), keys)
        serving = ~outcome.executed.train
        served = jnp.sum(outcome.accuracy * serving, axis=(1, 2)) / jnp.sum(serving, axis=(1, 2))
        return outcome.objectives.mean(axis=1), (~serving).sum(axis=2).mean(axis=1), served

    return jax.vmap(with_trainers)(trainers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", help="scenario whose mapping was calibrated on the task")
    parser.add_argument("--task", default="digits", choices=("digits", "cifar10"))
    parser.add_argument("--data", help="folder of the task's data, if it needs any")
    parser.add_argument("--trainers", type=float, nargs="+", default=TRAINERS, help="mean number per round")
    parser.add_argument("--rounds", type=int, help="length of an episode; default: the scenario's")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("--seeds: an interval needs at least two")
    task = {"kind": arguments.task, **({} if arguments.data is None else {"path": arguments.data})}
    length = {} if arguments.rounds is None else {"rounds": arguments.rounds}
    trainers, keys = jnp.asarray(arguments.trainers, float), episode_keys(range(arguments.seeds))
    results = {}
    for source, chosen in (("estimated", None), ("measured", task)):
        system = build_system(load_scenario(arguments.scenario, {"accuracy.task": chosen, **length}))
        results[source] = [np.asarray(values) for values in simulate(system, trainers, keys)]
    rows = [make_row(results, index, requested) for index, requested in enumerate(arguments.trainers)]
    if arguments.json:
        about = {"task": arguments.task, "processor": jax.devices()[0].device_kind, "seeds": arguments.seeds}
        print(json.dumps({**about, "rows": rows}, indent=2))
        return
    print(f"{arguments.task}: {arguments.seeds} seeds; accuracy as an objective, gain over the first row, accuracy of")
    print("serving devices")
    print("trainers  " + "".join(f"{source:39s}" for source in results) + "latency   energy")
    for row in rows:
        cells = "  ".join(format_accuracy(row[source]) for source in results)
        print(f"{row['trainers']:8.2f}  {cells}  {row['latency_s']:5.2f} s  {row['energy_j']:5.1f} J")


def make_row(results: dict, index: int, requested: float) -> dict:
    objectives, trained, _ = results["measured"]
    row = {"requested": requested, "trainers": float(trained[index].mean())}
    for source, (values, _, served) in results.items():
        accuracy = values[index, :, 0]
        gain = accuracy - values[0, :, 0]  # in the same drift realisations
        row[source] = {
            "accuracy": float(accuracy.mean()),
            "half_width_95": half_width(accuracy[:, None])[0],
            "gain_over_first": float(gain.mean()),
            "gain_half_width_95": half_width(gain[:, None])[0],
            "serving_accuracy": float(served[index].mean()),
        }
    row["latency_s"], row["energy_j"] = (float(-objectives[index, :, k].mean()) for k in (1, 2))
    return row


def format_accuracy(row: dict) -> str:
    gain = f"{row['gain_over_first']:+.3f} ± {row['gain_half_width_95']:.3f}"
    return f"{row['accuracy']:.3f} ± {row['half_width_95']:.3f}, {gain}, {row['serving_accuracy']:.3f}"


if __name__ == "__main__":
    main()
