"""Measure the quality of what `tandem train` delivers: several algorithms, ten times the budget, and other fleets.

    python studies/quality.py train runs/quality             # every row, five seeds: about 1.5 hours on two cores
    python studies/quality.py train runs/quality --only default --seeds 7
    python studies/quality.py report runs/quality

``train`` runs the commands that a user would run, `tandem train` and then `tandem evaluate` on new seeds with the
heuristics for comparison. Finished runs are kept and interrupted ones resumed; rows may be split over several processes
or machines. ``report`` collects the results of a folder in docs/data/quality.json and prints them, with 95 % bootstrap
intervals over the training seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from tandem.stats import mean_interval

LARGER = "fleet.size=30"
# By name: arguments of `tandem train paper`, and changed scenarios that the front is also evaluated on.
TRAININGS: dict[str, tuple[list[str], list[str]]] = {
    "default": ([], [LARGER]),
    "s-ppo": (["--algorithm", "s-ppo"], []),
    "c-moppo": (["--algorithm", "c-moppo"], []),
    "tenfold": (["--budget", "10000000"], []),
    "mixed": (["--train-set", "fleet_sizes=[5,10,15]"], [LARGER]),
    "thirty": (["--set", LARGER], []),
    "s-ppo-thirty": (["--algorithm", "s-ppo", "--set", LARGER], []),
}
KEPT = ("hypervolume", "hypervolume_interval_95", "sparsity", "expected_utility", "cardinality", "policies_played")


def tandem(*arguments: str) -> None:
    command = [sys.executable, "-m", "tandem", *arguments]
    print("$ tandem", *arguments, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def train(arguments: argparse.Namespace) -> None:
    for seed in arguments.seeds:
        for name in arguments.only:
            options, variants = TRAININGS[name]
            run = arguments.folder / f"{name}-{seed}"
            record = run / "run.json"
            if not record.exists():
                budget = [] if arguments.budget is None else ["--budget", str(arguments.budget)]
                tandem("train", "paper", *options, *budget, "--seed", str(seed), "--out", str(run))
            elif json.loads(record.read_text())["status"] != "finished":
                tandem("train", "--resume", str(run))
            for changes in ([], *([change] for change in variants)):
                out = result_path(arguments.folder, name, seed, changes)
                if not out.exists():
                    overrides = [part for change in changes for part in ("--set", change)]
                    tandem("evaluate", str(run), "--heuristics", *overrides, "--json-file", str(out))


def result_path(folder: Path, name: str, seed: int, changes: list[str]) -> Path:
    return folder / f"{'-'.join([name, str(seed), *changes])}.json"


def report(arguments: argparse.Namespace) -> None:
    rows = []
    for name, (options, variants) in TRAININGS.items():
        for changes in ([], *([change] for change in variants)):
            results = {}
            for path in sorted(arguments.folder.glob(f"{name}-*.json")):
                seed = path.stem.removeprefix(f"{name}-").split("-")[0]
                if seed.isdigit() and path == result_path(arguments.folder, name, int(seed), changes):
                    results[int(seed)] = json.loads(path.read_text())
            if results:
                rows.append(make_row(name, options, changes, dict(sorted(results.items()))))
    arguments.data.write_text(json.dumps(rows, indent=1) + "\n")
    print(
        "| trained | evaluated on | seeds | hypervolume | policies | worst violation rate | a heuristic adds at most |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        values = [one["hypervolume"] for one in row["seeds"]]
        low, high = mean_interval(values)
        policies = np.mean([one["cardinality"] for one in row["seeds"]])
        adds = max(one["rule_adds"] for one in row["seeds"])
        print(
            f"| {row['trained']} | {row['devices']} devices | {len(values)} | {np.mean(values):.2f} "
            f"[{low:.2f}, {high:.2f}] | {policies:.0f} | {max(one['violations'] for one in row['seeds']):.2%} "
            f"| {adds:.4f} |"
        )
    print()
    for one, other in (("default", "tenfold"), ("mixed", "thirty"), ("default", "thirty")):
        compare(rows, one, other)


def make_row(name: str, options: list[str], changes: list[str], results: dict[int, dict]) -> dict:
    return {
        "trained": name,
        "command": " ".join(["tandem train paper", *options]),
        "evaluated_with": changes,
        "devices": next(iter(results.values()))["devices"],
        "seeds": [
            {
                "seed": seed,
                **{key: result[key] for key in KEPT},
                "violations": result["worst_violation_rate"]["all"],
                "rule_adds": max(rule["adds_hypervolume"] for rule in result["rules"]),
            }
            for seed, result in results.items()
        ],
    }


def compare(rows: list[dict], one: str, other: str) -> None:
    """Print the share of another row's hypervolume that a row reaches on the other's fleet."""
    known = {row["trained"]: row for row in rows if row["devices"] == devices_of(rows, other)}
    if one in known and other in known:
        ours, theirs = (np.array([seed["hypervolume"] for seed in known[name]["seeds"]]) for name in (one, other))
        rng = np.random.default_rng(0)
        shares = [rng.choice(ours, len(ours)).mean() / rng.choice(theirs, len(theirs)).mean() for _ in range(10_000)]
        low, high = np.quantile(shares, [0.025, 0.975])
        print(f"{one} / {other}: {ours.mean() / theirs.mean():.1%} [{low:.1%}, {high:.1%}]")


def devices_of(rows: list[dict], name: str) -> int | None:
    return next((row["devices"] for row in rows if row["trained"] == name and not row["evaluated_with"]), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("train", help="train and evaluate unfinished rows")
    run.add_argument("folder", type=Path)
    run.add_argument("--only", nargs="+", choices=TRAININGS, default=list(TRAININGS), help="rows")
    run.add_argument("--seeds", nargs="+", type=int, default=range(5))
    run.add_argument("--budget", type=int, help="environment rounds of every training; default: as the row says")
    run.set_defaults(call=train)
    gather = commands.add_parser("report", help="collect and print the results of a folder")
    gather.add_argument("folder", type=Path)
    gather.add_argument("--data", type=Path, default=Path("docs/data/quality.json"))
    gather.set_defaults(call=report)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
