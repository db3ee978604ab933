"""The best known front of the paper's fleet, from runs with a far larger budget. Results are given as shares of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from tandem.experiments.scale import Scale
from tandem.learn.config import AlgorithmConfig
from tandem.scenario import Scenario, load_scenario
from tandem.stats import Estimate, mean

REFERENCE_FRONT = "reference-front.json"


@functools.cache
def reference_front() -> dict[str, Any]:
    """Read the front that ``tandem reproduce reference --scale full`` wrote."""
    path = resources.files("tandem.experiments") / "data" / REFERENCE_FRONT
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def share_of_best(scale: Scale, hypervolumes: Sequence[float]) -> Estimate | None:
    """Return the mean of hypervolumes, one per seed, as a share of the best known; None for another fleet."""
    fleet = {"fleet.size": scale.size, "workload.request_rate_per_s": scale.rate}
    best = reference_hypervolume(load_scenario("paper", fleet), AlgorithmConfig().reference_point)
    return None if best is None else mean(hypervolumes).scaled(1 / best)


def reference_hypervolume(scenario: Scenario, reference: Sequence[float]) -> float | None:
    """Return the best known hypervolume of a scenario over a reference point; None if none is known."""
    known = reference_front()
    overrides = dict(known["scenario"])
    fleet = load_scenario(overrides.pop("extends"), overrides)
    same = scenario.model_copy(update={"name": fleet.name}) == fleet and list(reference) == known["reference"]
    return float(known["hypervolume"]) if same else None
