"""The best known fronts of some systems, from runs with a far larger budget. Results are given as shares of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from tandem.experiments.scale import Scale
from tandem.experiments.trial import scenario_digest
from tandem.learn.config import AlgorithmConfig
from tandem.scenario import Scenario, load_scenario
from tandem.stats import Estimate, mean

REFERENCE_FRONTS = "reference-fronts.json"


@functools.cache
def reference_fronts() -> tuple[dict[str, Any], ...]:
    """Read the fronts that ``tandem reproduce reference --scale full`` wrote."""
    path = resources.files("tandem.experiments") / "data" / REFERENCE_FRONTS
    return tuple(json.loads(path.read_text("utf-8"))["fronts"])


def share_of_best(scale: Scale, hypervolumes: Sequence[float]) -> Estimate | None:
    """Return the mean of hypervolumes, one per seed, as a share of the best known; None for another fleet."""
    fleet = {"fleet.size": scale.size, "workload.request_rate_per_s": scale.rate}
    best = reference_hypervolume(load_scenario("paper", fleet), AlgorithmConfig().reference_point)
    return None if best is None else mean(hypervolumes).scaled(1 / best)


def reference_hypervolume(scenario: Scenario, reference: Sequence[float]) -> float | None:
    """Return the best known hypervolume of a scenario over a reference point; None if none is known."""
    front = find_reference_front(scenario, reference)
    return None if front is None else float(front["hypervolume"])


def find_reference_front(scenario: Scenario, reference: Sequence[float]) -> dict[str, Any] | None:
    """Return the reference front of a scenario, measured over a reference point; None if none is known.

    Scenarios are compared by content: the front of a preset that has changed since is not used.
    """
    digest = scenario_digest(scenario)
    for front in reference_fronts():
        if front["scenario_digest"] == digest and front["reference"] == list(reference):
            return front
    return None
