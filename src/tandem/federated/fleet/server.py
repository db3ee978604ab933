"""The server of a fleet, as a state machine, second half: a round ends with the reports there are.

Reports take the place of what the plan expected. A device without a usable report has done nothing as far as the server
knows: no update of its own counts, its requests have waited, its samples are still there. What it did all the same, it
will say when it is heard again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.federated.algorithm import AlgorithmState, FederatedAlgorithm, Model, aggregate_models
from tandem.federated.fleet.messages import (
    OUTCOME_FIELDS,
    STATE_FIELDS,
    Instruction,
    ProtocolError,
    Report,
    from_bytes,
    validate_weights,
)
from tandem.federated.fleet.server_plan import Flags, RoundPlan, ServerState
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel.accuracy import server_accuracy
from tandem.feel.ages import FRESH_AGE_S
from tandem.feel.constraints import exceeds
from tandem.feel.queues import next_queue
from tandem.feel.rewards import reward, round_objectives
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.types import Scalar

NO_ANSWER = "no answer in time"
ROUNDING = 1e-3  # single precision, over many rounds


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """A round as it was: the state before it and what happened, as the simulator has them, and who failed how."""

    before: FleetState
    outcome: RoundOutcome
    reported: Flags
    work_s: NDArray[np.float64]
    refused: dict[int, str]  # why a device's answer did not count


def aggregate_round(
    problem: FleetSpec, server: ServerState, plan: RoundPlan, answers: Mapping[int, bytes | str]
) -> tuple[ServerState, RoundRecord]:
    """End the round with what has arrived: by device, a report's bytes, or a word on why there is none."""
    reports: dict[int, Report] = {}
    updates: dict[int, Model] = {}
    refused: dict[int, str] = {}
    for order in plan.instructions:
        answer = answers.get(order.device, NO_ANSWER)
        try:
            if isinstance(answer, str):
                raise ProtocolError(answer)
            report = from_bytes(Report, answer)
            update = _checked(report, order, server.model, float(problem.system.round_max_s))
            _check_fits(report, problem)
        except ProtocolError as error:
            refused[order.device] = str(error)
            continue
        reports[order.device] = report
        if update is not None:
            updates[order.device] = update
    samples = {n: reports[n].samples for n in updates}
    algorithm_state, model = aggregate_updates(
        problem.task.algorithm, server.algorithm_state, server.model, updates, samples
    )
    after, record = _after(problem, server, plan, reports, updates, model, refused)
    return dataclasses.replace(after, algorithm_state=algorithm_state), record


def _checked(report: Report, order: Instruction, model: Model, round_max_s: float) -> Model | None:
    """The update a report brings, if in time; ``GarbledError`` if it is not an answer to this instruction."""
    for name in ("run", "device", "round"):
        found, wanted = getattr(report, name), getattr(order, name)
        if found != wanted:
            raise ProtocolError(f"{name}: the report is of {found}, and {wanted} was asked.")
    if report.settled > order.acknowledged:
        raise ProtocolError(f"settled: round {report.settled} was never acknowledged.")
    if not report.trained:
        return None
    if not order.train or report.weights is None:
        raise ProtocolError("trained: " + ("it has no update with it." if order.train else "it was told to serve."))
    update = validate_weights(report.weights, model)
    late = bool(exceeds(jnp.asarray([report.compute_s + report.upload_s]), jnp.asarray(round_max_s))[0])
    return None if late else update


def _check_fits(report: Report, problem: FleetSpec) -> None:
    """Refuse more than a device has room for: it would outweigh everybody in the average, or in the next decision."""
    room = {
        "samples": problem.task.capacities.buffer,
        "queue": float(problem.system.queue_max),
        "data": float(problem.system.data_limit[report.device]),
    }
    for name, most in room.items():
        found = getattr(report, name)
        if found > most * (1 + ROUNDING):
            raise ProtocolError(f"{name}: {found:g} is more than a device has room for, {most:g}.")


