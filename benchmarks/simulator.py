"""Measure the speed of the simulator: rounds and device-rounds per second, from ten devices to a hundred thousand.

    python benchmarks/simulator.py [--json] [--seconds 2]

Each row simulates random actions on many fleets of the ``paper`` scenario at once, shield, channel and arrivals
included, in one compiled program sharded over the host's cores, and compares it with the same model stepped one fleet
at a time through Gymnasium, measured in the same run. The share of random numbers is the time of a program that only
samples what the round samples (fading and actions) over the time of the whole program.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time

import jax

jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # before JAX starts: one device per core

import gymnasium
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tandem.feel import build_system, reset, step
from tandem.feel.environment import Environment
from tandem.policy import RandomHeuristic
from tandem.scenario import load_scenario

SIZES = (10, 100, 1_000, 10_000, 100_000)
DEVICES_AT_ONCE = 204_800  # fleets are chosen so that every row holds about this many devices
MAX_FLEETS = 1_024
ROUNDS = 50


def fields_for(size: int) -> dict[str, object]:
    # On 1 MHz at most some forty devices can train on all their samples; larger fleets discard some.
    return {"fleet.size": size, "limits.overflow": "discard"}


def fleets_for(size: int) -> int:
    cores = jax.device_count()
    return max(cores, min(MAX_FLEETS, DEVICES_AT_ONCE // size) // cores * cores)


def sharded(program):
    """Compile a program with its fleets split over the cores."""
    axis_types = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("fleets",), axis_types=axis_types)
    split = PartitionSpec("fleets")
    return jax.jit(jax.shard_map(program, mesh=mesh, in_specs=split, out_specs=split, check_vma=False))


def whole_round(system):
    rule, environment = RandomHeuristic(), Environment(system)

    def program(keys):
        def one_round(states, _):
            def one_fleet(state):
                action = rule(environment, state, jax.random.fold_in(state.key, system.rounds + state.round))
                after, outcome = step(system, state, action)
                return after, outcome.reward

            states, rewards = jax.vmap(one_fleet)(states)
            return states, rewards.sum(axis=0)

        states, rewards = jax.lax.scan(one_round, jax.vmap(lambda key: reset(system, key))(keys), None, length=ROUNDS)
        return rewards.sum(axis=0, keepdims=True), states.queue

    return program


def random_numbers_only(system):
    """Sample what the round samples, and add it up so that the compiler leaves nothing out."""
    rule, environment = RandomHeuristic(), Environment(system)

    def program(keys):
        start = jax.vmap(lambda key: reset(system, key))(keys)

        def one_round(total, number):
            def sample(key, state):
                action = rule(environment, state, jax.random.fold_in(key, system.rounds + number))
                gain_key, _ = jax.random.split(jax.random.fold_in(key, number))
                return action.train + action.power + action.frequency + system.channel.gain(state.clock_s, gain_key)

            return total + jax.vmap(sample)(keys, start), None

        total, _ = jax.lax.scan(one_round, jnp.zeros((keys.shape[0], system.size)), jnp.arange(ROUNDS))
        return total

    return program


def best_time(function, argument, seconds: float) -> tuple[float, float]:
    """Return the shortest of several runs, and the time of the first, which compiles."""
    began = time.perf_counter()
    jax.block_until_ready(function(argument))
    first = time.perf_counter() - began
    runs = []
    while sum(runs) < seconds or len(runs) < 3:
        began = time.perf_counter()
        jax.block_until_ready(function(argument))
        runs.append(time.perf_counter() - began)
    return min(runs), first


def gymnasium_rounds_per_s(size: int, seconds: float) -> float:
    env = gymnasium.make("tandem/Feel-v0", scenario="paper", overrides=fields_for(size), disable_env_checker=True)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(8)]
    env.step(actions[0])
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        if env.step(actions[steps % 8])[3]:
            env.reset()
        steps += 1
    return steps / (time.perf_counter() - began)


def measure(size: int, seconds: float) -> dict[str, float]:
    system = build_system(load_scenario("paper", fields_for(size)))
    fleets = fleets_for(size)
    keys = jax.random.split(jax.random.key(0), fleets)
    whole_s, compile_s = best_time(sharded(whole_round(system)), keys, seconds)
    random_s, _ = best_time(sharded(random_numbers_only(system)), keys, seconds / 4)
    rounds_per_s = fleets * ROUNDS / whole_s
    one_by_one = gymnasium_rounds_per_s(size, seconds / 2)
    return {
        "devices": size,
        "fleets": fleets,
        "rounds_per_s": rounds_per_s,
        "device_rounds_per_s": rounds_per_s * size,
        "random_share": random_s / whole_s,
        "gymnasium_rounds_per_s": one_by_one,
        "ratio_to_gymnasium": rounds_per_s / one_by_one,
        "compile_s": compile_s - whole_s,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    parser.add_argument("--seconds", type=float, default=2.0, help="time to measure each row for (default 2)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="fleet sizes")
    arguments = parser.parse_args()
    rows = []
    if not arguments.json:
        print("devices  fleets      rounds/s  device-rounds/s  random  x Gymnasium  compile s  peak MiB")
    for size in arguments.sizes:
        row = measure(size, arguments.seconds)
        rows.append(row)
        text = (
            f"{size:7d} {row['fleets']:7d} {row['rounds_per_s']:13,.0f} {row['device_rounds_per_s']:16,.0f} "
            f"{row['random_share']:6.0%} {row['ratio_to_gymnasium']:12,.0f} {row['compile_s']:10.1f} "
            f"{row['peak_memory_mib']:9,.0f}"
        )
        print(text, file=sys.stderr if arguments.json else sys.stdout, flush=True)
    if arguments.json:
        machine = {"cores": jax.device_count(), "jax": jax.__version__, "platform": jax.default_backend()}
        print(json.dumps({**machine, "rounds": ROUNDS, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
