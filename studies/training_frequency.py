"""Does it pay to train? Fleets whose devices train in turn, now and then or often, by estimate and by measurement.

    python studies/training_frequency.py SCENARIO [--task cifar10 --data FOLDER] [--trainers 0 0.1 ...] [--json]

While a device trains it answers nobody, and a model ages when it does not. The rule ``round-robin`` is played with more
and more trainers a round (0.1: one device every tenth round), on the scenario's mapping and on real models. Objectives
count a device that trains as accuracy 0, as rewards do; accuracy over those that serve is given beside it.
"""

from __future__ import annotations

import argparse
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tandem.federated.build import build_system
from tandem.feel.environment import Environment
from tandem.policy import HEURISTICS
from tandem.policy.rollout import rollout
from tandem.runs.simulation import episode_keys, half_width
from tandem.scenario import load_scenario

TRAINERS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)


@eqx.filter_jit
def played(system, trainers, keys):
    """Of each number of trainers and episode: objectives, devices that trained, and accuracy of those that served."""

    def with_trainers(count):
        _, outcome = rollout(Environment(system), HEURISTICS["round-robin"](trainers=count), keys)
        serving = ~outcome.executed.train
        served = jnp.sum(outcome.accuracy * serving, axis=(1, 2)) / jnp.sum(serving, axis=(1, 2))
        return outcome.objectives.mean(axis=1), (~serving).sum(axis=2).mean(axis=1), served

    return jax.vmap(with_trainers)(trainers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", help="whose mapping was calibrated on the task")
    parser.add_argument("--task", default="digits", choices=("digits", "cifar10"))
    parser.add_argument("--data", help="where the task's data are, if it needs any")
    parser.add_argument("--trainers", type=float, nargs="+", default=TRAINERS, help="a round, on average")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds: two at least, for an interval")
    task = {"kind": options.task, **({} if options.data is None else {"path": options.data})}
    trainers, keys = jnp.asarray(options.trainers, float), episode_keys(range(options.seeds))
    ways = {"estimated": None, "measured": task}
    results = {
        way: [
            np.asarray(x)
            for x in played(build_system(load_scenario(options.scenario, {"accuracy.task": by})), trainers, keys)
        ]
        for way, by in ways.items()
    }
    rows = []
    for index, asked in enumerate(options.trainers):
        objectives, trained, _ = results["measured"]
        row = {"asked": asked, "trainers": float(trained[index].mean())}
        for way, (values, _, served) in results.items():
            accuracy = values[index, :, 0]
            row[way] = {
                "accuracy": float(accuracy.mean()),
                "half_width_95": half_width(accuracy[:, None])[0],
                "above_first": float((accuracy - values[0, :, 0]).mean()),  # in the same worlds
                "above_first_half_width_95": half_width((accuracy - values[0, :, 0])[:, None])[0],
                "of_those_that_serve": float(served[index].mean()),
            }
        row["latency_s"], row["energy_j"] = (float(-objectives[index, :, k].mean()) for k in (1, 2))
        rows.append(row)
    found = {"task": options.task, "processor": jax.devices()[0].device_kind, "seeds": options.seeds, "rows": rows}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{options.task}: {options.seeds} seeds; accuracy as an objective, above the first row, and of those that serve"
    )
    print("trainers  " + "".join(f"{way:39s}" for way in ways) + "latency   energy")
    for row in rows:
        by = "  ".join(_said(row[way]) for way in ways)
        print(f"{row['trainers']:8.2f}  {by}  {row['latency_s']:5.2f} s  {row['energy_j']:5.1f} J")


def _said(found: dict) -> str:
    beside = f"{found['above_first']:+.3f} ± {found['above_first_half_width_95']:.3f}"
    return f"{found['accuracy']:.3f} ± {found['half_width_95']:.3f}, {beside}, {found['of_those_that_serve']:.3f}"


if __name__ == "__main__":
    main()
