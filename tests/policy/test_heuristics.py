"""Hand-written policies decide within bounds, break nothing under the shield, and do what their names say."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tandem.feel import Environment, FleetState, System, build_system
from tandem.policy import HEURISTICS, DriftPlusPenalty, RandomHeuristic, RoundRobin, ServeUntilFull, Threshold
from tandem.runs import simulate
from tandem.scenario import load_scenario

KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def paper(paper_system: System) -> Environment:
    return Environment(paper_system)


@pytest.fixture(scope="module")
def state(paper: Environment) -> FleetState:
    return paper.reset(jax.random.key(0))


def with_data(state: FleetState, data: np.ndarray) -> FleetState:
    return eqx.tree_at(lambda s: s.data, state, jnp.asarray(data, float))


@pytest.mark.parametrize("name", HEURISTICS)
def test_choices_lie_in_the_unit_interval(name: str, paper: Environment, state: FleetState) -> None:
    action = HEURISTICS[name]()(paper, state, KEY)
    for choice in (action.power, action.frequency):
        assert choice.shape == (10,)
        assert np.all((np.asarray(choice) >= 0) & (np.asarray(choice) <= 1))
    assert action.train.dtype == bool


@pytest.mark.parametrize("name", HEURISTICS)
def test_nothing_is_violated_or_dropped_under_the_shield(name: str, paper_system: System) -> None:
    result = simulate(paper_system, HEURISTICS[name](), range(8))
    assert result.violation_rate.max() == 0
    assert result.dropped_requests.max() == 0
    assert result.trainers.min() > 0.2  # and yet they train


@pytest.mark.parametrize("name", HEURISTICS)
def test_every_rule_is_described(name: str) -> None:
    assert len(HEURISTICS[name].summary) > 20


def test_serve_until_full_trains_exactly_the_full(paper: Environment, state: FleetState) -> None:
    share = np.array([0.0, 0.5, 0.9, 1.0, 1.0, 0.2, 1.0, 0.99, 0.0, 1.0])
    action = ServeUntilFull()(paper, with_data(state, share * np.asarray(paper.system.worst_case.max_data)), KEY)
    assert np.array_equal(action.train, share == 1.0)


def test_threshold_trains_at_its_share(paper: Environment, state: FleetState) -> None:
    share = np.linspace(0, 1, 10)
    filled = with_data(state, share * np.asarray(paper.system.worst_case.max_data))
    assert np.array_equal(Threshold(data_share=0.5)(paper, filled, KEY).train, share >= 0.5)


def test_round_robin_gives_every_device_its_turn(paper: Environment, state: FleetState) -> None:
    turns = np.zeros(10, int)
    for number in range(10):
        now = eqx.tree_at(lambda s: s.round, with_data(state, np.ones(10)), jnp.asarray(number))
        train = np.asarray(RoundRobin(trainers=3)(paper, now, KEY).train)
        assert train.sum() == 3
        turns += train
    assert np.all(turns == 3)


def test_random_trains_with_its_chance(paper: Environment, state: FleetState) -> None:
    keys = jax.random.split(KEY, 2000)
    train = jax.vmap(lambda key: RandomHeuristic(train_chance=0.2)(paper, state, key).train)(keys)
    assert 0.18 < float(np.mean(np.asarray(train))) < 0.22


def test_drift_plus_penalty_answers_to_its_weights(paper_system: System) -> None:
    def objectives(**weights: float) -> np.ndarray:
        return simulate(paper_system, DriftPlusPenalty(**weights), range(8)).objectives.mean(axis=0)

    indifferent = objectives()
    assert objectives(energy=10.0)[2] < 0.8 * objectives(energy=0.1)[2]
    assert objectives(latency=10.0)[1] < indifferent[1]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [6.0, 2.0])
def test_drift_plus_penalty_gains_accuracy_by_weight_on_it(rate: float) -> None:
    """Training as often as possible is not accurate: a model of little data replaces a better one."""
    system = build_system(load_scenario("paper", {"workload.request_rate_per_s": rate}))
    weights = [0.3, 1.0, 3.0, 10.0, 30.0]
    accuracy = [simulate(system, DriftPlusPenalty(accuracy=w), range(8)).objectives[:, 0].mean() for w in weights]
    assert all(more >= less - 0.002 for less, more in itertools.pairwise(accuracy))
    assert accuracy[-1] > accuracy[0] + 0.02
