"""The shipped ``paper`` preset meets the criteria that it was searched by."""

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
    check_at_default_size,
    check_criteria,
)
from tandem.scenario import load_scenario

CHOSEN = Path(__file__).resolve().parents[2] / "docs" / "data" / "preset-search.json"


@pytest.fixture(scope="module")
def criteria() -> CriteriaResult:
    return check_at_default_size("paper", {}, episodes=2, seed=1)  # other episodes than the search used


@pytest.mark.slow
def test_criterion_1_no_violations_at_any_size_and_rate() -> None:
    result = check_criteria("paper", seed=1)
    assert set(result.violations) == {(n, rate) for n in FLEET_SIZES for rate in REQUEST_RATES}
    assert result.violations == dict.fromkeys(result.violations, 0.0)
    assert result.no_violations
    assert result.corners_distinct
    assert result.inside_box


def test_criterion_2_the_corners_are_three_different_policies(criteria: CriteriaResult) -> None:
    accuracy, latency, energy = criteria.corners
    assert latency[2] >= DISTINCT * energy[2]
    assert energy[1] >= DISTINCT * latency[1]
    assert accuracy[0] >= DISTINCT * min(latency[0], energy[0])
    assert criteria.corners_distinct


def test_criterion_3_objectives_lie_in_the_papers_box(criteria: CriteriaResult) -> None:
    low, high = np.array(PAPER_BOX).T
    assert np.all(criteria.lowest > low)
    assert np.all(criteria.highest < high)
    assert criteria.inside_box
    assert criteria.best_server_accuracy <= 1


def test_criterion_4_the_preset_is_what_the_search_chose() -> None:
    chosen = json.loads(CHOSEN.read_text())["chosen"]
    assert load_scenario("paper", chosen) == load_scenario("paper")


def test_scenario_without_trade_off_fails_criterion_2() -> None:
    """Where the lowest frequency is high, latency and energy no longer conflict."""
    flat = check_at_default_size("paper", {"fleet.defaults.frequency_min_hz": 3.4e9}, episodes=2, seed=1)
    assert not flat.corners_distinct
