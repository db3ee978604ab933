"""Faults of messages and devices: a device misses the affected rounds, no sample is lost, no other device suffers."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from small_fleet import SIZE

from tandem.device.hardware import SimulatedHardware
from tandem.federated.fleet.client import handle_instruction, sample_counts
from tandem.federated.fleet.client_round import ClientSnapshot
from tandem.federated.fleet.decider import PolicyDecider
from tandem.federated.fleet.messages import Instruction, ProtocolError, Report, from_bytes, to_bytes
from tandem.federated.fleet.server import RoundPlan, ServerState, aggregate_round, init_server, plan_round
from tandem.federated.fleet.spec import ClientContext, FleetSpec
from tandem.policy.heuristics import Threshold
from tandem.rng import FIRST_EPISODE_STREAM

HARMLESS = ("repeated", "state-lost")  # the report arrives all the same
EXAGGERATED = {
    "too-many-samples": {"samples": 10**9},
    "too-long-queue": {"queue": 1e9},
    "too-much-data": {"data": 1e9},
}
CORRUPTED = ("noise", "nan", "reshaped", "other-model", "huge", *EXAGGERATED)
FAULTS = ("offline", "report-lost", "late", *CORRUPTED, *HARMLESS)
GREEDY = Threshold(0.05, 0.5, 0.5)  # trains whenever it can


def plan_greedily(spec: FleetSpec, server: ServerState) -> RoundPlan:
    return plan_round(spec, PolicyDecider(spec.system, GREEDY), server)


class FaultyFleet:
    """Devices in this process, and a transport with faults."""

    def __init__(self, contexts: list[ClientContext]) -> None:
        self.contexts = contexts
        self.snapshots: list[ClientSnapshot | None] = [None] * len(contexts)
        self.delayed: dict[int, bytes] = {}

    def handle(self, instruction: Instruction) -> bytes:
        n = instruction.device
        self.snapshots[n], report = handle_instruction(
            self.contexts[n], self.snapshots[n], instruction, SimulatedHardware()
        )
        return to_bytes(report)

    def send(self, instructions: Sequence[Instruction], faults: Mapping[int, str]) -> dict[int, bytes | str]:
        answers: dict[int, bytes | str] = {}
        delayed, self.delayed = self.delayed, {}
        for instruction in instructions:
            n, fault = instruction.device, faults.get(instruction.device, "none")
            if fault == "offline":  # the instruction is lost; a delayed report may still arrive
                answers.update({n: delayed[n]} if n in delayed else {})
                continue
            report = self.handle(instruction)
            if fault == "late":
                self.delayed[n] = report
                answers.update({n: delayed[n]} if n in delayed else {})
            elif fault == "repeated":
                answers[n] = self.handle(instruction)
                assert answers[n] == report
            elif fault in ("none", "state-lost"):
                answers[n] = report
            elif fault != "report-lost":
                answers[n] = corrupt(report, fault)
            if fault == "state-lost":  # the disk fails after the report
                self.snapshots[n] = None
        return answers


def corrupt(data: bytes, fault: str) -> bytes:
    """Return a report with an error in it."""
    if fault == "noise":
        return bytes(reversed(data))
    report = from_bytes(Report, data)
    if fault in EXAGGERATED:
        return to_bytes(report.model_copy(update=EXAGGERATED[fault]))
    if report.weights is None:
        return to_bytes(report.model_copy(update={"queue": float("nan")})) if fault == "nan" else b""
    name = max(report.weights, key=lambda name: report.weights[name].size)  # a matrix that differs from its transpose
    change = {
        "nan": {name: np.full_like(report.weights[name], np.nan)},
        "huge": {name: np.full_like(report.weights[name], 1e30)},
        "reshaped": {name: report.weights[name].T.copy()},
        "other-model": {"another": report.weights[name]},
    }[fault]
    return to_bytes(report.model_copy(update={"weights": {**report.weights, **change}}))


def is_finite(server: ServerState) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(server.model))


def check_conservation(spec: FleetSpec, contexts: list[ClientContext], faults_by_round: list[dict[int, str]]) -> None:
    fleet, server = FaultyFleet(contexts), init_server(spec, "test")
    aggregated: Counter[int] = Counter()  # samples behind the updates that went into the model, by device
    for faults in [*faults_by_round, {}]:  # a last round without faults settles the last updates
        plan = plan_greedily(spec, server)
        answers = fleet.send(plan.instructions, faults)
        server, record = aggregate_round(spec, server, plan, answers)
        assert is_finite(server)
        harmless = {n for n in range(SIZE) if faults.get(n, "none") in ("none", "repeated")}
        assert harmless <= set(np.flatnonzero(record.reported)), record.refused
        for n in np.flatnonzero(np.asarray(record.outcome.trained)):
            aggregated[n] += from_bytes(Report, answers[n]).samples
    for n, snapshot in enumerate(fleet.snapshots):
        counts = sample_counts(snapshot)
        assert counts["samples"] == counts["discarded"] + counts["trained"] + counts["buffered"]
        assert counts["lost"] == 0
        assert counts["requests"] == counts["served"] + counts["unkept_requests"] + counts["waiting"]
        in_last_round = snapshot.update_pending and server.acknowledged[n] == snapshot.round
        assert aggregated[n] == counts["trained"] + (snapshot.report.samples if in_last_round else 0)
        assert float(server.estimate.queue[n]) == pytest.approx(float(snapshot.fleet.queue[0]))


WORST_CASE = [{}, {1: "late"}, {1: "offline", 2: "nan"}, {1: "late", 3: "repeated"}, {0: "report-lost"}, {}]
# The faults of each round; losing its state loses a device's samples by definition.
faults_of_a_round = st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from(FAULTS[:-1]))


def test_faults_lose_no_sample_and_train_on_none_twice(spec: FleetSpec, contexts: list[ClientContext]) -> None:
    check_conservation(spec, contexts, WORST_CASE)


@pytest.mark.slow
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults_by_round=st.lists(faults_of_a_round, min_size=3, max_size=9))
def test_no_sequence_of_faults_loses_a_sample(
    spec: FleetSpec, contexts: list[ClientContext], faults_by_round: list[dict[int, str]]
) -> None:
    check_conservation(spec, contexts, faults_by_round)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_costs_its_device_only_the_affected_rounds(
    spec: FleetSpec, contexts: list[ClientContext], fault: str
) -> None:
    fleet, server = FaultyFleet(contexts), init_server(spec, "test")
    for number in range(7):
        plan = plan_greedily(spec, server)
        faults = {1: fault} if number in (2, 3) else {}
        server, record = aggregate_round(spec, server, plan, fleet.send(plan.instructions, faults))
        failed = number in (2, 3) and fault not in HARMLESS
        assert sorted(record.refused) == ([1] if failed else [])
        assert not (failed and bool(record.outcome.trained[1]))
        if number >= 5:
            assert server.responded.all()
    assert server.acknowledged[1] >= 4  # it took part in training after the fault
    assert is_finite(server)


def test_device_can_join_during_a_run(spec: FleetSpec, contexts: list[ClientContext]) -> None:
    fleet, server = FaultyFleet(contexts), init_server(spec, "test")
    for number in range(6):
        plan = plan_greedily(spec, server)
        faults = {3: "offline"} if number < 3 else {}
        server, record = aggregate_round(spec, server, plan, fleet.send(plan.instructions, faults))
        if number == 3:
            assert record.reported.all()
            assert sample_counts(fleet.snapshots[3])["served"] > 0
    assert server.acknowledged[3] >= 4


def test_requests_arrive_while_a_device_is_offline(spec: FleetSpec, contexts: list[ClientContext]) -> None:
    fleet, server = FaultyFleet(contexts), init_server(spec, "test")
    for number in range(5):
        plan = plan_greedily(spec, server)
        faults = {0: "offline"} if number in (1, 2) else {}
        server, _ = aggregate_round(spec, server, plan, fleet.send(plan.instructions, faults))
        snapshot = fleet.snapshots[0]
        if number == 2:
            before = snapshot
            assert float(before.fleet.clock_s) < float(server.estimate.clock_s)
        if number == 3:
            arrived = sample_counts(snapshot)["requests"] - sample_counts(before)["requests"]
            rate = float(spec.system.arrivals.rate_per_s[0])
            elapsed_s = float(snapshot.fleet.clock_s - before.fleet.clock_s)
            assert arrived == pytest.approx(rate * elapsed_s, abs=2)
            assert float(snapshot.fleet.clock_s) == pytest.approx(float(server.estimate.clock_s), rel=1e-5)


def test_device_refuses_instructions_that_do_not_fit(spec: FleetSpec, contexts: list[ClientContext]) -> None:
    fleet = FaultyFleet(contexts)
    first = plan_greedily(spec, init_server(spec, "test")).instructions[0]
    later = first.model_copy(update={"round": 4})
    fleet.handle(later)
    refused = {
        "device": later.model_copy(update={"device": 1}),
        "round": first.model_copy(update={"round": 3}),
        "fingerprint": later.model_copy(update={"round": 5, "fingerprint": "0123456789abcdef"}),
        "weights": later.model_copy(update={"round": 5, "weights": {"x": np.zeros(3, np.float32)}}),
    }
    before = fleet.snapshots[0]
    for field, instruction in refused.items():
        with pytest.raises(ProtocolError, match=f"^{field}: "):
            handle_instruction(contexts[0], before, instruction, SimulatedHardware())
    beyond_the_last_round = to_bytes(first.model_copy(update={"round": FIRST_EPISODE_STREAM}))
    with pytest.raises(ProtocolError, match=r"^round: "):  # its random key could be that of another stream
        from_bytes(Instruction, beyond_the_last_round)
    of_earlier_run = dataclasses.replace(before, run="another")
    fresh, _ = handle_instruction(contexts[0], of_earlier_run, later, SimulatedHardware())
    assert fresh.client.counters.trained == 0


@given(data=st.binary(max_size=300))
@example(data=b"")
def test_decoding_noise_raises_only_protocol_errors(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_bytes(Report, data)
