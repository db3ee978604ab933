"""Devices that compute separately, and a server that knows only their reports, behave as the simulator does."""

import numpy as np
import pytest
from small_fleet import SEED, Transport

from tandem.federated.fleet import client_round, single_device
from tandem.federated.fleet.decider import PolicyDecider
from tandem.federated.fleet.runner import fleet_table, run_rounds, stack_rounds
from tandem.federated.fleet.server import init_server
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel import System
from tandem.policy import HEURISTICS
from tandem.runs.simulation import simulate_histories
from tandem.runs.trace import trace_table

STATE_FIELDS = ("queue", "data", "waited_s", "data_age_s", "model_age_s", "model_accuracy", "last_gain", "clock_s")
OUTCOME_FIELDS = (
    *("power_w", "frequency_hz", "duration_s", "compute_s", "upload_s"),
    *("latency_s", "energy_j", "served", "dropped"),
)


@pytest.mark.parametrize("rule", ["threshold", pytest.param("random", marks=pytest.mark.slow)])
def test_fleet_agrees_with_the_simulator(system: System, spec: FleetSpec, direct: Transport, rule: str) -> None:
    policy = HEURISTICS[rule]()
    server = init_server(spec, "test")
    rounds = run_rounds(spec, PolicyDecider(spec.system, policy), server, system.rounds, direct)
    records = [record for _, record in rounds]
    states, outcome = stack_rounds(records)
    ((expected_states, expected),) = simulate_histories(system, policy, [SEED])
    np.testing.assert_array_equal(outcome.executed.train, expected.executed.train)
    np.testing.assert_array_equal(outcome.trained, expected.trained)
    assert outcome.trained.sum() >= 3
    for name in STATE_FIELDS:
        np.testing.assert_allclose(getattr(states, name), getattr(expected_states, name), rtol=1e-5, atol=1e-5)
    for name in OUTCOME_FIELDS:
        np.testing.assert_allclose(getattr(outcome, name), getattr(expected, name), rtol=1e-5, atol=1e-5, err_msg=name)
    # Models that were trained separately and averaged answer like those of the simulator.
    np.testing.assert_allclose(outcome.accuracy, expected.accuracy, atol=1e-6)
    np.testing.assert_allclose(outcome.objectives, expected.objectives, rtol=1e-4, atol=1e-5)
    assert not any(record.refused for record in records)
    # The trace is the simulator's, with two more columns.
    names = [f"device-{n}" for n in range(system.size)]
    table, simulated = fleet_table(SEED, names, records), trace_table(SEED, names, expected_states, expected)
    assert [*simulated, "reported", "work_s"] == list(table)
    assert {len(column) for column in table.values()} == {system.rounds * system.size}
    assert table["violated"].tolist() == simulated["violated"].tolist()
    assert (table["work_s"] > 0).all()


def test_nothing_compiles_twice(spec: FleetSpec, direct: Transport) -> None:
    programs = (single_device.device_round, client_round.serve, client_round.train, client_round.enqueue)
    decide = PolicyDecider(spec.system, HEURISTICS["threshold"]())
    list(run_rounds(spec, decide, init_server(spec, "first"), 6, direct))
    compiled = [program._cached._cache_size() for program in programs]
    list(run_rounds(spec, decide, init_server(spec, "second"), 6, direct))
    assert [program._cached._cache_size() for program in programs] == compiled
    assert max(compiled) <= 2  # one program for all devices and rounds, and one for arrays of another placement
