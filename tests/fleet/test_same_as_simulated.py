"""Devices that compute for themselves, and a server that knows what they report, do what the simulator does."""

import numpy as np
import pytest
from small_fleet import SEED, Carrier

from tandem.federated.fleet import client_round as living
from tandem.federated.fleet import single_device as alone
from tandem.federated.fleet.runner import fleet_table, history, rounds
from tandem.federated.fleet.server_plan import opened
from tandem.federated.fleet.spec import Problem
from tandem.feel import System
from tandem.policy import RULES
from tandem.runs.simulation import histories
from tandem.runs.trace import trace_table

SAME = "queue data waited_s data_age_s model_age_s model_accuracy last_gain clock_s"


@pytest.mark.parametrize("rule", ["threshold", "random"])
def test_a_fleet_decides_and_counts_as_the_simulator_does(
    system: System, problem: Problem, direct: Carrier, rule: str
) -> None:
    policy = RULES[rule]()
    played = [one for _, one in rounds(problem, policy, opened(problem, "test"), system.rounds, direct)]
    states, outcome = history(played)
    ((expected_states, expected),) = histories(system, policy, [SEED])
    np.testing.assert_array_equal(outcome.executed.train, expected.executed.train)
    np.testing.assert_array_equal(outcome.trained, expected.trained)
    assert outcome.trained.sum() >= 3
    for name in SAME.split():
        np.testing.assert_allclose(getattr(states, name), getattr(expected_states, name), rtol=1e-5, atol=1e-5)
    for name in [
        "power_w",
        "frequency_hz",
        "duration_s",
        "compute_s",
        "upload_s",
        "latency_s",
        "energy_j",
        "served",
        "dropped",
    ]:
        np.testing.assert_allclose(getattr(outcome, name), getattr(expected, name), rtol=1e-5, atol=1e-5, err_msg=name)
    # Real answers of real models: trained apart and averaged, they are those of the simulator's ground truth.
    np.testing.assert_allclose(outcome.accuracy, expected.accuracy, atol=1e-6)
    np.testing.assert_allclose(outcome.objectives, expected.objectives, rtol=1e-4, atol=1e-5)
    assert not any(one.closed.refused for one in played)


def test_the_trace_is_the_simulators_and_two_columns(system: System, problem: Problem, direct: Carrier) -> None:
    names = [f"device-{n}" for n in range(system.size)]
    policy = RULES["threshold"]()
    played = [one for _, one in rounds(problem, policy, opened(problem, "test"), 3, direct)]
    table = fleet_table(SEED, names, played)
    simulated = trace_table(SEED, names, *next(iter(histories(system, policy, [SEED]))))
    assert [*simulated, "reported", "work_s"] == list(table)
    assert {len(column) for column in table.values()} == {3 * system.size}
    assert table["violated"].tolist() == simulated["violated"][: 3 * system.size].tolist()
    assert (table["work_s"] > 0).all()


def test_nothing_compiles_twice(problem: Problem, direct: Carrier) -> None:
    programs = (alone.own_round, living._serve, living._train, living._receive)
    list(rounds(problem, RULES["threshold"](), opened(problem, "first"), 8, direct))
    compiled = [program._cached._cache_size() for program in programs]
    list(rounds(problem, RULES["round-robin"](), opened(problem, "second"), 8, direct))
    assert [program._cached._cache_size() for program in programs] == compiled
