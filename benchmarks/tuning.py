"""Measure what background tuning gains: the same fleet with a version that is tuned, and with one that is not.

    python benchmarks/tuning.py [RUN] [--seeds 5] [--budget 100000] [--json FILE] [--figure FILE]

RUN is a finished run on the scenario ``paper`` at half of its request rate; without one, a run of the preset ``quick``
is trained into a temporary folder. A simulated fleet is served for ``BEFORE`` rounds. Then, in the cases ``changed``,
its request rates double and its devices are 1.6 times as far away (7.7 dB less gain), and it is served for ``RECORDED``
more rounds. All rounds are stored as the service stores them. One tuning follows, and then the fleet goes on from the
same state with both versions for ``AFTER`` rounds. The gain is the difference of the mean utilities of these rounds, on
the scale that the tuning reports, with a 95 % interval over seeds (Student's t).
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

import tandem
from tandem.feel import build_system
from tandem.serving import OperatingPoint, Scheduler
from tandem.serving.export import export_run
from tandem.serving.service import publish, unpack_policy_file
from tandem.serving.simulated_fleet import SimulatedFleet
from tandem.serving.storage import NewOutcome, NewRound, Store
from tandem.serving.tuning import TuningConfig, Utility, tune_store

BEFORE, RECORDED, AFTER = 100, 200, 300
RATE = 3  # requests per second and device; the preset has 6
FURTHER = 1.6
POINTS = {
    "latency first": (0.1, 0.8, 0.1),
    "energy first": (0.1, 0.1, 0.8),
    "accuracy first": (0.8, 0.1, 0.1),
}


def systems_of(run):
    """The system of the training, and the one after the change."""
    changes = {
        "workload.request_rate_per_s": 2 * RATE,
        "fleet.defaults.distance_m": {"uniform": [300 * FURTHER, 700 * FURTHER]},
    }
    return run.system(), build_system(tandem.load_scenario("paper", changes))


def serve(fleet, scheduler, rounds, store=None):
    """Serve some rounds; returns rewards and violations by round. With a store, rounds are recorded in it."""
    rewards, violated = [], []
    revision = None if store is None else store.read_state().revision
    for _ in range(rounds):
        number, report = fleet.round, fleet.report()
        body = json.dumps(fleet.report_document()).encode() if store is not None else b""
        decision = scheduler.decide(report)
        outcome = fleet.advance(decision.train, decision.power_w, decision.frequency_hz)
        if store is not None:
            answer, done = (json.dumps(each).encode() for each in (decision.document(), outcome.document(number)))
            trainers = int(decision.train.sum())
            item = NewRound(number, b"", body, answer, len(report.names), trainers, decision.version, {}, revision)
            store.commit([item, NewOutcome(number, b"", done)])
        accuracy, latency_s, energy_j = outcome.objectives
        rewards.append((accuracy, -latency_s, -energy_j))
        violated.append(outcome.violated)
    rewards = np.array(rewards)
    penalty = np.asarray(fleet.system.penalty, np.float64)
    return np.where(np.array(violated)[:, None], penalty, rewards), np.array(violated)


def measure(file, before, after, point, seed, budget, folder):
    """One seed of one case; returns the report of the tuning, and utilities and violations of both versions."""
    store = Store.open(str(folder / "tandem.db"))
    publish(store, file, activate=True, by="benchmark")
    store.set_operating_point(point.document(), "benchmark")
    fleet, scheduler = SimulatedFleet(before, file.device_names, seed), Scheduler(file, point)
    serve(fleet, scheduler, BEFORE, store)
    fleet.change_system(after)
    serve(fleet, scheduler, RECORDED, store)
    began = time.perf_counter()
    tuning = tune_store(store, TuningConfig(budget=budget, seed=seed, window=BEFORE + RECORDED))
    seconds = time.perf_counter() - began
    active = unpack_policy_file(store.read_version(store.read_state().version))
    store.close()
    scale = tuning.document["utility_scale"]
    utility = Utility.of(point, np.array([scale["low"], scale["high"]]))
    row = {"seed": seed, "published": tuning.document["published"], "reason": tuning.document["reason"]}
    row |= {"candidate": tuning.document["candidate"], "tuning_s": seconds}
    series = {}
    for name, version in (("frozen", file), ("tuned", active)):
        rewards, violated = serve(copy.copy(fleet), Scheduler(version, point), AFTER)
        series[name] = utility.of_rewards(rewards)
        row[name] = {
            "utility": float(series[name].mean()),
            "rewards": rewards.mean(axis=0).tolist(),
            "violation_rate": float(violated.mean()),
        }
    return row, series


def interval(values):
    """Mean and 95 % interval."""
    values = np.asarray(values)
    half = float(stdtrit(len(values) - 1, 0.975)) * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "interval_95": [float(values.mean() - half), float(values.mean() + half)]}


def write_figure(path, series):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(series), figsize=(4 * len(series), 3), sharey=False, squeeze=False)
    for axis, (case, runs) in zip(axes[0], series.items(), strict=True):
        for name, colour in (("frozen", "tab:grey"), ("tuned", "tab:blue")):
            rounds = np.array([run[name] for run in runs])
            smooth = np.array([np.convolve(one, np.ones(20) / 20, "valid") for one in rounds])
            axis.plot(smooth.mean(axis=0), color=colour, label=name)
            axis.fill_between(range(smooth.shape[1]), smooth.min(axis=0), smooth.max(axis=0), color=colour, alpha=0.2)
        axis.set(title=case, xlabel="round after the tuning", ylabel="utility, mean of 20 rounds")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.run is None:
            scenario = tandem.load_scenario("paper", {"workload.request_rate_per_s": RATE})
            print("training a run of the preset quick", file=sys.stderr, flush=True)
            tandem.train(scenario, preset="quick", out=folder / "run")
        run = tandem.open_run(options.run or folder / "run")
        file, (calm, changed) = export_run(run), systems_of(run)
        cases = [(f"changed, {name}", changed, weights) for name, weights in POINTS.items()]
        cases.append(("unchanged, latency first", calm, POINTS["latency first"]))
        results, series = {}, {}
        for case, after, weights in cases:
            rows, series[case] = [], []
            for seed in range(options.seeds):
                place = folder / f"{len(results)}-{seed}"
                place.mkdir()
                row, one = measure(file, calm, after, OperatingPoint(weights), seed, options.budget, place)
                rows.append(row)
                series[case].append(one)
                print(f"{case}, seed {seed}: {row['reason']}", file=sys.stderr, flush=True)
            gains = [row["tuned"]["utility"] - row["frozen"]["utility"] for row in rows]
            results[case] = {"gain": interval(gains), "published": sum(bool(row["published"]) for row in rows)}
            results[case] |= {
                name: {"violation_rate": float(np.mean([row[name]["violation_rate"] for row in rows]))}
                for name in ("frozen", "tuned")
            }
            results[case]["seeds"] = rows
            low, high = results[case]["gain"]["interval_95"]
            print(
                f"{case}: {results[case]['published']} of {options.seeds} published, utility "
                f"{results[case]['gain']['mean']:+.3f} [{low:+.3f}, {high:+.3f}], rounds in violation "
                f"{results[case]['frozen']['violation_rate']:.2%} frozen, "
                f"{results[case]['tuned']['violation_rate']:.2%} tuned",
                flush=True,
            )
        command = " ".join(["python benchmarks/tuning.py", *sys.argv[1:]])
        if options.json is not None:
            options.json.write_text(json.dumps({"command": command, "cases": results}, indent=1) + "\n")
        if options.figure is not None:
            write_figure(options.figure, series)


if __name__ == "__main__":
    main()
