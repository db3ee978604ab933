"""The scheduler's promises: order does not matter, absent and new devices are handled, bad reports are refused."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import Case, make_case, make_report

from tandem.errors import InputError
from tandem.feel import build_system
from tandem.pareto import pick
from tandem.runs import Run
from tandem.runs.front import selectable_points
from tandem.scenario import load_scenario
from tandem.serving import (
    DeviceProfile,
    Fleet,
    FleetMismatchError,
    FleetReport,
    OperatingPoint,
    ReportError,
    Scheduler,
    ShieldRule,
    write_policy_file,
)
from tandem.serving.export import export_run


def assert_equal_decisions(one: Any, other: Any, order: Any = slice(None)) -> None:
    np.testing.assert_array_equal(one.train, other.train[order])
    np.testing.assert_allclose(one.power_w, other.power_w[order], rtol=1e-5)
    np.testing.assert_allclose(one.frequency_hz, other.frequency_hz[order], rtol=1e-5)
    np.testing.assert_array_equal(one.rules, other.rules[order])


@pytest.mark.parametrize("kind", ["case", "fixed_case"])
def test_order_of_devices_does_not_matter(kind: str, request: pytest.FixtureRequest) -> None:
    case: Case = request.getfixturevalue(kind)
    scheduler, names = Scheduler(case.file), case.file.device_names
    order = np.random.default_rng(0).permutation(len(names))
    for seed in range(20):
        straight = scheduler.decide(make_report(case.file, seed=seed))
        permuted = scheduler.decide(make_report(case.file, tuple(names[n] for n in order), seed=seed))
        assert_equal_decisions(permuted, straight, order)


def test_absent_devices_are_assumed_to_serve(case: Case, scheduler: Scheduler) -> None:
    names = case.file.device_names
    decision = scheduler.decide(make_report(case.file, (names[7], names[2], names[4])))
    assert decision.absent == tuple(name for n, name in enumerate(names) if n not in (7, 2, 4))
    # They are decided for as a fleet of three with the bounds of the whole fleet.
    alone = Scheduler(case.file)
    alone.set_fleet(alone.fleet.take(np.array([2, 4, 7])))
    expected = alone.decide(make_report(case.file, (names[2], names[4], names[7])))
    assert_equal_decisions(decision, expected, [2, 0, 1])
    assert expected.absent == ()


def test_network_of_fixed_size_is_given_idle_devices_for_absent_ones(fixed_case: Case) -> None:
    scheduler, names = Scheduler(fixed_case.file), fixed_case.file.device_names
    decision = scheduler.decide(make_report(fixed_case.file, names[:9]))
    assert decision.absent == names[9:]
    assert len(decision.train) == len(decision.rules) == 9
    gain, system = scheduler.fleet.worst_case.worst_gain[9], scheduler.fleet.system
    idle = {"queue": 0, "data": 0, "waited_s": 0, "data_age_s": 1, "model_age_s": 0, "last_gain": gain}
    idle |= {"model_accuracy": system.pretrained_accuracy, "last_power_w": 0.1, "last_frequency_hz": 1e9}
    full = make_report(fixed_case.file)
    for name, value in {**idle, "last_train": False}.items():
        getattr(full, name)[9] = value
    whole = scheduler.decide(full)
    np.testing.assert_array_equal(decision.train, whole.train[:9])
    np.testing.assert_allclose(decision.frequency_hz, whole.frequency_hz[:9], rtol=1e-6)


def test_late_device_serves_and_the_decision_says_so(case: Case, scheduler: Scheduler) -> None:
    report = make_report(case.file, data=np.full(10, 100.0), queue=np.full(10, 5.0))
    trained = np.flatnonzero(scheduler.decide(report).train)
    assert len(trained)
    late = int(trained[0])
    present = np.arange(10) != late
    decision = scheduler.decide(dataclasses.replace(report, present=present))
    assert not decision.train[late]
    name = case.file.device_names[late]
    assert decision.late == (name,)
    assert ShieldRule.NOT_PRESENT in ShieldRule(int(decision.rules[late]))
    assert "did not report" in decision.explain(name)


def test_new_device_is_served(case: Case, scheduler: Scheduler) -> None:
    names = (*case.file.device_names, "new")
    profile = DeviceProfile("new", like=case.file.device_names[0], request_rate_per_s=9.0)
    decision = scheduler.decide(make_report(case.file, names, new_devices=(profile,)))
    assert len(decision.train) == 11
    assert scheduler.fleet.size == 10  # the fleet is changed by set_fleet only
    scheduler.set_fleet(scheduler.fleet.changed([profile]))
    assert_equal_decisions(scheduler.decide(make_report(case.file, names)), decision)


def test_changed_fleet_is_planned_as_the_simulator_plans_it() -> None:
    """A fleet with other rates, sizes and distances has the bounds of a scenario that has them."""
    for kind in ("timetable", "discard"):
        ten, twelve = (make_case(kind, size, "conditioned") for size in (10, 12))
        table, names = twelve.file.arrays, twelve.file.device_names
        columns = [field.name for field in dataclasses.fields(DeviceProfile) if field.name not in ("name", "like")]
        profiles = [
            DeviceProfile(names[n], **{name: float(table[f"devices.{name}"][n]) for name in columns}) for n in (10, 11)
        ]
        fleet = Fleet.from_policy_file(ten.file).changed(profiles)
        assert fleet.names == names
        for name, value in fleet.worst_case._asdict().items():
            np.testing.assert_array_equal(value, getattr(twelve.system.worst_case, name), err_msg=name)
        fewer = fleet.changed(removed=names[10:])
        for name, value in fewer.worst_case._asdict().items():
            np.testing.assert_array_equal(value, getattr(ten.system.worst_case, name), err_msg=name)


def test_changed_rate_of_poisson_arrivals_is_planned_as_the_simulator_plans_it(case: Case) -> None:
    changes = {"fleet.size": 3, "workload.arrivals": "poisson", "fleet.defaults.rate_factor": 1.0}
    slow, fast = (load_scenario("paper", {**changes, "workload.request_rate_per_s": rate}) for rate in (4.0, 5.0))
    metadata = {**case.file.metadata, "arrivals": "poisson", "scenario": slow.model_dump(mode="json")}
    file = dataclasses.replace(case.file, metadata=metadata)
    names = case.file.device_names[:3]
    profiles = [DeviceProfile(name, request_rate_per_s=5.0) for name in names]
    changed = Fleet.from_policy_file(file).changed(profiles, removed=case.file.device_names[3:])
    expected = build_system(fast).worst_case
    for name in ("worst_arrivals", "max_data", "round_limit_s", "max_trainers"):
        np.testing.assert_array_equal(getattr(changed.worst_case, name), getattr(expected, name), err_msg=name)


def test_fleet_that_no_policy_can_serve_is_refused(scheduler: Scheduler, fixed_case: Case) -> None:
    name = scheduler.fleet.names[3]
    with pytest.raises(FleetMismatchError, match=rf"{name}\) cannot be served: 500 requests/s .*; lower"):
        scheduler.fleet.changed([DeviceProfile(name, request_rate_per_s=500.0)])
    with pytest.raises(FleetMismatchError, match=r"exactly 10 devices .* deep-set"):
        Fleet.from_policy_file(fixed_case.file).changed(removed=[name])
    with pytest.raises(FleetMismatchError, match=r"new_devices\[a\]\.\w+ is missing; give it, or name a"):
        scheduler.fleet.changed([DeviceProfile("a")])
    with pytest.raises(FleetMismatchError, match=r"new_devices\[a\]\.like is 'b', which is not a device"):
        scheduler.fleet.changed([DeviceProfile("a", like="b")])
    with pytest.raises(FleetMismatchError, match=r"new_devices\[a\]\.power_max_w is nan"):
        scheduler.fleet.changed([DeviceProfile("a", like=name, power_max_w=float("nan"))])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"queue": np.full(10, np.nan)}, r"queue\[device-0\] is nan; give a number from 0 to 400"),
    ({"queue": [1.0] * 9 + [float("inf")]}, r"queue\[device-9\] is inf"),
    ({"data": np.full(10, -1.0)}, r"data\[device-0\] is -1; give a number from 0 to \d+"),
    ({"data": np.full(10, 1e6)}, r"data\[device-0\] is 1e\+06"),
    ({"last_power_w": np.full(10, 2.0)}, r"last_power_w\[device-0\] is 2; give a number from 0 to 1\.0"),
    ({"model_accuracy": np.full(10, 1.5)}, r"model_accuracy\[device-0\]"),
    ({"last_gain": None}, r"last_gain is missing; the policy observes it"),
    ({"last_gain": [1.0, 2.0]}, r"last_gain has 2 values for 10 devices"),
    ({"queue": 3.0}, r"queue is 3\.0; give a list of numbers"),
    ({"queue": ["a"] * 10}, r"queue is .*; give a list of numbers"),
    ({"round": -1}, r"round is -1"),
    ({"round": 1.5}, r"round is 1\.5"),
    ({"round": True}, r"round is true"),
    ({"last_duration_s": float("nan")}, r"last_duration_s is nan"),
    ({"last_duration_s": "2"}, r"last_duration_s is '2'"),
    ({"present": [True]}, r"present has 1 values for 10 devices"),
    ({"names": (), "queue": []}, r"names is empty"),
]


@pytest.mark.parametrize(("columns", "message"), BAD)
def test_bad_report_is_refused(case: Case, scheduler: Scheduler, columns: dict[str, Any], message: str) -> None:
    report = dataclasses.replace(make_report(case.file), **columns)
    with pytest.raises(ReportError, match=message):
        scheduler.decide(report)


def test_unknown_and_repeated_devices_are_refused(case: Case, scheduler: Scheduler) -> None:
    names = list(case.file.device_names)
    with pytest.raises(ReportError, match="unknown device 'devise-0'; did you mean 'device-0' or describe it in new_d"):
        scheduler.decide(dataclasses.replace(make_report(case.file), names=["devise-0", *names[1:]]))
    with pytest.raises(ReportError, match=r"names\[device-1\] occurs twice"):
        scheduler.decide(dataclasses.replace(make_report(case.file), names=[names[1], *names[1:]]))
    profile = DeviceProfile("device-1", like="device-0")
    with pytest.raises(ReportError, match=r"new_devices\[device-1\] is a device of the fleet already"):
        scheduler.decide(make_report(case.file, new_devices=(profile,)))


def test_report_of_the_caller_is_not_changed(case: Case, scheduler: Scheduler) -> None:
    report = make_report(case.file)
    columns = [
        field.name for field in dataclasses.fields(FleetReport) if isinstance(getattr(report, field.name), np.ndarray)
    ]
    before = {name: getattr(report, name).copy() for name in columns}
    decision = scheduler.decide(report)
    trained = decision.train.copy()
    for seed in range(20):
        scheduler.decide(make_report(case.file, seed=seed))
    np.testing.assert_array_equal(decision.train, trained)  # no buffer is shared between decisions
    for name, column in before.items():
        np.testing.assert_array_equal(getattr(report, name), column)


def test_decision_is_a_json_document(case: Case, scheduler: Scheduler) -> None:
    decision = scheduler.decide(make_report(case.file, data=np.full(10, 100.0)))
    document = json.loads(json.dumps(decision.document()))
    assert document["mode"] == decision.modes
    assert document["version"] == case.file.version
    assert document["policy"]["reason"] == scheduler.policy.reason
    changed = {change["device"]: change for change in document["changes"]}
    assert list(changed) == [name for name, rule in zip(decision.names, decision.rules, strict=True) if rule]
    for name, change in changed.items():
        assert change["reason"] in decision.explain(name)
        assert all(code in {rule.name.lower().replace("_", "-") for rule in ShieldRule} for code in change["rules"])


def test_operating_points_choose_as_tandem_pick_does(conditioned_run: Run, population_run: Run) -> None:
    for run in (conditioned_run, population_run):
        scheduler = Scheduler(export_run(run))
        weights = (0.2, 0.5, 0.3)
        choice = scheduler.set_operating_point(OperatingPoint(preference=weights))
        expected = run.front.policies[pick(selectable_points(run.front, run.config.tolerance), weights).index]
        np.testing.assert_allclose(choice.preference, expected.preference, rtol=1e-6)
        assert choice.objectives == pytest.approx(expected.objectives)  # what was measured, not something near it
        latency_s = float(np.median(run.front.objectives[:, 1]))
        limited = scheduler.set_operating_point(OperatingPoint((1, 0, 0), max_latency_s=latency_s))
        assert limited.objectives[1] <= latency_s
        allowed = run.front.objectives[:, 1] <= latency_s
        assert limited.objectives[0] == pytest.approx(run.front.objectives[allowed, 0].max())
        assert scheduler.policy is limited
        with pytest.raises(InputError, match=r"No policy has latency at most 0\.001 s; the best attainable"):
            scheduler.set_operating_point(OperatingPoint(max_latency_s=0.001))
        assert scheduler.policy is limited  # a refused change changes nothing


def test_run_folder_and_its_export_decide_alike(conditioned_run: Run, tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    write_policy_file(path, export_run(conditioned_run))
    from_file, from_folder = (Scheduler.open(place) for place in (path, conditioned_run.folder))
    report = make_report(from_file.policy_file)
    assert_equal_decisions(from_file.decide(report), from_folder.decide(report))
    assert from_file.policy_file.version == from_folder.policy_file.version


WITHOUT_JAX = """
import sys
from tandem.serving import DeviceProfile, FleetReport, OperatingPoint, Scheduler
scheduler = Scheduler.open(sys.argv[1], OperatingPoint((1, 0, 0), max_latency_s=5.0))
n = scheduler.fleet.size
ones = [1.0] * n
columns = dict(last_train=[False] * n, last_power_w=[0.5] * n, last_frequency_hz=[2e9] * n, waited_s=ones)
columns |= dict(data_age_s=ones, model_age_s=ones, model_accuracy=ones, last_gain=ones)
report = FleetReport(names=scheduler.fleet.names, round=0, queue=ones, data=ones, last_duration_s=2.5, **columns)
print(scheduler.decide(report).document()["mode"])
assert "scipy" not in sys.modules and "yaml" not in sys.modules, "imports more than it needs to decide"
scheduler.set_fleet(scheduler.fleet.changed([DeviceProfile("new", like=scheduler.fleet.names[0])]))
loaded = [name for name in ("jax", "equinox", "flwr", "fastapi", "sqlalchemy") if name in sys.modules]
assert not loaded, loaded
"""


def test_deciding_does_not_import_jax(policy_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, str(policy_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout
