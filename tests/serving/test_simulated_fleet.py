"""The simulated fleet: it behaves as the simulator does, and wrong decisions have consequences."""

import dataclasses
import json

import equinox as eqx
import jax
import numpy as np
import pytest
from exports import Case, make_case, report_of

from tandem.feel import Environment, System
from tandem.policy.rollout import rollout
from tandem.serving import Scheduler
from tandem.serving.bodies import DecisionRequest, OutcomeRequest, parse
from tandem.serving.client import encode_report
from tandem.serving.simulated_fleet import SimulatedFleet, SimulatedOutcome

SEED = 3


@pytest.fixture(scope="module")
def paper() -> Case:
    return make_case("paper", 10, "conditioned", 10)


def start(case: Case, **options: int) -> SimulatedFleet:
    return SimulatedFleet(case.system, case.file.device_names, SEED, **options)


def serve_all(fleet: SimulatedFleet) -> SimulatedOutcome:
    devices = fleet.system.devices
    return fleet.advance(np.zeros(10, bool), devices.power_min_w, devices.frequency_max_hz)


def test_scheduler_and_fleet_reproduce_a_rollout_and_go_on_after_it(paper: Case) -> None:
    _, outcomes = rollout(Environment(paper.system), paper.policy, jax.random.key(SEED)[None])
    fleet, scheduler = start(paper), Scheduler(paper.file)
    rounds, trainers = paper.system.rounds, []
    for number in range(3 * rounds):
        report = fleet.report()
        assert report.round == number
        decision = scheduler.decide(report)
        outcome = fleet.advance(decision.train, decision.power_w, decision.frequency_hz)
        assert outcome.violations == ()
        assert outcome.late == ()
        trainers.append(int(outcome.train.sum()))
        if number < rounds:
            wanted = jax.tree.map(lambda leaf, at=number: np.asarray(leaf[0, at]), eqx.filter(outcomes, eqx.is_array))
            np.testing.assert_array_equal(outcome.train, wanted.executed.train)
            np.testing.assert_allclose(outcome.objectives, wanted.objectives * [1, -1, -1], rtol=1e-4)
            np.testing.assert_allclose(outcome.duration_s, wanted.duration_s, rtol=1e-4)
            np.testing.assert_allclose(outcome.gain, wanted.gain, rtol=1e-6)
    assert 0 < np.mean(trainers[:rounds]) < 10
    assert sum(trainers[rounds:]) > 0


def test_a_fleet_may_start_at_any_round(paper: Case) -> None:
    """The timetable of the shield depends on the number of the round; no buffer overflows, wherever it starts."""
    scheduler = Scheduler(paper.file)
    for first_round in (57, 2**31 - 100):
        fleet = start(paper, first_round=first_round)
        for _ in range(60):
            decision = scheduler.decide(fleet.report())
            assert fleet.advance(decision.train, decision.power_w, decision.frequency_hz).violations == ()
        assert fleet.round == first_round + 60


def test_report_is_the_state_in_true_units(paper: Case) -> None:
    fleet = start(paper, first_round=70)
    serve_all(fleet)
    assert fleet.round == 71
    report = fleet.report()
    assert encode_report(report) == encode_report(report_of(paper.file, paper.system, fleet.state))
    np.testing.assert_array_equal(report.last_frequency_hz, paper.system.devices.frequency_max_hz)
    document = fleet.report_document()
    again = parse(DecisionRequest, json.dumps(document).encode()).report()
    assert encode_report(again) == encode_report(report)


