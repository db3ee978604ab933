"""Measure the speed of fleets of real models: one fleet, one client after another, and many fleets at once.

    python benchmarks/federated.py [--task cifar10 --data FOLDER] [--devices 10] [--rounds 100] [--json]

The first row is a whole episode of the heuristic ``threshold`` with measured accuracy, compiled as one program. The
second replays the same rounds as federated simulators do, one compiled call for every client and step, all compiled
beforehand, and prints the share of accuracies (by device and round) that are the same. It is not 100 %: the products of
one client may be rounded differently from those of ten, which changes answers that are almost tied. The other rows
simulate many fleets at once, as training with measured rewards does.
"""

from __future__ import annotations

import argparse
import functools
import json
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tandem.federated import client
from tandem.federated.build import build_system
from tandem.federated.fedavg import federated_average
from tandem.feel import reset
from tandem.feel.environment import Environment
from tandem.policy import HEURISTICS
from tandem.policy.evaluate import fleet_bytes, max_fleets
from tandem.policy.rollout import rollout, rollout_means
from tandem.rng import FleetStream, fold_stream
from tandem.runs.simulation import episode_keys
from tandem.scenario import load_scenario

FLEETS = (8, 32)


def timed(function, *arguments):
    began = time.perf_counter()
    made = jax.block_until_ready(function(*arguments))
    return made, time.perf_counter() - began


def best_time(function, *arguments, seconds: float = 2.0) -> float:
    """Return the shortest of several runs, if they are short."""
    runs = []
    while sum(runs) < seconds:
        runs.append(timed(function, *arguments)[1])
    return min(runs)


def member(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


@functools.partial(jax.jit, static_argnums=1)
def unstack(tree, count: int):
    return [member(tree, index) for index in range(count)]


def one_by_one(system, clock_s, outcome, rounds: int):
    """Replay the rounds of an episode client by client. Returns the accuracies, [rounds, devices]."""
    task = system.measured_accuracy
    serve, update = eqx.filter_jit(client.serve), eqx.filter_jit(client.train)
    finish, enqueue = eqx.filter_jit(client.finish_training), eqx.filter_jit(client.enqueue)
    average = eqx.filter_jit(federated_average)
    fleet_key, _ = jax.random.split(episode_keys([0])[0])
    start = task.init(
        reset(system, fleet_key).queue, system.idle_round_s, fold_stream(fleet_key, FleetStream.MEASURED_ACCURACY)
    )
    server, clients, drifts = (
        start.server_model,
        unstack(start.clients, system.size),
        unstack(start.drifts, system.size),
    )
    accuracies = []
    for t in range(rounds):
        this = member(outcome, t)
        train, in_time = np.asarray(this.executed.train), np.asarray(this.trained)
        for n in range(system.size):
            limits = task.samples_per_request[n], task.data_limit[n]
            clients[n] = serve(clients[n], ~this.executed.train[n], *limits)
        accuracies.append([one.accuracy for one in clients])
        who = np.flatnonzero(in_time)
        if len(who):
            updates = [update(clients[n], task.algorithm, server, task.iterations, task.learning_rate) for n in who]
            samples = jnp.stack([clients[n].buffer_count for n in who]).astype(float)
            server = average(server, jax.tree.map(lambda *leaves: jnp.stack(leaves), *updates), samples)
        for n in np.flatnonzero(train):
            clients[n] = finish(clients[n], this.executed.train[n], this.trained[n], server)
        middle_s, admitted = clock_s[t] + this.duration_s / 2, this.arrived - this.dropped
        for n in range(system.size):
            requests = (task.pool, task.drift, drifts[n], admitted[n], middle_s, task.capacities.arrivals)
            clients[n] = enqueue(clients[n], *requests)
    return jnp.asarray(accuracies)


def measure(system, counts) -> dict:
    rule, environment = HEURISTICS["threshold"](), Environment(system)
    (states, outcome), first_s = timed(rollout, environment, rule, episode_keys([0]))
    again_s = best_time(rollout, environment, rule, episode_keys([0]))
    plain = jax.device_get((states.clock_s, outcome))
    clock_s, outcome = member(plain, 0)
    one_by_one(system, clock_s, outcome, min(system.rounds, 10))  # compiles
    replayed, replay_s = timed(one_by_one, system, clock_s, outcome, system.rounds)
    same = np.mean(np.abs(np.asarray(replayed) - np.asarray(outcome.accuracy)) < 1e-6)
    rows = []
    for count in counts:
        timed(rollout_means, environment, rule, episode_keys(range(count)))
        many_s = best_time(rollout_means, environment, rule, episode_keys(range(count)))
        rows.append({"fleets": count, "rounds_per_s": count * system.rounds / many_s})
    return {
        "processor": jax.devices()[0].device_kind,
        "devices": system.size,
        "rounds": system.rounds,
        "first_s": first_s,  # compilation included
        "again_s": again_s,
        "rounds_per_s": system.rounds / again_s,
        "one_after_another_rounds_per_s": system.rounds / replay_s,
        "ratio": replay_s / again_s,
        "same_accuracy": float(same),  # share of devices and rounds
        "accuracy": float(jnp.mean(outcome.accuracy)),
        "fleet_mib": fleet_bytes(environment) / 2**20,
        "fleets_at_once": max_fleets(environment),
        "many": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits", choices=("digits", "cifar10"))
    parser.add_argument("--data", help="where the task's data are, if it needs any")
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--fleets", type=int, nargs="*", default=FLEETS, help="how many to play at once")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    options = parser.parse_args()
    task = {"kind": options.task, **({} if options.data is None else {"path": options.data})}
    overrides = {"accuracy.task": task, "fleet.size": options.devices, "rounds": options.rounds}
    began = time.perf_counter()
    system = build_system(load_scenario("paper", overrides))
    read_s = time.perf_counter() - began
    found = {"task": options.task, "read_s": read_s, **measure(system, options.fleets)}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{options.task}, {options.devices} devices, {options.rounds} rounds, on {found['processor']}")
    print(f"{read_s:8.1f} s  to read data and model")
    print(f"{found['first_s']:8.1f} s  the first episode, compilation included")
    print(f"{found['again_s']:8.1f} s  again: {found['rounds_per_s']:.1f} rounds/s")
    print(
        f"{found['one_after_another_rounds_per_s']:8.1f}    rounds/s one device after another: {found['ratio']:.2f} "
        f"times as long; {found['same_accuracy']:.1%} of accuracies the same"
    )
    for row in found["many"]:
        print(f"{row['rounds_per_s']:8.1f}    rounds/s of {row['fleets']} fleets at once")


if __name__ == "__main__":
    main()
