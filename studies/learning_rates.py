"""At which rate should devices train? Too slow, and drift wins; too fast, and what pre-training did is undone.

    python studies/learning_rates.py [--task cifar10 --data FOLDER] [--rates 0 0.001 ...] [--json]

The rule ``threshold`` on the paper's fleet, all rates in one program; the mean of measured accuracy over devices that
serve, over all rounds and over the first and the last tenth of them.
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
from tandem.runs.simulation import episode_keys
from tandem.scenario import load_scenario

RATES = {
    "digits": (0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "cifar10": (0, 0.0003, 0.001, 0.002, 0.004, 0.008, 0.016),
}


@eqx.filter_jit
def played(system, rates, keys):
    def at(rate):
        changed = eqx.tree_at(lambda s: s.measured_accuracy.learning_rate, system, rate)
        _, outcome = rollout(Environment(changed), HEURISTICS["threshold"](), keys)
        return outcome.accuracy, ~outcome.executed.train

    return jax.vmap(at)(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits", choices=tuple(RATES))
    parser.add_argument("--data", help="where the task's data are, if it needs any")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates; default: by task")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    options = parser.parse_args()
    task = {"kind": options.task, **({} if options.data is None else {"path": options.data})}
    system = build_system(load_scenario("paper", {"accuracy.task": task, "rounds": options.rounds}))
    rates = options.rates or RATES[options.task]
    accuracy, serving = map(np.asarray, played(system, jnp.asarray(rates, float), episode_keys(range(options.seeds))))
    tenth = max(1, options.rounds // 10)
    rows = []
    for rate, measured, here in zip(rates, accuracy, serving, strict=True):
        parts = {"all": slice(None), "first": slice(0, tenth), "last": slice(-tenth, None)}
        means = {name: float(measured[:, part][here[:, part]].mean()) for name, part in parts.items()}
        rows.append({"learning_rate": float(rate), **means})
    found = {
        "task": options.task,
        "processor": jax.devices()[0].device_kind,
        "rounds": options.rounds,
        "seeds": options.seeds,
        "default": float(system.measured_accuracy.learning_rate),
        "accuracy": rows,
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{options.task}: {options.rounds} rounds, {options.seeds} seeds; the default is {found['default']:g}")
    print("    rate    all  first tenth  last tenth")
    for row in rows:
        print(f"{row['learning_rate']:8g}  {row['all']:.3f}  {row['first']:11.3f}  {row['last']:10.3f}")


if __name__ == "__main__":
    main()
