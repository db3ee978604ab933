"""The server of a fleet as a state machine: plan a round, then aggregate the reports that arrived.

The server estimates the state of every device from the device's last report. ``plan_round`` passes this estimate to a
``Decider``, which decides which devices train, their power and their frequency, and simulates a round with this
decision to determine the duration of the round. A device without a valid report in the last round is instructed to
serve until it reports again, so that no round waits for its training. This holds even if the timetable of the shield
has a place for the device in this round. Its buffer may then overflow.

``aggregate_round`` replaces the planned values by the reported ones and averages the updates. A device without a valid
report is assumed to have done nothing: it contributes no update, its requests wait, and it keeps its samples. Its next
report includes the work that it did in the meantime.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.federated.algorithm import AlgorithmState, FederatedAlgorithm, Model, aggregate_models
from tandem.federated.fleet.decider import Decider, Flags
from tandem.federated.fleet.messages import (
    NO_ANSWER,
    NO_ROUND,
    OUTCOME_FIELDS,
    STATE_FIELDS,
    Instruction,
    ProtocolError,
    Report,
    from_bytes,
    validate_weights,
)
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel.accuracy import server_accuracy
from tandem.feel.constraints import exceeds
from tandem.feel.env import reset, step
from tandem.feel.queues import FRESH_AGE_S, next_queue
from tandem.feel.rewards import reward, round_objectives
from tandem.feel.shield import normalised
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import Array, DeviceFlags, PerDevice, Scalar
from tandem.io.tree_io import flatten_arrays

Numbers = NDArray[np.int64]
TOLERANCE = 1e-3  # relative; single precision accumulates rounding errors over many rounds


@dataclasses.dataclass(frozen=True)
class ServerState:
    """The server between two rounds; arrays have one entry for each device."""

    run: str
    estimate: FleetState  # the fleet's state as far as it was reported
    accuracy: NDArray[np.float32]  # of each device's answers, as last reported
    model: Model  # w, the global model
    algorithm_state: AlgorithmState  # of the federated algorithm; None for FedAvg
    acknowledged: Numbers  # the last round whose update is in the model; NO_ROUND if there is none
    settled: Numbers  # the last acknowledgement that the device has applied, as last reported
    responded: Flags  # whether the device's report of the last round was valid


@dataclasses.dataclass(frozen=True)
class RoundPlan:
    """The decisions for a round, and its expected result by the simulator."""

    round: int
    instructions: tuple[Instruction, ...]  # one for each device
    expected: FleetState  # after the round, if every device follows its instruction
    outcome: RoundOutcome


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """A completed round: the state before it and its outcome in the simulator's types, and the failures."""

    before: FleetState
    outcome: RoundOutcome
    reported: Flags  # devices with a valid report
    work_s: NDArray[np.float64]  # time each device spent training or serving, by the wall clock
    refused: dict[int, str]  # for each device without a valid report, the reason
    wall_s: float = 0.0  # duration of the round by the wall clock


def init_server(spec: FleetSpec, run: str) -> ServerState:
    """Return the server before round 0, which assumes that every device is present and has its state after a reset."""
    size = spec.system.size
    none = np.full(size, NO_ROUND)
    accuracy = np.full(size, float(spec.task.accuracy), np.float32)
    estimate = reset(spec.system, spec.fleet_key)
    model = spec.task.model
    algorithm_state = spec.task.algorithm.init(model)
    return ServerState(run, estimate, accuracy, model, algorithm_state, none, none, np.ones(size, bool))


def plan_round(spec: FleetSpec, decide: Decider, server: ServerState) -> RoundPlan:
    """Plan the next round: the instruction of every device, and the expected state and outcome."""
    key = jax.random.fold_in(spec.policy_key, server.estimate.round)
    decision = decide(server.estimate, server.responded, key)
    expected, outcome = _simulate_decision(spec.system, server.estimate, *(jnp.asarray(part) for part in decision))
    train = np.asarray(outcome.executed.train)  # without a shield, a device without data does not train
    weights = flatten_arrays(server.model)
    number = int(server.estimate.round)
    instructions = tuple(
        Instruction(
            run=server.run,
            device=n,
            round=number,
            fingerprint=spec.fingerprint,
            weights=weights if train[n] or server.acknowledged[n] > server.settled[n] else None,
            train=bool(train[n]),
            power_w=float(decision.power_w[n]),
            frequency_hz=float(decision.frequency_hz[n]),
            trainers=int(train.sum()),
            clock_s=float(server.estimate.clock_s),
            duration_s=float(outcome.duration_s),
            acknowledged=int(server.acknowledged[n]),
        )
        for n in range(spec.system.size)
    )
    return RoundPlan(number, instructions, expected, outcome)


