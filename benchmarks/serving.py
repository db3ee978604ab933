"""Measure the deployed scheduler: the time of a decision in process, from ten devices to a hundred thousand.

    python benchmarks/serving.py [RUN] [--json] [--sizes 10 30 1000 100000] [--seconds 3]

RUN is a folder of a finished run with the network deep-set; without one, a run of the preset ``quick`` is trained into
a temporary folder. Each row decides for a fleet of the run's scenario of that size, with NumPy on one thread: checks of
the report, observation, network, action mask, shield and conversion into watts and hertz. Beside it are the same
decision by the compiled JAX program, with NumPy arrays in and out, and the network alone by onnxruntime on one thread,
in the same run: the three alternate, so that other work on the machine slows all. ``import`` is the time to import what
is needed to decide. Fleets above 30 devices discard samples, since one uplink cannot keep C3 for them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported; threads only add waiting at these sizes

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime

import tandem
from tandem.feel import Environment
from tandem.feel.shield import project
from tandem.runs.run_dir import read_scenario
from tandem.serving import FleetReport, OperatingPoint, Scheduler
from tandem.serving.export import export_policies
from tandem.serving.onnx_export import build_onnx

SIZES = (10, 30, 1_000, 100_000)
LARGEST_TIMETABLE = 30
STATES = 20
PREFERENCE = (0.5, 0.3, 0.2)
IMPORT = """
import sys, time
began = time.perf_counter()
import tandem.serving
print(time.perf_counter() - began, "jax" in sys.modules)
"""


def scheduler_for(run, size):
    """The run's networks exported for a fleet of another size of the same scenario."""
    # One uplink has no room for the training that C3 demands of a thousand devices.
    scenario = read_scenario(
        run.folder, [f"fleet.size={size}", *(["limits.overflow=discard"] if size > LARGEST_TIMETABLE else [])]
    )
    system = tandem.build_system(scenario)
    policy = run.policy(0)
    file = export_policies(
        scenario,
        system,
        run.saved,
        run.front,
        sampling=policy.sampling,
        largest_fleet=policy.largest_fleet,
        origin={},
        source=str(run.folder),
    )
    scheduler = Scheduler(file, OperatingPoint(PREFERENCE))
    return scheduler, system, run.policy(scheduler.policy.index)


@eqx.filter_jit
def decide_by_jax(system, policy, state):
    action = project(system, state, policy(Environment(system), state, jax.random.key(0)))
    return action.train, system.devices.power_w(action.power), system.devices.frequency_hz(action.frequency)


def reached_states(system, policy, count):
    """States that the policy itself reaches, spread over an episode."""
    environment = Environment(system)

    @eqx.filter_jit
    def advance(state):
        return environment.step(state, policy(environment, state, jax.random.key(0)))[0]

    state, states = environment.reset(jax.random.key(1)), []
    for _ in range(count):
        state = advance(state)
        states.append(jax.tree.map(np.asarray, eqx.tree_at(lambda s: s.key, state, jax.random.key_data(state.key))))
    return states


def report_of(names, system, state):
    devices, last = system.devices, state.last_action
    return FleetReport(
        names=names,
        round=int(state.round),
        queue=state.queue,
        data=state.data,
        last_duration_s=float(state.last_duration_s),
        last_train=last.train,
        last_power_w=np.asarray(devices.power_w(jnp.asarray(last.power))),
        last_frequency_hz=np.asarray(devices.frequency_hz(jnp.asarray(last.frequency))),
        waited_s=state.waited_s,
        data_age_s=state.data_age_s,
        model_age_s=state.model_age_s,
        model_accuracy=state.model_accuracy,
        last_gain=state.last_gain,
    )


