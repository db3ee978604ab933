"""Measure the studio in a browser: the first view and interactions with many policies, and what it costs a training.

    python benchmarks/studio.py                             # five runs of 500 policies, made-up fronts
    python benchmarks/studio.py --training                  # also train with and without a page that watches
    python benchmarks/studio.py --out docs/data/studio-benchmark.json

The first view is the time from the start of the navigation to the complete page, as the browser measures it, after one
visit that fills the caches of browser and server. An interaction is the time from an input to the end of the frame that
shows its effect. Needs the extra dev and a Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FIRST_VIEW_MS, INTERACTION_MS, SLOWDOWN = 2000, 100, 0.02  # aims
FLAGS = ["--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--disable-background-networking"]
TINY = ["budget=300", "preference_divisions=2", "width=8", "num_envs=2", "update_epochs=1", "num_minibatches=1"]


def tandem(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tandem", *map(str, arguments)]


@contextlib.contextmanager
def studio(runs: Path) -> Iterator[str]:
    """Start a studio; yield its address."""
    command = tandem("studio", runs, "--port", 0, "--no-open")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split(" at ")[1].split(" ")[0]
        finally:
            process.terminate()


@contextlib.contextmanager
def open_page() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next((found for found in map(shutil.which, ("chromium", "google-chrome")) if found), None)
    if path is None:
        sys.exit("There is no Chromium; install one (Debian: apt-get install chromium).")
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=path, args=FLAGS)
        yield browser.new_page(viewport={"width": 1280, "height": 800})
        browser.close()


def make_runs(folder: Path, runs: int, policies: int) -> None:
    """Train one tiny run, and copy it with made-up fronts, as sections of a sphere that differ a little."""
    settings = [part for one in TINY for part in ("--train-set", one)]
    first = folder / "run-0"
    command = tandem("train", "paper", "--set", "fleet.size=3", "--set", "rounds=10", *settings, "--out", first)
    subprocess.run(command, check=True, capture_output=True)
    document = json.loads((first / "front.json").read_text())
    for number in range(runs):
        target = folder / f"run-{number}"
        if number:
            shutil.copytree(first, target)
        rng = np.random.default_rng(number)
        weights = rng.dirichlet(np.ones(3), policies)
        points = np.sqrt(weights) * [0.4, 3, 20] + [0.3, -5 - 0.1 * number, -25]
        records = [
            {
                **document["policies"][0],
                "index": index,
                "objectives": {"accuracy": point[0], "latency_s": -point[1], "energy_j": -point[2]},
                "reward": point.tolist(),
                "preference": dict(zip(("accuracy", "latency", "energy"), one.tolist(), strict=True)),
                "network": 0,
            }
            for index, (one, point) in enumerate(zip(weights, points, strict=True))
        ]
        (target / "front.json").write_text(json.dumps({**document, "policies": records}))


def measure_page(runs: int, policies: int, repeats: int) -> dict[str, Any]:
    """Measure the first view and interactions, in milliseconds."""
    first_view, interactions = [], []
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), runs, policies)
        with studio(Path(folder)) as address, open_page() as page:
            for visit in range(repeats + 1):
                page.goto("about:blank")
                page.goto(f"{address}#front")
                page.wait_for_selector("body[data-ready=front]")
                if visit == 0:
                    page.wait_for_timeout(30_000)  # the server compiles in the background what simulations need
                    continue
                first_view.append(page.evaluate("performance.getEntriesByName('studio-ready')[0].startTime"))
                for value in ("4.5", "4", "3.5"):
                    page.get_by_test_id("limit-latency_s-number").fill(value)
                    page.wait_for_timeout(400)
                    interactions.append(page.evaluate("window.studioLastInteractionMs"))
                handle = page.get_by_test_id("triangle-handle")
                handle.focus()
                for _ in range(3):
                    handle.press("ArrowUp")
                    page.wait_for_timeout(400)
                    interactions.append(page.evaluate("window.studioLastInteractionMs"))
    return {"runs": runs, "policies": policies, "first_view_ms": first_view, "interaction_ms": interactions}


def measure_training(repeats: int) -> dict[str, Any]:
    """Train alternately with nobody watching and with a page that watches; seconds of training without compilation."""
    seconds: dict[str, list[float]] = {"alone": [], "watched": []}
    with tempfile.TemporaryDirectory() as folder, studio(Path(folder)) as address, open_page() as page:
        for repeat in range(-1, repeats):  # the first pair fills the compilation cache
            for name in seconds:
                page.goto("about:blank")
                out = Path(folder) / f"{name}-{repeat}"
                if name == "watched":
                    page.goto(f"{address}#training")
                command = tandem("train", "paper", "--preset", "quick", "--budget", 100_000, "--out", out)
                subprocess.run(command, check=True, capture_output=True)
                with (out / "progress.csv").open() as file:
                    rows = [float(row["wall_s"]) for row in csv.DictReader(file)]
                if repeat >= 0:
                    seconds[name].append(rows[-1] - rows[0])
                shutil.rmtree(out)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--policies", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--training", action="store_true", help="also measure what a watched training loses")
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    arguments = parser.parse_args()
    found = measure_page(arguments.runs, arguments.policies, arguments.repeats)
    view, inputs = found["first_view_ms"], found["interaction_ms"]
    print(f"{arguments.runs} runs of {arguments.policies} policies")
    print(f"first view:   median {statistics.median(view):.0f} ms, longest {max(view):.0f} ms (aim {FIRST_VIEW_MS})")
    print(
        f"interactions: median {statistics.median(inputs):.0f} ms, longest {max(inputs):.0f} ms (aim {INTERACTION_MS})"
    )
    if arguments.training:
        found["training_s"] = measure_training(arguments.repeats)
        alone, watched = (statistics.median(found["training_s"][name]) for name in ("alone", "watched"))
        print(
            f"training: {alone:.2f} s alone, {watched:.2f} s watched, ratio {watched / alone:.3f} (aim {1 + SLOWDOWN})"
        )
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