def aggregate_updates(
    algorithm: FederatedAlgorithm,
    state: AlgorithmState,
    model: Model,
    updates: Mapping[int, Model],
    samples: Mapping[int, int],
) -> tuple[AlgorithmState, Model]:
    """Aggregate the updates of a round, in the order of the devices; without any, nothing changes."""
    if not updates:
        return state, model
    order = sorted(updates)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(updates[n] for n in order))
    weights = jnp.asarray([samples[n] for n in order], jnp.float32)
    return aggregate_models(algorithm, state, model, stacked, weights)


def _after(
    problem: FleetSpec,
    server: ServerState,
    plan: RoundPlan,
    reports: Mapping[int, Report],
    updates: Mapping[int, Model],
    model: Model,
    refused: dict[int, str],
) -> tuple[ServerState, RoundRecord]:
    size = problem.system.size
    reported = np.isin(np.arange(size), list(reports))
    trained = np.isin(np.arange(size), list(updates))

    def told(name: str, otherwise: Any) -> Any:
        values = np.array(otherwise, np.float32)
        for n, report in reports.items():
            values[n] = getattr(report, name)
        return jnp.asarray(values)

    silent = _nothing_done(server.estimate, plan, problem.system.queue_max)
    standing = {name: told(name, silent[name]) for name in STATE_FIELDS}
    events = {name: told(name, silent.get(name, getattr(plan.outcome, name))) for name in OUTCOME_FIELDS}
    accuracy = told("accuracy", server.accuracy)
    train = jnp.asarray([n in reports and reports[n].trained for n in range(size)])
    before = server.estimate
    new_accuracy = server_accuracy(
        problem.system.accuracy_mapping, jnp.asarray(trained), before.data, before.data_age_s
    )
    answered = jnp.asarray(reported)  # who was not heard gave nobody an answer
    objectives = round_objectives(
        train, jnp.where(answered, accuracy, 0.0), jnp.where(answered, events["latency_s"], 0.0), events["energy_j"]
    )
    executed = dataclasses.replace(plan.outcome.executed, train=train)
    outcome = dataclasses.replace(
        plan.outcome,
        **events,
        executed=executed,
        trained=jnp.asarray(trained),
        accuracy=accuracy,
        server_accuracy=new_accuracy,
        objectives=objectives,
        reward=reward(objectives, plan.outcome.violations.any(), problem.system.penalty),
        estimated_accuracy=plan.outcome.accuracy,
    )
    belief = dataclasses.replace(
        plan.expected,
        queue=standing["queue"],
        waited_s=standing["waited_s"],
        # The server knows what the device will hear next: an update that counts takes its samples with it.
        data=jnp.where(trained, 0.0, standing["data"]),
        data_age_s=jnp.where(trained, FRESH_AGE_S, standing["data_age_s"]),
        model_age_s=jnp.where(trained, 0.0, standing["model_age_s"]),
        model_accuracy=jnp.where(trained, new_accuracy, before.model_accuracy),
        last_action=Action(train, executed.power, executed.frequency),
        last_gain=events["gain"],
    )
    after = ServerState(
        run=server.run,
        estimate=belief,
        accuracy=np.asarray(accuracy),
        model=model,
        algorithm_state=server.algorithm_state,
        acknowledged=np.where(trained, plan.round, server.acknowledged),
        settled=np.array([reports[n].settled if n in reports else server.settled[n] for n in range(size)]),
        heard=reported,
    )
    work_s = np.array([reports[n].work_s if n in reports else 0.0 for n in range(size)])
    return after, RoundRecord(before, outcome, reported, work_s, refused)


def _nothing_done(before: FleetState, plan: RoundPlan, queue_max: Scalar) -> dict[str, Any]:
    """What the server assumes of a device it has not heard: that requests came and nothing else happened."""
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


@dataclass(frozen=True)
class TimedRound:
    """A round that was played, and how long it took by the wall clock."""

    record: RoundRecord
    wall_s: float
