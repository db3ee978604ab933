"""Background tuning: estimates are right, an unchanged fleet keeps its scenario, and only better versions are used."""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from exports import features_of, make_case, random_states
from servers import build_policy_file, serving

from tandem.feel import Environment, System
from tandem.runs.front import Front, PolicyRecord
from tandem.scenario import Scenario
from tandem.serving import OperatingPoint, PolicyFile, Scheduler
from tandem.serving.estimation import _compare, estimate_fleet, estimated_scenario, read_recording
from tandem.serving.fleet import Fleet
from tandem.serving.service import publish, unpack_policy_file
from tandem.serving.simulated_fleet import SimulatedFleet
from tandem.serving.storage import NewOutcome, NewRound, Store, StoredRound, now
from tandem.serving.tuning import (
    Difference,
    TuningConfig,
    Utility,
    build_estimated_system,
    decide,
    evaluate_front,
    load_version,
    recorded_states,
    tune,
    tune_store,
)

SIZE = 3


@pytest.fixture(scope="module")
def policy_file() -> PolicyFile:
    return build_policy_file()


def changed_system(file: PolicyFile, rate: float = 1.0, distance: float = 1.0, cycles: float = 1.0) -> System:
    """The system of a file, whose devices have other rates, distances and inference times."""
    document = json.loads(json.dumps(file.metadata["scenario"]))
    document["workload"]["request_rate_per_s"] *= rate
    document["limits"]["overflow"] = "discard"
    for group in document["fleet"]["devices"]:
        for name, factor in (("distance_m", distance), ("inference_cycles_per_request", cycles)):
            group[name] = {"uniform": [factor * bound for bound in _bounds(group[name])]}
    return build_estimated_system(Scenario.model_validate(document))


def _bounds(value: Any) -> Sequence[float]:
    if isinstance(value, dict):
        return value["uniform"] if "uniform" in value else (value["low"], value["high"])
    return (value, value)


def record(file: PolicyFile, system: System, count: int, *, first: int = 0, brief: bool = False) -> list[StoredRound]:
    """Rounds of a simulated fleet that the scheduler of a file decided; ``brief``: outcomes without columns."""
    fleet, scheduler = SimulatedFleet(system, file.device_names, seed=1, first_round=first), Scheduler(file)
    rounds = []
    for number in range(first, first + count):
        report, decision = fleet.report_document(), scheduler.decide(fleet.report())
        outcome = fleet.advance(decision.train, decision.power_w, decision.frequency_hz).document(number)
        if brief:
            outcome = {name: outcome[name] for name in ("round", "duration_s", "energy_j")}
        contents = (json.dumps(each).encode() for each in (report, decision.document(), outcome))
        rounds.append(StoredRound(number, number, SIZE, 0, file.version, {}, now(), *contents))
    return rounds


def estimate(file: PolicyFile, rounds: Sequence[StoredRound]) -> Any:
    fleet = Fleet.from_policy_file(file)
    recording = read_recording(rounds, file.device_names, fleet.scenario.limits.queue_max)
    return estimate_fleet(recording, fleet.scenario, fleet.device_table())


def test_an_unchanged_fleet_keeps_its_scenario(policy_file: PolicyFile) -> None:
    fleet = Fleet.from_policy_file(policy_file)
    found = estimate(policy_file, record(policy_file, changed_system(policy_file), 150))
    assert not found.changed
    assert estimated_scenario(fleet.scenario, fleet.device_table(), found) is fleet.scenario


@pytest.mark.parametrize("brief", [False, True])
def test_estimates_are_those_of_the_true_fleet(policy_file: PolicyFile, brief: bool) -> None:
    truth = changed_system(policy_file, rate=2, distance=1.3, cycles=1.2)
    found = estimate(policy_file, record(policy_file, truth, 150, brief=brief))
    rate, gain = found.quantities["request_rate_per_s"], found.quantities["gain"]
    np.testing.assert_allclose(rate.value, truth.arrivals.mean_rate(), rtol=1e-4)
    assert rate.changed.all()
    assert gain.changed.all()
    mean = np.asarray(truth.channel.mean)
    assert (np.abs(gain.value - mean) < 2 * gain.half_width).all()
    inference = found.quantities["inference_cycles_per_request"]
    assert inference.changed.all() == (not brief)  # computing times are known from outcomes alone
    fleet = Fleet.from_policy_file(policy_file)
    rebuilt = build_estimated_system(estimated_scenario(fleet.scenario, fleet.device_table(), found))
    np.testing.assert_allclose(rebuilt.arrivals.mean_rate(), truth.arrivals.mean_rate(), rtol=1e-4)
    np.testing.assert_allclose(np.asarray(rebuilt.channel.mean), gain.value, rtol=1e-4)
    if not brief:
        expected = np.asarray(truth.devices.inference_cycles_per_request)
        np.testing.assert_allclose(np.asarray(rebuilt.devices.inference_cycles_per_request), expected, rtol=1e-3)
    document = json.loads(json.dumps(found.document()))
    assert document["request_rate_per_s"]["changed_devices"] == SIZE


