"""The shipped ``paper`` preset meets the criteria that it was searched by."""

import itertools
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marks import slow_after
from tandem.experiments.preset_criteria import (
    DISTINCT,
    FLEET_SIZES,
    PAPER_BOX,
    REQUEST_RATES,
    Cell,
    CriteriaResult,
    build_cell,
    check_at_default_size,
    check_criteria,
    find_capacity,
    heuristic_family,
    most_data,
    sweep_cells,
)
from tandem.feel import Action, Environment, System, build_system
from tandem.feel.shield import project
from tandem.policy import HEURISTICS
from tandem.runs import simulate
from tandem.scenario import load_scenario

CHOSEN = Path(__file__).resolve().parents[2] / "docs" / "data" / "preset-search.json"
MOST_WORK = Cell(10, 10.0)
KEPT = 5  # C1 to C5 depend on the policy; the action space ensures C6 to C8


@pytest.fixture(scope="module")
def criteria() -> CriteriaResult:
    return check_at_default_size("paper", {}, episodes=2, seed=1)  # other episodes than the search used


def assert_nothing_is_lost(system: System, name: str, seeds: range) -> None:
    result = simulate(system, HEURISTICS[name](), seeds)
    assert result.violation_rates[:, :KEPT].max() == 0
    assert result.violation_rate.max() == 0
    assert result.discarded_samples.max() == 0
    assert result.dropped_requests.max() == 0
    assert result.made_samples.min() > 0


def test_the_sweeps_are_two_axes() -> None:
    cells = sweep_cells("paper")
    assert {cell.size for cell in cells if cell.rate == 6.0} == set(FLEET_SIZES)
    assert {cell.rate for cell in cells if cell.size == 10} == set(REQUEST_RATES)
    assert len(cells) == len(FLEET_SIZES) + len(REQUEST_RATES) - 1
    assert MOST_WORK in cells


def test_criterion_1_at_the_highest_rate() -> None:
    system = build_cell("paper", None, MOST_WORK)
    for name in HEURISTICS:
        assert_nothing_is_lost(system, name, range(100, 102))


@pytest.mark.parametrize("name", slow_after(2, HEURISTICS))
def test_nothing_is_lost_on_jetson_boards(name: str) -> None:
    assert_nothing_is_lost(build_system(load_scenario("jetson")), name, range(100, 104))


@pytest.mark.soak
def test_all_criteria_together() -> None:
    result = check_criteria("paper", seed=1)
    assert set(result.losses) == set(sweep_cells("paper"))
    assert all(set(by_rule) == set(HEURISTICS) for by_rule in result.losses.values())
    assert result.nothing_lost
    assert result.corners_distinct
    assert result.inside_box


@pytest.mark.slow
def test_preset_without_shield_fails_criterion_1() -> None:
    with pytest.raises(AssertionError):
        assert_nothing_is_lost(build_cell("paper", {"shield.enabled": False}, MOST_WORK), "random", range(100, 102))


def test_every_heuristic_decides_about_the_preset() -> None:
    assert {type(members[0]) for members in heuristic_family()} == set(HEURISTICS.values())


@pytest.mark.slow
def test_a_policy_has_a_choice_in_every_fleet(criteria: CriteriaResult) -> None:
    assert criteria.spare_trainers >= 1


def test_fleets_beyond_capacity_have_none() -> None:
    assert find_capacity("paper", {"training.iterations": 3, "limits.data_max": 200}) is None


@pytest.mark.slow
def test_criterion_2_the_corners_are_three_different_policies(criteria: CriteriaResult) -> None:
    accuracy, latency, energy = criteria.corners
    assert latency[2] >= DISTINCT * energy[2]
    assert energy[1] >= DISTINCT * latency[1]
    assert accuracy[0] >= DISTINCT * min(latency[0], energy[0])
    assert criteria.corners_distinct


@pytest.mark.slow
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
    """Where the lowest frequency is high and switching costs nothing, latency and energy no longer conflict."""
    changes = {"fleet.defaults.frequency_min_hz": 3.4e9, "fleet.defaults.switch_energy_j": 0.0}
    flat = check_at_default_size("paper", changes, episodes=2, seed=1)
    assert not flat.corners_distinct


def test_most_data_is_the_most_that_the_shield_lets_a_round_train_on(paper_system: System) -> None:
    """Random buffers, and full buffers of some devices beside empty ones; all are willing to train."""
    state = Environment(paper_system).reset(jax.random.key(0))
    size, worst_case = paper_system.size, paper_system.worst_case
    full, upload_s = np.asarray(worst_case.max_data, np.float64), np.asarray(worst_case.upload_s, np.float64)
    everyone = Action(jnp.ones(size, bool), jnp.ones(size), jnp.ones(size))

    @jax.jit
    def trained(data: jax.Array, turn: jax.Array) -> jax.Array:
        filled = eqx.tree_at(lambda s: (s.data, s.queue, s.round), state, (data, jnp.zeros(size), turn))
        return jnp.sum(jnp.where(project(paper_system, filled, everyone).train, data, 0.0))

    generator = np.random.default_rng(0)
    shares = generator.uniform(0.3, 1, (500, size))
    buffers = list(full * shares * (generator.uniform(0, 1, shares.shape) < generator.uniform(0, 1, (500, 1))))
    # What fits beside the uploads of k trainers, in the buffers of any k devices.
    hz_per_cycles = np.asarray(paper_system.devices.frequency_max_hz / paper_system.devices.training_cycles_per_sample)
    for k in range(1, size + 1):
        fitting = np.minimum(full, hz_per_cycles * np.maximum(float(worst_case.round_limit_s) - k * upload_s, 0.0))
        for chosen in itertools.combinations(range(size), k):
            buffers.append(np.where(np.isin(np.arange(size), chosen), 0.9999 * fitting, 0.0))
    turns = generator.integers(0, 16, len(buffers))
    most = float(jax.vmap(trained)(jnp.asarray(np.array(buffers), jnp.float32), jnp.asarray(turns, jnp.int32)).max())
    assert 0.99 * most_data(paper_system) < most <= most_data(paper_system) * (1 + 1e-5)