def test_outcome_is_what_the_devices_did(paper: Case) -> None:
    fleet, devices = start(paper), paper.system.devices
    first = serve_all(fleet)
    before = fleet.report()
    np.testing.assert_allclose(before.queue, first.requests_arrived)
    np.testing.assert_allclose(before.data, first.samples_arrived)
    train = np.arange(10) < 2
    outcome = fleet.advance(train, devices.power_max_w, devices.frequency_max_hz)
    np.testing.assert_array_equal(outcome.train, train)
    np.testing.assert_allclose(outcome.requests_served, np.where(train, 0, before.queue))
    cycles = np.where(train, before.data * devices.training_cycles_per_sample * paper.system.iterations, 0)
    cycles = np.where(train, cycles, before.queue * devices.inference_cycles_per_request)
    np.testing.assert_allclose(outcome.compute_s, cycles / devices.frequency_max_hz, rtol=1e-5)
    assert (outcome.upload_s > 0).tolist() == train.tolist()
    assert outcome.energy_j == pytest.approx(outcome.device_energy_j.sum())
    assert outcome.objectives[2] == pytest.approx(outcome.energy_j / 10, rel=1e-5)
    assert outcome.accuracy is not None
    assert outcome.objectives[0] == pytest.approx(outcome.accuracy * 8 / 10, rel=1e-5)
    body = parse(OutcomeRequest, json.dumps(outcome.document(1)).encode())
    assert (body.round, body.duration_s, body.energy_j) == (1, outcome.duration_s, outcome.energy_j)
    assert body.gain == outcome.gain.tolist()
    assert body.devices == list(paper.file.device_names)


def test_wrong_decisions_violate_constraints(paper: Case) -> None:
    fleet, devices = start(paper), paper.system.devices
    everybody, nobody = np.ones(10, bool), np.zeros(10, bool)
    assert fleet.advance(everybody, devices.power_min_w, devices.frequency_max_hz).violations == ("C4",)  # no samples
    slow = np.asarray(devices.frequency_min_hz)
    for _ in range(4):
        serve_all(fleet)
    crowded = fleet.advance(everybody, devices.power_min_w, slow)  # ten updates at once, at the lowest power
    assert "C1" in crowded.violations
    assert crowded.violated
    assert crowded.late
    assert crowded.duration_s == pytest.approx(float(paper.system.round_max_s))
    assert (crowded.compute_s + crowded.upload_s <= crowded.duration_s * (1 + 1e-6)).all()
    assert crowded.accuracy is None
    assert "accuracy" not in crowded.document(5)
    parse(OutcomeRequest, json.dumps(crowded.document(5)).encode())
    assert "C8" in fleet.advance(nobody, devices.power_min_w, slow * 0.9).violations
    assert "C8" in fleet.advance(nobody, devices.power_min_w, np.full(10, np.nan)).violations
    one = np.arange(10) == 0
    assert "C7" in fleet.advance(one, np.asarray(devices.power_max_w) * 1.1, devices.frequency_max_hz).violations
    assert fleet.advance(nobody, np.zeros(10), devices.frequency_max_hz).violations == ()  # does not transmit


def doubled(system: System) -> System:
    return eqx.tree_at(lambda s: s.arrivals.rate_per_s, system, 2 * system.arrivals.rate_per_s)


def test_the_true_system_can_change_between_rounds(paper: Case) -> None:
    fleet = start(paper)
    usual = serve_all(fleet)
    before = fleet.report()
    fleet.change_system(doubled(paper.system))
    assert encode_report(fleet.report()) == encode_report(before)
    more = serve_all(fleet)
    per_second = [one.requests_arrived / one.duration_s for one in (usual, more)]
    np.testing.assert_allclose(per_second[1], 2 * per_second[0], rtol=1e-5)
    assert not fleet.system.shielded


def test_mistakes_are_named(paper: Case) -> None:
    with pytest.raises(ValueError, match="names: has 2"):
        SimulatedFleet(paper.system, ["a", "b"], SEED)
    fleet = start(paper)
    with pytest.raises(ValueError, match="power_w: has the shape"):
        fleet.advance(np.zeros(10, bool), np.zeros(3), np.zeros(10))
    with pytest.raises(ValueError, match="system: has 9"):
        fleet.change_system(dataclasses.replace(paper.system, size=9))
