"""Devices that compute for themselves, and a server that knows what they report, do what the simulator does."""

import numpy as np
import pytest
from small_fleet import SEED, Transport

from tandem.federated.fleet import client_round as living
from tandem.federated.fleet import single_device as alone
from tandem.federated.fleet.runner import fleet_table, run_rounds, stack_rounds
from tandem.federated.fleet.server_plan import init_server
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel import System
from tandem.policy import HEURISTICS
from tandem.runs.simulation import simulate_histories
from tandem.runs.trace import trace_table

SAME = "queue data waited_s data_age_s model_age_s model_accuracy last_gain clock_s"


@pytest.mark.parametrize("rule", ["threshold", "random"])
def test_a_fleet_decides_and_counts_as_the_simulator_does(
    system: System, problem: FleetSpec, direct: Transport, rule: str
) -> None:
    policy = HEURISTICS[rule]()
    played = [one for _, one in run_rounds(problem, policy, init_server(problem, "test"), system.rounds, direct)]
    states, outcome = stack_rounds(played)
    ((expected_states, expected),) = simulate_histories(system, policy, [SEED])
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
    assert not any(one.record.refused for one in played)


def test_the_trace_is_the_simulators_and_two_columns(system: System, problem: FleetSpec, direct: Transport) -> None:
    names = [f"device-{n}" for n in range(system.size)]
    policy = HEURISTICS["threshold"]()
    played = [one for _, one in run_rounds(problem, policy, init_server(problem, "test"), 3, direct)]
    table = fleet_table(SEED, names, played)
    simulated = trace_table(SEED, names, *next(iter(simulate_histories(system, policy, [SEED]))))
    assert [*simulated, "reported", "work_s"] == list(table)
    assert {len(column) for column in table.values()} == {3 * system.size}
    assert table["violated"].tolist() == simulated["violated"][: 3 * system.size].tolist()
    assert (table["work_s"] > 0).all()


def test_nothing_compiles_twice(problem: FleetSpec, direct: Transport) -> None:
    programs = (alone.device_round, living._serve, living._train, living._receive)
    list(run_rounds(problem, HEURISTICS["threshold"](), init_server(problem, "first"), 8, direct))
    compiled = [program._cached._cache_size() for program in programs]
    list(run_rounds(problem, HEURISTICS["round-robin"](), init_server(problem, "second"), 8, direct))
    assert [program._cached._cache_size() for program in programs] == compiled
