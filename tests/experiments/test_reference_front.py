"""The committed reference fronts, which results are given as shares of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from moocore import hypervolume as independent_hypervolume

from tandem.experiments import load_scale, reference_front
from tandem.experiments.reference_front import reference_fronts, reference_hypervolume, share_of_best
from tandem.experiments.trial import scenario_digest
from tandem.learn.config import AlgorithmConfig
from tandem.scenario import load_scenario

POINT = AlgorithmConfig().reference_point


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A front of the paper's fleet, and one of 30 devices without a shield."""
    changes: list[dict[str, Any]] = [{}, {"fleet.size": 30, "shield.enabled": False}]
    fronts = [
        {"scenario_digest": scenario_digest(load_scenario("paper", one)), "reference": list(POINT), "hypervolume": 70.0}
        for one in changes
    ]
    fronts[1]["hypervolume"] = 50.0
    monkeypatch.setattr(reference_front, "reference_fronts", lambda: tuple(fronts))
    return fronts


def test_hypervolume_is_that_of_its_nondominated_policies() -> None:
    for front in reference_fronts():
        costs = np.array([[-one["accuracy"], one["latency_s"], one["energy_j"]] for one in front["policies"]])
        accuracy, latency_s, energy_j = front["reference"]
        expected = independent_hypervolume(costs, ref=[-accuracy, latency_s, energy_j])
        assert front["hypervolume"] == pytest.approx(expected)
        for cost in costs[::50]:
            assert not np.any(np.all(costs <= cost, axis=1) & np.any(costs < cost, axis=1))


def test_committed_fronts_are_those_of_the_present_presets() -> None:
    for front in reference_fronts():
        overrides = dict(front["scenario"])
        scenario = load_scenario(overrides.pop("extends"), overrides)
        assert reference_hypervolume(scenario, front["reference"]) == front["hypervolume"]


def test_a_reference_is_known_for_the_same_content_only(known: list[dict[str, Any]]) -> None:
    paper = load_scenario("paper")
    assert reference_hypervolume(paper, POINT) == 70.0
    assert reference_hypervolume(paper.model_copy(update={"name": "mine"}), POINT) == 70.0
    assert reference_hypervolume(load_scenario("paper", {"fleet.size": 11}), POINT) is None
    assert reference_hypervolume(load_scenario("paper", {"limits.queue_max": 399}), POINT) is None
    assert reference_hypervolume(paper, (0.0, 5.0, 50.0)) is None
    assert reference_hypervolume(load_scenario("paper", {"fleet.size": 30}), POINT) is None
    assert reference_hypervolume(load_scenario("paper", {"fleet.size": 30, "shield.enabled": False}), POINT) == 50.0


def test_share_of_the_reference(known: list[dict[str, Any]]) -> None:
    share = share_of_best(load_scale("full"), [56.0, 63.0])
    assert share is not None
    assert share.value == pytest.approx(0.85)
    assert share_of_best(load_scale("smoke"), [1.0]) is None