@eqx.filter_jit
def _simulate_decision(
    system: System, estimate: FleetState, train: DeviceFlags, power_w: PerDevice, frequency_hz: PerDevice
) -> tuple[FleetState, RoundOutcome]:
    """Simulate a round in which all devices do what was decided."""
    devices = system.devices
    action = Action(
        train,
        normalised(power_w, devices.power_min_w, devices.power_max_w),
        normalised(frequency_hz, devices.frequency_min_hz, devices.frequency_max_hz),
    )
    # The decision has passed the shield. A second pass, which knows nothing of devices that do not respond, would let
    # those train whose buffers could overflow.
    return step(dataclasses.replace(system, shielded=False), estimate, action)


def aggregate_round(
    spec: FleetSpec, server: ServerState, plan: RoundPlan, answers: Mapping[int, bytes | str]
) -> tuple[ServerState, RoundRecord]:
    """Complete the round with the answers: by device, a report's bytes, or the reason why there is none."""
    reports: dict[int, Report] = {}
    updates: dict[int, Model] = {}
    refused: dict[int, str] = {}
    for instruction in plan.instructions:
        device = instruction.device
        try:
            report, update = _parse_answer(answers.get(device, NO_ANSWER), instruction, spec, server.model)
        except ProtocolError as error:
            refused[device] = str(error)
            continue
        reports[device] = report
        if update is not None:
            updates[device] = update
    samples = {n: reports[n].samples for n in updates}
    algorithm_state, model = aggregate_updates(
        spec.task.algorithm, server.algorithm_state, server.model, updates, samples
    )

    devices = range(spec.system.size)
    reported, trained = _flags(devices, reports), _flags(devices, updates)
    idle = _assume_idle(server.estimate, plan, spec.system.queue_max)
    outcome = _merge_outcome(spec, server, plan, reports, trained, idle)
    after = ServerState(
        run=server.run,
        estimate=_merge_state(server, plan, reports, trained, idle, outcome),
        accuracy=np.asarray(outcome.accuracy),
        model=model,
        algorithm_state=algorithm_state,
        acknowledged=np.where(trained, plan.round, server.acknowledged),
        settled=np.array([reports[n].settled if n in reports else server.settled[n] for n in devices]),
        responded=reported,
    )
    work_s = np.array([reports[n].work_s if n in reports else 0.0 for n in devices])
    return after, RoundRecord(server.estimate, outcome, reported, work_s, refused)


def _parse_answer(
    answer: bytes | str, instruction: Instruction, spec: FleetSpec, model: Model
) -> tuple[Report, Model | None]:
    """Return the report, and its update if in time; raise ``ProtocolError`` if it does not fit the instruction."""
    if isinstance(answer, str):
        raise ProtocolError(answer)
    report = from_bytes(Report, answer)
    for name in ("run", "device", "round"):
        value, expected = getattr(report, name), getattr(instruction, name)
        if value != expected:
            raise ProtocolError(f"{name}: the report is of {value}, the instruction of {expected}.")
    if report.settled > instruction.acknowledged:
        raise ProtocolError(f"settled: round {report.settled} was never acknowledged.")
    update = _parse_update(report, instruction, model, spec.system.round_max_s) if report.trained else None
    _check_capacities(report, spec)
    return report, update


def _parse_update(report: Report, instruction: Instruction, model: Model, round_max_s: Scalar) -> Model | None:
    """Return the update of a device that has trained; None if it took longer than ``round_max_s``."""
    if not instruction.train:
        raise ProtocolError("trained: the instruction was to serve.")
    if report.weights is None:
        raise ProtocolError("trained: the report has no weights.")
    update = validate_weights(report.weights, model)
    late = exceeds(jnp.asarray([report.compute_s + report.upload_s]), jnp.asarray(float(round_max_s)))
    return None if bool(late[0]) else update


def _check_capacities(report: Report, spec: FleetSpec) -> None:
    """Raise ``ProtocolError`` for values above a device's capacity, which would distort the average or the plan."""
    capacities = {
        "samples": spec.task.capacities.buffer,
        "queue": float(spec.system.queue_max),
        "data": float(spec.system.data_limit[report.device]),
    }
    for name, capacity in capacities.items():
        value = getattr(report, name)
        if value > capacity * (1 + TOLERANCE):
            raise ProtocolError(f"{name}: {value:g} exceeds the device's capacity of {capacity:g}.")


