"""Measure an exchange over Flower: one round of messages, with Flower's SuperNode and with ``tandem node``.

    python benchmarks/flower_exchange.py [--devices 4] [--rounds 12]

Both run 'tandem fleet run paper --task digits --engine deployment' on this machine, one after the other: a SuperLink,
and a device and a node for each device. The overhead of a round is its time on the wall clock less the time that the
slowest device worked. The first two rounds, in which programs are compiled and nodes are found, are left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SKIPPED = 2


def measure(node: str, devices: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Return the overhead of an exchange with one kind of node."""
    command = [sys.executable, "-m", "tandem", "fleet", "run", "paper", "--task", "digits", "--engine", "deployment"]
    command += ["--node", node, "--rounds", str(rounds + SKIPPED), "--set", f"fleet.size={devices}"]
    done = subprocess.run([*command, "--out", folder, "--json"], stdout=subprocess.PIPE, check=True)
    document = json.loads(done.stdout)
    with (folder / "trace.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    work = [float(row["work_s"] or 0) for row in rows]
    slowest = [max(work[devices * n : devices * (n + 1)]) for n in range(rounds + SKIPPED)]
    overhead = [wall - busy for wall, busy in zip(document["wall_s_by_round"], slowest, strict=True)][SKIPPED:]
    return {
        "node": node,
        "reports": f"{document['reports']} of {document['reports_expected']}",
        "overhead_s_median": round(statistics.median(overhead), 3),
        "overhead_s_lowest": round(min(overhead), 3),
        "overhead_s_highest": round(max(overhead), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for node in ("flower", "tandem"):
            found.append(measure(node, arguments.devices, arguments.rounds, Path(folder) / node))
            print(json.dumps(found[-1]), flush=True)
    ratio = found[0]["overhead_s_median"] / found[1]["overhead_s_median"]
    print(json.dumps({"flower_to_tandem": round(ratio, 1), "load_1min": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