def test_only_the_rounds_after_a_change_are_used(policy_file: PolicyFile) -> None:
    before, after = changed_system(policy_file), changed_system(policy_file, rate=2)
    rounds = record(policy_file, before, 60) + record(policy_file, after, 60, first=60)
    found = estimate(policy_file, rounds)
    assert found.recording.rounds[0] == 60
    np.testing.assert_allclose(found.quantities["request_rate_per_s"].value, after.arrivals.mean_rate(), rtol=1e-4)


def test_interval_of_an_estimate_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    duration_s = rng.uniform(2, 4, (60, 400))
    arrived = rng.poisson(5 * duration_s).astype(float)
    found = _compare(arrived, duration_s, np.full(400, 5.0))
    covered = np.abs(found.value - 5) <= found.half_width
    assert 0.91 < covered.mean() < 0.985
    assert not found.changed.any()
    assert _compare(arrived, duration_s, np.full(400, 7.0)).changed.all()


def test_too_few_rounds_keep_the_version(policy_file: PolicyFile) -> None:
    tuning = tune(policy_file, OperatingPoint(), record(policy_file, changed_system(policy_file), 5))
    assert tuning.candidate is None
    assert "5 are recorded" in tuning.reason


def test_a_fleet_that_cannot_be_kept_stable_keeps_the_version() -> None:
    file = make_case("timetable", 10, "conditioned", 10).file
    calm = record(file, build_estimated_system(Fleet.from_policy_file(file).scenario), 60)
    crowded = [_with_arrivals(each, 40) for each in calm]
    tuning = tune(file, OperatingPoint(), crowded)
    assert tuning.candidate is None
    assert "cannot be served" in tuning.reason


def _with_arrivals(stored: StoredRound, factor: float) -> StoredRound:
    assert stored.outcome is not None
    outcome = json.loads(stored.outcome)
    outcome["requests_arrived"] = [factor * count for count in outcome["requests_arrived"]]
    return dataclasses.replace(stored, outcome=json.dumps(outcome).encode())


@pytest.mark.parametrize("kind", ["conditioned", "mlp", "random modes"])
def test_restored_networks_decide_as_the_exported_ones(kind: str) -> None:
    case = make_case("discard", 10, kind, 10)
    version = load_version(case.file)
    policy = jax.tree.map(lambda leaf: leaf[0] if hasattr(leaf, "shape") else leaf, version.policies)
    features = features_of(Environment(case.system), random_states(case.system, 20, seed=1))
    for one in range(20):
        given = jax.tree.map(lambda leaf, one=one: leaf[one], features)
        restored, original = (each.forward(given).action_dist for each in (policy, case.policy))
        for mine, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(original), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_recorded_states_are_those_of_the_fleet(policy_file: PolicyFile) -> None:
    system = changed_system(policy_file)
    fleet = SimulatedFleet(system, policy_file.device_names, seed=4)
    devices = fleet.system.devices
    for _ in range(3):
        fleet.advance(np.array([False, True, False]), devices.power_max_w, devices.frequency_max_hz)
    report = json.dumps(fleet.report_document()).encode()
    stored = StoredRound(0, 3, SIZE, 0, "", {}, now(), report, b"{}", None)
    [restored] = [jax.tree.map(lambda leaf: leaf[0], recorded_states([stored], fleet.names, system, 0))]
    for name in ("queue", "data", "waited_s", "data_age_s", "model_age_s", "model_accuracy", "last_gain"):
        np.testing.assert_allclose(getattr(restored, name), getattr(fleet.state, name), rtol=1e-5, err_msg=name)
    np.testing.assert_array_equal(restored.last_action.train, fleet.state.last_action.train)
    np.testing.assert_allclose(restored.last_action.frequency, fleet.state.last_action.frequency, atol=1e-5)


def make_front(*rates: float) -> Front:
    records = [
        PolicyRecord(n, (0.5, 3, 9), (None,) * 3, (0.5, -3, -9), rate, (0.0,) * 8, 0.0, (1, 0, 0), "", None, 0)
        for n, rate in enumerate(rates)
    ]
    return Front(tuple(records), (0.0, 5.0, 44.0), 0.01)


