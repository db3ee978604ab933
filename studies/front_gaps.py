"""Find where the fronts of an algorithm have gaps: the hypervolume it would gain from the policies of the others.

    python studies/front_gaps.py                            # of PC-PPO, in docs/results/paper/pareto-fronts.csv
    python studies/front_gaps.py --algorithm c-moppo --fronts reproduced/cpu/pareto-fronts.csv

A row is a band of latency. For every seed, the policies that another algorithm has in this band are added to the front,
and the gain in hypervolume is averaged over seeds, with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.experiments.plotting import label
from tandem.learn.config import AlgorithmConfig
from tandem.objectives import to_maximised
from tandem.pareto import hypervolume
from tandem.stats import mean

ROOT = Path(__file__).resolve().parents[1]
BANDS_S = ((0.0, 2.05), (2.05, 2.5), (2.5, 2.8), (2.8, np.inf))
Front = NDArray[np.float64]


def read_fronts(path: Path) -> dict[str, dict[int, Front]]:
    """Read the objectives of every policy, to be maximised, by algorithm and seed."""
    rows: dict[str, dict[int, list[list[float]]]] = {}
    with path.open(encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            point = [float(row[key]) for key in ("accuracy", "latency_s", "energy_j")]
            rows.setdefault(row["algorithm"], {}).setdefault(int(row["seed"]), []).append(point)
    return {name: {seed: to_maximised(points) for seed, points in fronts.items()} for name, fronts in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fronts", type=Path, default=ROOT / "docs/results/paper/pareto-fronts.csv")
    parser.add_argument("--algorithm", default="pc-ppo")
    arguments = parser.parse_args()
    fronts = read_fronts(arguments.fronts)
    if arguments.algorithm not in fronts:
        parser.error(f"{arguments.fronts} has no {arguments.algorithm}; it has {', '.join(fronts)}.")
    own = fronts.pop(arguments.algorithm)
    reference = to_maximised(AlgorithmConfig().reference_point)
    start = {seed: hypervolume(front, reference) for seed, front in own.items()}

    print(f"| latency (s) | policies of {label(arguments.algorithm)} | {' | '.join(map(label, fronts))} |")
    print("|---" * (2 + len(fronts)) + "|")
    for low, high in BANDS_S:

        def inside(front: Front, low: float = low, high: float = high) -> Front:
            return front[(-front[:, 1] >= low) & (-front[:, 1] < high)]

        share = np.mean([len(inside(front)) / len(front) for front in own.values()])
        gains = [
            mean([hypervolume(np.vstack([own[s], inside(other[s])]), reference) - start[s] for s in own])
            for other in fronts.values()
        ]
        print(f"| {low:g} to {high:g} | {100 * share:.0f} % | {' | '.join(map(str, gains))} |")


if __name__ == "__main__":
    main()
