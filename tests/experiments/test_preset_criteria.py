"""The shipped ``paper`` preset is a fair testing ground: the criteria it was calibrated by hold for it."""

import json
from pathlib import Path

import numpy as np
import pytest

from tandem.experiments.preset_criteria import (
    DISTINCT,
    FLEET_SIZES,
    PAPER_BOX,
    REQUEST_RATES,
    CriteriaResult,
    check_criteria,
)
from tandem.scenario import load_scenario

CHOSEN = Path(__file__).resolve().parents[2] / "docs" / "data" / "preset-search.json"


@pytest.fixture(scope="module")
def verdict() -> CriteriaResult:
    return check_criteria("paper", seed=1)  # other episodes than the search saw


def test_criterion_1_a_rule_runs_clean_at_every_size_and_rate(verdict: CriteriaResult) -> None:
    assert set(verdict.violations) == {(n, rate) for n in FLEET_SIZES for rate in REQUEST_RATES}
    assert verdict.violations == dict.fromkeys(verdict.violations, 0.0)


def test_criterion_2_the_corners_are_three_different_policies(verdict: CriteriaResult) -> None:
    accuracy, latency, energy = verdict.corners
    assert latency[2] >= DISTINCT * energy[2]
    assert energy[1] >= DISTINCT * latency[1]
    assert accuracy[0] >= DISTINCT * min(latency[0], energy[0])
    assert verdict.corners_distinct


def test_criterion_3_objectives_lie_in_the_papers_box(verdict: CriteriaResult) -> None:
    low, high = np.array(PAPER_BOX).T
    assert np.all(verdict.lowest > low)
    assert np.all(verdict.highest < high)
    assert verdict.inside_box
    assert verdict.best_server_accuracy <= 1


def test_criterion_4_the_preset_is_what_the_search_chose() -> None:
    chosen = json.loads(CHOSEN.read_text())["chosen"]
    assert load_scenario("paper", chosen) == load_scenario("paper")


def test_a_scenario_without_trade_off_is_told_apart() -> None:
    """The criteria can fail: where training is free, latency and energy no longer conflict as they should."""
    flat = check_criteria("paper", {"fleet.defaults.frequency_min_hz": 3.4e9}, episodes=2)
    assert not flat.corners_distinct