def aggregate_updates(
    algorithm: FederatedAlgorithm,
    state: AlgorithmState,
    model: Model,
    updates: Mapping[int, Model],
    samples: Mapping[int, int],
) -> tuple[AlgorithmState, Model]:
    """Aggregate the updates of a round, in the order of the devices' numbers; without any, nothing changes."""
    if not updates:
        return state, model
    devices = sorted(updates)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(updates[n] for n in devices))
    weights = jnp.asarray([samples[n] for n in devices], jnp.float32)
    return aggregate_models(algorithm, state, model, stacked, weights)


def _assume_idle(before: FleetState, plan: RoundPlan, queue_max: Scalar) -> dict[str, Any]:
    """Return the assumed state of devices without a report: requests arrived, and nothing else happened."""
    duration_s = plan.outcome.duration_s
    queue, dropped = next_queue(jnp.ones(before.queue.shape, bool), before.queue, plan.outcome.arrived, queue_max)
    nothing = dict.fromkeys(("served", "converted", "discarded", "energy_j"), np.zeros(before.queue.shape))
    return {
        "queue": queue,
        "dropped": dropped,
        "waited_s": before.waited_s + queue * duration_s,
        "data": before.data,
        "data_age_s": before.data_age_s + duration_s,
        "model_age_s": before.model_age_s + duration_s,
        **nothing,
    }


def _merge_outcome(
    spec: FleetSpec,
    server: ServerState,
    plan: RoundPlan,
    reports: Mapping[int, Report],
    trained: Flags,
    idle: Mapping[str, Any],
) -> RoundOutcome:
    """Return the planned outcome with the reported values in it."""
    system, before, planned = spec.system, server.estimate, plan.outcome
    values: dict[str, Any] = {
        name: _merge(reports, name, idle.get(name, getattr(planned, name))) for name in OUTCOME_FIELDS
    }
    accuracy = _merge(reports, "accuracy", server.accuracy)
    train = jnp.asarray([n in reports and reports[n].trained for n in range(system.size)])
    reported = jnp.asarray(_flags(range(system.size), reports))  # all others count as having served no requests
    objectives = round_objectives(
        train, jnp.where(reported, accuracy, 0.0), jnp.where(reported, values["latency_s"], 0.0), values["energy_j"]
    )
    # A device without a report has converted no requests, so its buffer did not overflow.
    violations = dataclasses.replace(planned.violations, c3=planned.violations.c3 & reported)
    return dataclasses.replace(
        planned,
        **values,
        violations=violations,
        executed=dataclasses.replace(planned.executed, train=train),
        trained=jnp.asarray(trained),
        accuracy=accuracy,
        server_accuracy=server_accuracy(system.accuracy_mapping, jnp.asarray(trained), before.data, before.data_age_s),
        objectives=objectives,
        reward=reward(objectives, violations.any(), system.penalty),
        estimated_accuracy=planned.accuracy,
    )


def _merge_state(
    server: ServerState,
    plan: RoundPlan,
    reports: Mapping[int, Report],
    trained: Flags,
    idle: Mapping[str, Any],
    outcome: RoundOutcome,
) -> FleetState:
    """Return the expected state with the reported values in it."""
    values = {name: _merge(reports, name, idle[name]) for name in STATE_FIELDS}
    return dataclasses.replace(
        plan.expected,
        queue=values["queue"],
        waited_s=values["waited_s"],
        # The next instruction acknowledges an accepted update; the device then removes the samples of the update.
        data=jnp.where(trained, 0.0, values["data"]),
        data_age_s=jnp.where(trained, FRESH_AGE_S, values["data_age_s"]),
        model_age_s=jnp.where(trained, 0.0, values["model_age_s"]),
        model_accuracy=jnp.where(trained, outcome.server_accuracy, server.estimate.model_accuracy),
        last_action=outcome.executed,
        last_gain=outcome.gain,
    )


def _merge(reports: Mapping[int, Report], name: str, default: Any) -> Array:
    """Return a field of the reports, [devices]; ``default`` where there is no report."""
    values = np.array(default, np.float32)
    for n, report in reports.items():
        values[n] = getattr(report, name)
    return jnp.asarray(values)


def _flags(devices: Iterable[int], members: Mapping[int, Any]) -> Flags:
    return np.array([n in members for n in devices])
