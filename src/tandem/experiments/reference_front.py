"""The best front known for the paper's fleet, from runs of a far larger budget: what shares of it are shares of."""

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
    """The front as ``tandem reproduce reference --scale paper`` wrote it."""
    path = resources.files("tandem.experiments") / "data" / REFERENCE_FRONT
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def share_of_best(scale: Scale, hypervolumes: Sequence[float]) -> Estimate | None:
    """Hypervolumes, one a seed, as a share of the best known; None for another fleet than that is for."""
    fleet = {"fleet.size": scale.size, "workload.request_rate_per_s": scale.rate}
    best = reference_hypervolume(load_scenario("paper", fleet), AlgorithmConfig().reference_point)
    return None if best is None else mean(hypervolumes).scaled(1 / best)


def reference_hypervolume(scenario: Scenario, reference: Sequence[float]) -> float | None:
    """The hypervolume of the best front known on a scenario, from a reference point; None where none is known."""
    known = reference_front()
    written = dict(known["scenario"])
    own = load_scenario(written.pop("extends"), written)
    same = scenario.model_copy(update={"name": own.name}) == own and list(reference) == known["reference"]
    return float(known["hypervolume"]) if same else None