def network_alone(scheduler, count):
    """A function that applies the network by onnxruntime to random features of the fleet's size."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    file, rng = scheduler.policy_file, np.random.default_rng(0)
    model = build_onnx(file, scheduler.policy.network).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    shapes = {
        each.name: [scheduler.fleet.size if size == "devices" else size for size in each.shape]
        for each in session.get_inputs()
    }
    inputs = [
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(count)
    ]
    return lambda n: session.run(["mode_logit", "power", "frequency"], inputs[n])


def measure(run, size, seconds):
    scheduler, system, policy = scheduler_for(run, size)
    states = reached_states(system, policy, STATES if size <= 10_000 else 5)
    reports = [report_of(scheduler.fleet.names, system, state) for state in states]
    given = [eqx.tree_at(lambda s: s.key, state, jax.random.key(0)) for state in states]

    def by_numpy(n):
        return scheduler.decide(reports[n])

    def by_jax(n):
        return [np.asarray(part) for part in decide_by_jax(system, policy, given[n])]

    by_onnx = network_alone(scheduler, len(states))
    differing = 0
    for n in range(len(states)):
        found, (train, power_w, frequency_hz) = by_numpy(n), by_jax(n)
        differing += int((found.train != train).sum())
        assert np.allclose(found.power_w, power_w, rtol=1e-5)
        assert np.quantile(np.abs(found.frequency_hz / frequency_hz - 1), 0.999) < 1e-5
    times = {"numpy": [], "jax": [], "onnx": []}
    began, n = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or n < 10:
        for name, decide in (("numpy", by_numpy), ("jax", by_jax), ("onnx", by_onnx)):
            start = time.perf_counter()
            decide(n % len(states))
            times[name].append(time.perf_counter() - start)
        n += 1
    row = {"devices": size, "decisions": n, "modes_differing": differing}
    for name, values in times.items():
        row |= {f"{name}_p{q}_us": 1e6 * float(np.percentile(values, q)) for q in (50, 99)}
        row[f"{name}_min_us"] = 1e6 * min(values)
    row["ratio_to_onnx"] = row["numpy_p50_us"] / row["onnx_p50_us"]
    row["ratio_to_jax"] = row["numpy_p50_us"] / row["jax_p50_us"]
    return row


def measure_import():
    lines = [
        subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(5)
    ]
    return {"import_s": sorted(float(line[0]) for line in lines)[2], "imports_jax": lines[0][1] == "True"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="folder of a finished run; default: train the preset quick")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    parser.add_argument("--seconds", type=float, default=3.0, help="time to measure each row for (default 3)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="fleet sizes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.run is None:
            run = tandem.train(tandem.load_scenario("paper"), preset="quick", out=f"{folder}/run")
        else:
            run = tandem.open_run(arguments.run)
        importing = measure_import()
        out = sys.stderr if arguments.json else sys.stdout
        print(f"import {importing['import_s']:.2f} s, JAX imported: {importing['imports_jax']}", file=out)
        print(
            "devices  NumPy p50 us  p99 us  min us | JAX p50 us  p99 us | network by onnxruntime p50 us  p99 us | "
            "p50 to JAX  to onnxruntime  modes differ",
            file=out,
        )
        rows = []
        for size in arguments.sizes:
            row = measure(run, size, arguments.seconds)
            rows.append(row)
            text = (
                f"{size:7d} {row['numpy_p50_us']:13,.0f} {row['numpy_p99_us']:7,.0f} {row['numpy_min_us']:7,.0f} | "
                f"{row['jax_p50_us']:10,.0f} {row['jax_p99_us']:7,.0f} | "
                f"{row['onnx_p50_us']:29,.0f} {row['onnx_p99_us']:7,.0f} | "
                f"{row['ratio_to_jax']:10.2f} {row['ratio_to_onnx']:15.2f} {row['modes_differing']:13d}"
            )
            print(text, file=out, flush=True)
    if arguments.json:
        load = os.getloadavg()[0]
        machine = {"cores": os.cpu_count(), "load": load, "numpy": np.__version__, "jax": jax.__version__}
        print(json.dumps({**machine, **importing, "in_process": rows}, indent=2))


if __name__ == "__main__":
    main()
