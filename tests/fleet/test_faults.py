"""Whatever becomes of messages and devices: it costs those devices that round, no sample, and nobody else anything."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_fleet import SIZE

from tandem.federated.fleet.client import ProtocolState, handle_instruction, sample_counts
from tandem.federated.fleet.client_round import ClientContext
from tandem.federated.fleet.hardware import SimulatedHardware
from tandem.federated.fleet.messages import Instruction, ProtocolError, Report, from_bytes, to_bytes
from tandem.federated.fleet.server import aggregate_round
from tandem.federated.fleet.server_plan import ServerState, init_server, plan_round
from tandem.federated.fleet.spec import FleetSpec
from tandem.policy.heuristics import Threshold

HEARD = ("twice", "forgets")
SPOILED = ("noise", "nan", "reshaped", "other-model", "huge", "boasts", "crowded", "hoards")
FAULTS = ("dead", "unheard", "late", *SPOILED, *HEARD)
TOO_MUCH = {"boasts": {"samples": 10**9}, "crowded": {"queue": 1e9}, "hoards": {"data": 1e9}}
GREEDY = Threshold(0.05, 0.5, 0.5)  # trains whenever it can


class Fleet:
    """Devices in this process, and a world in which the wrong thing happens."""

    def __init__(self, places: list[ClientContext]) -> None:
        self.places = places
        self.stations: list[ProtocolState | None] = [None] * len(places)
        self.late: dict[int, bytes] = {}

    def obey(self, order: Instruction) -> bytes:
        after, report = handle_instruction(
            self.places[order.device], self.stations[order.device], order, SimulatedHardware()
        )
        self.stations[order.device] = after
        return to_bytes(report)

    def carry(self, instructions: Sequence[Instruction], faults: Mapping[int, str]) -> dict[int, bytes | str]:
        answers: dict[int, bytes | str] = {}
        delayed, self.late = self.late, {}
        for order in instructions:
            n, fault = order.device, faults.get(order.device, "none")
            if fault == "dead":  # it has not even got the instruction; an older answer may still come
                answers.update({n: delayed[n]} if n in delayed else {})
                continue
            report = self.obey(order)
            if fault == "late":
                self.late[n] = report
                answers.update({n: delayed[n]} if n in delayed else {})
            elif fault == "twice":
                answers[n] = self.obey(order)
                assert answers[n] == report
            elif fault in ("none", "forgets"):
                answers[n] = report
            elif fault != "unheard":
                answers[n] = spoiled(report, fault)
            if fault == "forgets":  # its disk is lost after it has reported
                self.stations[n] = None
        return answers


def spoiled(data: bytes, how: str) -> bytes:
    """A report with something wrong in it."""
    if how == "noise":
        return bytes(reversed(data))
    report = from_bytes(Report, data)
    if how in TOO_MUCH:
        return to_bytes(report.model_copy(update=TOO_MUCH[how]))
    if report.weights is None:
        return to_bytes(report.model_copy(update={"queue": float("nan")})) if how == "nan" else b""
    first = max(report.weights, key=lambda name: report.weights[name].size)  # a matrix, which is not its transpose
    change = {
        "nan": {first: np.full_like(report.weights[first], np.nan)},
        "huge": {first: np.full_like(report.weights[first], 1e30)},
        "reshaped": {first: report.weights[first].T.copy()},
        "other-model": {"another": report.weights[first]},
    }[how]
    return to_bytes(report.model_copy(update={"weights": {**report.weights, **change}}))


def finite(server: ServerState) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(server.model))


courses = st.lists(st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from(FAULTS[:-1])), min_size=3, max_size=9)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(course=courses)
def test_no_sample_is_lost_and_none_trained_on_twice(
    problem: FleetSpec, places: list[ClientContext], course: list[dict[int, str]]
) -> None:
    fleet, server = Fleet(places), init_server(problem, "test")
    counted: Counter[int] = Counter()  # samples behind updates that went into the model, by device
    for faults in [*course, {}]:  # and a round in which all are heard: it settles the last updates
        decided = plan_round(problem, GREEDY, server)
        answers = fleet.carry(decided.instructions, faults)
        server, closed = aggregate_round(problem, server, decided, answers)
        assert finite(server)
        harmless = {n for n in range(SIZE) if faults.get(n, "none") in ("none", "twice")}
        assert harmless <= set(np.flatnonzero(closed.reported)), closed.refused
        for n in np.flatnonzero(np.asarray(closed.outcome.trained)):
            counted[n] += from_bytes(Report, answers[n]).samples
    pending = Counter({n: int(s.report.samples) for n, s in enumerate(fleet.stations) if s.unsettled})
    for n, station in enumerate(fleet.stations):
        held = sample_counts(station)
        assert held["samples"] == held["discarded"] + held["trained"] + held["buffered"]
        assert held["lost"] == 0
        assert held["requests"] == held["served"] + held["unkept_requests"] + held["waiting"]
        in_last_round = pending[n] if server.acknowledged[n] == station.round else 0
        assert counted[n] == held["trained"] + in_last_round
        assert float(server.estimate.queue[n]) == pytest.approx(float(station.snapshot.fleet.queue[0]))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_its_device_one_round(problem: FleetSpec, places: list[ClientContext], fault: str) -> None:
    fleet, server = Fleet(places), init_server(problem, "test")
    for number in range(7):
        decided = plan_round(problem, GREEDY, server)
        faults = {1: fault} if number in (2, 3) else {}
        server, closed = aggregate_round(problem, server, decided, fleet.carry(decided.instructions, faults))
        failed = number in (2, 3) and fault not in HEARD
        assert sorted(closed.refused) == ([1] if failed else [])
        assert not (failed and bool(closed.outcome.trained[1]))
        if number >= 5:  # it is back, and trusted again
            assert server.heard.all()
    assert server.acknowledged[1] >= 4  # it took part in training after the fault
    assert finite(server)


def test_a_device_joins_in_mid_run(problem: FleetSpec, places: list[ClientContext]) -> None:
    fleet, server = Fleet(places), init_server(problem, "test")
    for number in range(6):
        decided = plan_round(problem, GREEDY, server)
        faults = {3: "dead"} if number < 3 else {}
        server, closed = aggregate_round(problem, server, decided, fleet.carry(decided.instructions, faults))
        if number == 3:
            start = sample_counts(fleet.stations[3])
            assert closed.reported.all()
            assert start["served"] > 0
    assert server.acknowledged[3] >= 4


def test_time_goes_on_while_a_device_is_away(problem: FleetSpec, places: list[ClientContext]) -> None:
    fleet, server = Fleet(places), init_server(problem, "test")
    for number in range(5):
        decided = plan_round(problem, GREEDY, server)
        faults = {0: "dead"} if number in (1, 2) else {}
        server, _ = aggregate_round(problem, server, decided, fleet.carry(decided.instructions, faults))
        station = fleet.stations[0]
        if number == 2:
            before = station
            assert float(before.snapshot.fleet.clock_s) < float(server.estimate.clock_s)
        if number == 3:
            arrived = sample_counts(station)["requests"] - sample_counts(before)["requests"]
            rate = float(problem.system.arrivals.rate_per_s[0])
            elapsed_s = float(station.snapshot.fleet.clock_s - before.snapshot.fleet.clock_s)
            assert arrived == pytest.approx(rate * elapsed_s, abs=2)
            assert float(station.snapshot.fleet.clock_s) == pytest.approx(float(server.estimate.clock_s), rel=1e-5)


def test_a_device_refuses_what_is_not_for_it(problem: FleetSpec, places: list[ClientContext]) -> None:
    fleet = Fleet(places)
    first = plan_round(problem, GREEDY, init_server(problem, "test")).instructions[0]
    later = first.model_copy(update={"round": 4})
    fleet.obey(later)
    refused = {
        "device": later.model_copy(update={"device": 1}),
        "round": first.model_copy(update={"round": 3}),
        "fingerprint": later.model_copy(update={"round": 5, "fingerprint": "0123456789abcdef"}),
        "weights": later.model_copy(update={"round": 5, "weights": {"x": np.zeros(3, np.float32)}}),
    }
    before = fleet.stations[0]
    for field, order in refused.items():
        with pytest.raises(ProtocolError, match=f"^{field}: "):
            handle_instruction(places[0], before, order, SimulatedHardware())
    another = dataclasses.replace(before, run="another")  # of an earlier run: it begins anew
    assert handle_instruction(places[0], another, later, SimulatedHardware())[0].snapshot.client.counters.trained == 0


@given(data=st.binary(max_size=300))
def test_noise_is_garbled_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_bytes(Report, data)
