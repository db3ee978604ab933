"""The committed reference front, which results are given as shares of."""

from __future__ import annotations

import numpy as np
import pytest
from moocore import hypervolume as independent_hypervolume

from tandem.experiments import load_scale
from tandem.experiments.reference_front import reference_front, reference_hypervolume, share_of_best
from tandem.learn.config import AlgorithmConfig
from tandem.scenario import load_scenario

POINT = AlgorithmConfig().reference_point


def test_hypervolume_is_that_of_its_nondominated_policies() -> None:
    known = reference_front()
    costs = np.array([[-one["accuracy"], one["latency_s"], one["energy_j"]] for one in known["policies"]])
    accuracy, latency_s, energy_j = known["reference"]
    assert known["hypervolume"] == pytest.approx(independent_hypervolume(costs, ref=[-accuracy, latency_s, energy_j]))
    for cost in costs[::50]:
        assert not np.any(np.all(costs <= cost, axis=1) & np.any(costs < cost, axis=1))


def test_reference_is_known_for_the_papers_fleet_only() -> None:
    paper = load_scenario("paper")
    assert reference_hypervolume(paper, POINT) == reference_front()["hypervolume"]
    assert reference_hypervolume(paper.model_copy(update={"name": "mine"}), POINT) is not None
    assert reference_hypervolume(load_scenario("paper", {"fleet.size": 11}), POINT) is None
    assert reference_hypervolume(load_scenario("paper", {"limits.queue_max": 399}), POINT) is None
    assert reference_hypervolume(paper, (0.0, 5.0, 50.0)) is None


def test_share_of_the_reference() -> None:
    best = reference_front()["hypervolume"]
    share = share_of_best(load_scale("full"), [0.8 * best, 0.9 * best])
    assert share is not None
    assert share.value == pytest.approx(0.85)
    assert share_of_best(load_scale("smoke"), [1.0]) is None
