"""The best front known for the paper's fleet, from runs of a far larger budget: what shares of it are shares of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources

from tandem.experiments.estimates import Estimate, mean
from tandem.experiments.scales import Scale

REFERENCE_FRONT = "reference-front.json"
FLEET = (10, 6.0)  # devices and requests per second that it is for


def best_known() -> float | None:
    """The hypervolume of the reference front, or None where there is none."""
    path = resources.files("tandem.experiments") / "data" / REFERENCE_FRONT
    return float(json.loads(path.read_text("utf-8"))["hypervolume"]) if path.is_file() else None


def share_of_best(scale: Scale, hypervolumes: Sequence[float]) -> Estimate | None:
    """Hypervolumes, one a seed, as a share of the best known; None for another fleet than that is for."""
    best = best_known()
    if best is None or (scale.size, scale.rate) != FLEET:
        return None
    return mean(hypervolumes).scaled(1 / best)
