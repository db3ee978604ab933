"""Compare learning rates of the devices: too low, and drift wins; too high, and pre-training is undone.

    python studies/learning_rates.py [--task cifar10 --data FOLDER] [--rates 0 0.001 ...] [--json]

The heuristic ``threshold`` on the paper's fleet, all rates in one program: the mean measured accuracy of serving
devices, over all rounds and over the first and the last tenth of them.
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
from tandem.runs.simulation import episode_keys
from tandem.scenario import load_scenario

RATES = {
    "digits": (0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "cifar10": (0, 0.0003, 0.001, 0.002, 0.004, 0.008, 0.016),
}


@eqx.filter_jit
def simulate(system, rates, keys):
    """Return accuracy and whether devices serve, [rates, episodes, rounds, devices]."""

    def at_rate(rate):
        changed = eqx.tree_at(lambda one: one.measured_accuracy.learning_rate, system, rate)
        _, outcome = rollout(Environment(changed), HEURISTICS["threshold"](), keys)
        return outcome.accuracy, ~outcome.executed.train

    return jax.vmap(at_rate)(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits", choices=tuple(RATES))
    parser.add_argument("--data", help="folder of the task's data, if it needs any")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates; default: by task")
    parser.add_argument("--rounds", type=int, default=100, help="length of an episode")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    arguments = parser.parse_args()
    task = {"kind": arguments.task, **({} if arguments.data is None else {"path": arguments.data})}
    system = build_system(load_scenario("paper", {"accuracy.task": task, "rounds": arguments.rounds}))
    rates = arguments.rates or RATES[arguments.task]
    keys = episode_keys(range(arguments.seeds))
    accuracy, serving = map(np.asarray, simulate(system, jnp.asarray(rates, float), keys))
    tenth = max(1, arguments.rounds // 10)
    parts = {"all": slice(None), "first": slice(0, tenth), "last": slice(-tenth, None)}
    rows = [
        {"learning_rate": float(rate)}
        | {name: float(values[:, part][serves[:, part]].mean()) for name, part in parts.items()}
        for rate, values, serves in zip(rates, accuracy, serving, strict=True)
    ]
    result = {
        "task": arguments.task,
        "processor": jax.devices()[0].device_kind,
        "rounds": arguments.rounds,
        "seeds": arguments.seeds,
        "default": float(system.measured_accuracy.learning_rate),
        "accuracy": rows,
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{arguments.task}: {arguments.rounds} rounds, {arguments.seeds} seeds; default {result['default']:g}")
    print("    rate    all  first tenth  last tenth")
    for row in rows:
        print(f"{row['learning_rate']:8g}  {row['all']:.3f}  {row['first']:11.3f}  {row['last']:10.3f}")


if __name__ == "__main__":
    main()
