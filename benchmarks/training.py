"""Measure the speed of training: environment rounds per second of ``c-moppo`` and ``pc-ppo``, and of MORL-Baselines.

    python benchmarks/training.py [--only pc-ppo] [--json FILE] [--seconds 10] [--seeds 3]

Every row trains on the ``paper`` scenario (10 devices, 100 rounds per episode) with the algorithm's default options;
rollouts and updates count, compilation is given separately. The share of peak is the arithmetic of the networks over
what matrix products alone reach on the same machine, measured in the same run: a forward pass for the rollout, one for
the advantages, and in each epoch one forward and one backward pass, which counts as two.

PG-MORL and the PPO inside it run with their own default options on the same environment through Gymnasium, if
MORL-Baselines is installed: ``make benchmark-training`` installs it in a separate virtual environment. One iteration of
warm-up and one of evolution are run, each an eighth of the default in length with as many updates per round, and timed
part by part, with the number of threads that is fastest; PG-MORL's rate is that of a generation of 20 default
iterations and one selection of tasks. That selection may fail, since it predicts from policies with similar returns and
there may be too few: then only its PPO is measured, and the output says so. The rate of the environment alone through
Gymnasium is given as well. With ``--seeds`` whole default budgets are run, one after another.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import sys
import time
from collections import defaultdict, deque
from pathlib import Path

import jax

jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # before JAX starts: one device per core

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tandem.feel import build_system
from tandem.feel.environment import Environment
from tandem.learn import ALGORITHMS, init_checkpoint, train, validate
from tandem.policy.features import extract_features
from tandem.registration import ENV_ID
from tandem.scenario import load_scenario

NAMES = ("c-moppo", "pc-ppo")
BOXED_ID = "tandem-benchmark/Feel-v0"
FORWARD, BACKWARD = 1, 2  # arithmetic of a pass through a network, in forward passes
# PG-MORL's defaults: iterations to one selection of tasks, steps in each, and minibatches of them.
GENERATION, STEPS, MINIBATCHES = 20, 2048, 32
SHORTER = 8  # factor by which the timed iterations are shorter


def make_algorithm(name: str):
    kind = ALGORITHMS[name]
    return kind(Environment(build_system(load_scenario("paper"))), kind.config_type(**kind.presets["default"]))


def block(tree):
    jax.block_until_ready(eqx.filter(tree, eqx.is_array))
    return tree


def measure_stage(algorithm, stage: int, state, seconds: float):
    """Run some chunks of a stage; return the state, rounds per second, and the extra time of the first chunk."""
    plan = algorithm.stages[stage]
    began = time.perf_counter()
    state, _ = block(algorithm.run_chunk(stage, state))
    first_s = time.perf_counter() - began
    chunks, began = 0, time.perf_counter()
    while chunks < 3 or time.perf_counter() - began < seconds:
        state, _ = block(algorithm.run_chunk(stage, state))
        chunks += 1
    chunk_s = (time.perf_counter() - began) / chunks
    return state, plan.steps * plan.rounds_per_step / chunk_s, first_s - chunk_s


def flop_per_round(algorithm) -> float:
    """Return the arithmetic of the networks per round, as XLA counts a forward pass for one fleet."""
    network = algorithm.init_network(jax.random.key(0))
    environment = algorithm.environment
    features = extract_features(environment, environment.reset(jax.random.key(0)))
    arrays, rest = eqx.partition(network, eqx.is_array)

    def forward(arrays, features, preference):
        return eqx.combine(arrays, rest)(features, preference)

    analysis = jax.jit(forward).lower(arrays, features, jnp.full(3, 1 / 3)).cost_analysis()
    return analysis["flops"] * (2 * FORWARD + algorithm.config.update_epochs * (FORWARD + BACKWARD))


def peak_flop_per_s(size: int = 1024, repeats: int = 8) -> float:
    """Return the best rate of several runs of matrix products on all devices at once."""
    size = size if jax.default_backend() == "cpu" else 8 * size
    devices = jax.device_count()

    def products(matrices):
        return jax.lax.fori_loop(0, repeats, lambda _, product: (product @ matrices) / size, matrices)

    split = PartitionSpec("devices")
    mesh = Mesh(jax.devices(), ("devices",))
    program = jax.jit(jax.shard_map(products, mesh=mesh, in_specs=split, out_specs=split, check_vma=False))
    matrices = jnp.ones((devices, size, size), jnp.float32)
    block(program(matrices))
    times = []
    for _ in range(10):
        began = time.perf_counter()
        block(program(matrices))
        times.append(time.perf_counter() - began)
    return devices * repeats * 2 * size**3 / min(times)


def measure(name: str, seconds: float, peak: float) -> list[dict]:
    """Return a row for every stage with its own program."""
    algorithm = make_algorithm(name)
    flop = flop_per_round(algorithm)
    state = init_checkpoint(algorithm, 0).state
    rows = []
    for stage in range(min(2, len(algorithm.stages))):
        if stage > 0:
            state = block(algorithm.begin_stage(stage, state))
        state, rounds_per_s, compile_s = measure_stage(algorithm, stage, state, seconds)
        rows.append(
            {
                "algorithm": name,
                "stage": algorithm.stages[stage].name,
                "rounds_per_s": rounds_per_s,
                "compile_s": compile_s,
                "gflop_per_s": rounds_per_s * flop / 1e9,
                "share_of_peak": rounds_per_s * flop / peak,
            }
        )
    return rows


def whole_run_s(name: str, seed: int) -> float:
    """Train with the whole default budget, validation included; return the seconds."""
    algorithm = make_algorithm(name)
    began = time.perf_counter()
    ((checkpoint, _),) = deque(train(algorithm, init_checkpoint(algorithm, seed)), maxlen=1)
    validate(algorithm, checkpoint, seed)
    return time.perf_counter() - began


def boxed_fleet(render_mode: str | None = None):
    """Make the environment that PG-MORL needs: with box actions, and a render mode that it requests but never uses."""
    return gymnasium.make(ENV_ID, action_format="box").unwrapped


def environment_rounds_per_s(seconds: float) -> float:
    env = boxed_fleet()
    env.reset(seed=0)
    action = env.action_space.sample()
    env.step(action)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        if env.step(action)[3]:
            env.reset()
        steps += 1
    return steps / (time.perf_counter() - began)


def fastest_threads(agent) -> int:
    """Return the number of threads with which PyTorch trains fastest; small networks may be far slower with more."""
    import torch

    def seconds_with(threads: int) -> float:
        torch.set_num_threads(threads)
        began = time.perf_counter()
        agent.train(began, 0, 1)
        return time.perf_counter() - began

    seconds_with(1)  # the environments compile
    return min({1, os.cpu_count() or 1}, key=seconds_with)


def measure_morl_baselines(seconds: float) -> list[dict]:
    """Return rounds per second of PG-MORL, of its PPO alone, and of the environment alone."""
    os.environ.setdefault("WANDB_MODE", "disabled")
    import torch
    from morl_baselines.multi_policy.pgmorl.pgmorl import PGMORL

    gymnasium.register(id=BOXED_ID, entry_point=boxed_fleet, disable_env_checker=True)
    spent_s: dict[str, list[float]] = defaultdict(list)

    class Timed(PGMORL):
        """PG-MORL with a timer around each of its parts."""

        def __getattribute__(self, name: str):
            attribute = super().__getattribute__(name)
            part = name.removeprefix("_PGMORL__")
            if part not in ("train_all_agents", "task_weight_selection", "eval_all_agents"):
                return attribute

            def timed(*args, **kwargs):
                began = time.perf_counter()
                attribute(*args, **kwargs)
                spent_s[part].append(time.perf_counter() - began)

            return timed

    with contextlib.redirect_stdout(sys.stderr):  # it prints its progress
        worst = np.asarray([0.0, -5.0, -44.0]) * 100
        agent = Timed(
            BOXED_ID,
            worst,
            warmup_iterations=1,
            evolutionary_iterations=1,
            steps_per_iteration=STEPS // SHORTER,
            num_minibatches=MINIBATCHES // SHORTER,
            log=False,
            seed=0,
            device="cpu",
        )
        threads = fastest_threads(agent.agents[0])
        torch.set_num_threads(threads)
        rounds = agent.steps_per_iteration * agent.num_envs * agent.pop_size
        failure = ""
        try:
            agent.train(total_timesteps=2 * rounds, eval_env=boxed_fleet(), ref_point=worst)
        except ValueError as error:
            failure = str(error)

    iteration_s = min(spent_s["train_all_agents"])
    rows = [
        {"algorithm": "environment through Gymnasium", "rounds_per_s": environment_rounds_per_s(seconds / 4)},
        {"algorithm": f"MORL-Baselines PPO, threads: {threads}", "rounds_per_s": rounds / iteration_s},
    ]
    if failure:
        return [*rows, {"algorithm": "MORL-Baselines PG-MORL", "failure": failure}]
    between_s = min(spent_s["task_weight_selection"]) + min(spent_s["eval_all_agents"])
    generation_s = GENERATION * SHORTER * iteration_s + between_s
    rate = GENERATION * SHORTER * rounds / generation_s
    return [*rows, {"algorithm": "MORL-Baselines PG-MORL", "rounds_per_s": rate, "between_generations_s": between_s}]


def machine() -> dict:
    device = jax.devices()[0]
    return {
        "platform": jax.default_backend(),
        "device": device.device_kind,
        "devices": jax.device_count(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "jax": jax.__version__,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, help="one algorithm, without MORL-Baselines")
    parser.add_argument("--seconds", type=float, default=10.0, help="time to measure each row for (default 10)")
    parser.add_argument("--seeds", type=int, default=0, help="also run this many whole default budgets, and time them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to a file")
    arguments = parser.parse_args()
    names = (arguments.only,) if arguments.only else NAMES

    result = {"machine": machine(), "peak_gflop_per_s": peak_flop_per_s() / 1e9, "rows": [], "morl_baselines": []}
    about = result["machine"]
    print(
        f"{about['devices']} x {about['device']} ({about['platform']}), {about['cores']} cores, JAX {about['jax']}, ",
        end="",
    )
    print(f"load {about['load']:.1f}; matrix products reach {result['peak_gflop_per_s']:,.0f} GFLOP/s")
    print(f"{'algorithm':24s} {'stage':15s} {'rounds/s':>10s} {'compile s':>10s} {'GFLOP/s':>8s} {'of peak':>8s}")
    for name in names:
        for row in measure(name, arguments.seconds, result["peak_gflop_per_s"] * 1e9):
            result["rows"].append(row)
            print(
                f"{row['algorithm']:24s} {row['stage']:15s} {row['rounds_per_s']:10,.0f} {row['compile_s']:10.1f} "
                f"{row['gflop_per_s']:8,.0f} {row['share_of_peak']:8.0%}",
                flush=True,
            )

    if arguments.only is None and importlib.util.find_spec("morl_baselines") is None:
        print("MORL-Baselines is not installed: 'make benchmark-training' installs it and prints the ratio to it.")
    elif arguments.only is None:
        result["morl_baselines"] = measure_morl_baselines(arguments.seconds)
        for row in result["morl_baselines"]:
            if "failure" in row:
                print(f"{row['algorithm']}: its selection of tasks failed ({row['failure']}); see its PPO alone")
                continue
            ratios = ", ".join(f"{ours['rounds_per_s'] / row['rounds_per_s']:.0f}x" for ours in result["rows"])
            print(f"{row['algorithm']:40s} {row['rounds_per_s']:10,.0f}   the rows above: {ratios}", flush=True)

    for name in names if arguments.seeds else ():
        times = [whole_run_s(name, seed) for seed in range(arguments.seeds)]
        result.setdefault("whole_runs_s", {})[name] = times
        each = ", ".join(f"{seconds:.0f}" for seconds in times)
        print(f"{name}: whole default budgets, compiled above, took {each} s, together {sum(times):.0f} s", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