def test_a_candidate_is_published_only_if_it_is_better_and_no_less_feasible() -> None:
    better, unsure, worse = Difference(0.1, 0.05, 0.15), Difference(0.1, -0.05, 0.25), Difference(-0.1, -0.2, -0.05)
    safe, fine = make_front(0, 0), (0.0, 0.0)
    assert decide(better, unsure, safe, safe, fine)[0] is False
    for kept, part in (
        (decide(unsure, better, safe, safe, fine), "no improvement"),
        (decide(better, worse, safe, safe, fine), "recorded states"),
        (decide(better, better, make_front(0, 0.2), make_front(0.1, 0.1), fine), "within the tolerance"),
        (decide(better, better, safe, make_front(0, 0.001), fine), "violate"),
        (decide(worse, worse, safe, safe, (0.01, 0.0)), "no improvement"),
    ):
        assert kept[0] is True
        assert part in kept[1]
    # Feasibility comes first: the active version is beyond the tolerance.
    published = decide(worse, worse, make_front(0.02, 0.02), safe, (0.02, 0.0))
    assert published[0] is False
    assert "beyond the tolerance" in published[1]


def test_utility_puts_limits_first() -> None:
    points = np.array([[0.5, -4.0, -10.0], [0.7, -2.0, -5.0]])
    rewards = np.array([[0.7, -3.5, -5.0], [0.5, -2.5, -10.0]])
    free = Utility.of(OperatingPoint((1, 0, 0)), points).of_rewards(rewards)
    np.testing.assert_allclose(free, [1, 0])
    limited = Utility.of(OperatingPoint((1, 0, 0), max_latency_s=3), points).of_rewards(rewards)
    np.testing.assert_allclose(limited, [1 - 10 * 0.25, 0])
    knee = Utility.of(OperatingPoint(), points).of_rewards(points)
    np.testing.assert_allclose(knee, [0, 1])


def test_one_process_tunes_a_fleet(database: str) -> None:
    first, second, other = Store.open(database), Store.open(database), Store.open(database, "other")
    with first.tuning_lock() as mine, second.tuning_lock() as theirs, other.tuning_lock() as another:
        assert (mine, theirs, another) == (True, False, True)
    with second.tuning_lock() as theirs:
        assert theirs
    for store in (first, second, other):
        store.close()


def fill(store: Store, rounds: Sequence[StoredRound]) -> None:
    revision = store.read_state().revision
    for each in rounds:
        item = NewRound(each.round, b"", each.report, each.decision, SIZE, 0, each.version, {}, revision)
        assert each.outcome is not None
        store.commit([item, NewOutcome(each.round, b"", each.outcome)])


@pytest.mark.slow
def test_a_bad_policy_is_replaced_and_the_result_is_recorded(tmp_path: Path) -> None:
    """A network of random weights is easily improved. Everything that was decided about it is on record."""
    file = make_case("paper", 3, "conditioned", 3).file
    truth = build_estimated_system(Fleet.from_policy_file(file).scenario)
    store = Store.open(str(tmp_path / "tandem.db"))
    publish(store, file, activate=True, by="test")
    fill(store, record(file, truth, 60))
    config = TuningConfig(budget=30_000, learning_rate=3e-3, episodes=16, states=8)
    first = tune_store(store, config, dry_run=True)
    assert first is not None
    assert first.candidate is not None, first.reason
    assert store.list_events("tuning") == []
    tuning = tune_store(store, config)
    assert tuning is not None
    document = tuning.document
    assert document["utility_gain"]["interval_95"][0] > 0
    state = store.read_state()
    assert state.version == document["published"] != file.version
    assert store.previous_version() == file.version
    [event] = store.list_events("tuning")
    assert event.document == json.loads(json.dumps(document))
    published = unpack_policy_file(store.read_version(str(state.version)))
    assert published.metadata["run"]["tuned_from"] == file.version
    front = evaluate_front(load_version(published), truth, range(3))
    assert front.violation_rate.max() == 0
    store.close()


def wait_for_lock(store: Store, free: bool) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with store.tuning_lock() as got:
            if got == free:
                return
        time.sleep(0.2)
    pytest.fail(f"the lock of the tuner did not become {'free' if free else 'held'}")


def test_service_starts_a_tuner_that_ends_with_it(service_policy: Path, tmp_path: Path) -> None:
    database = str(tmp_path / "tandem.db")
    with serving(service_policy, database, "--tune") as server:
        store = Store.open(database)
        wait_for_lock(store, free=False)
        server.kill()  # not an orderly end
        wait_for_lock(store, free=True)
        store.close()


def test_results_of_tuning_are_served(http: Any, store: Store) -> None:
    document = {"version": "a", "published": None, "reason": "The active version is kept.", "newest_round": 7}
    store.add_event("tuning", document)
    answer = http.get("/v1/tunings").json()
    assert answer["tunings"][0] | document == answer["tunings"][0]
