"""One device of a fleet as a state machine: an instruction leads to the next state and a report.

The samples behind an update are kept until a later instruction acknowledges the update. If none does, the server has
not used the update, and the samples are trained on again. A message that is lost, late or repeated therefore neither
loses a sample nor causes one to be trained on twice. ``client_round`` has the work of a round.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import equinox as eqx

from tandem.device.hardware import Hardware
from tandem.federated.algorithm import Model
from tandem.federated.fleet.client_round import ClientSnapshot, catch_up, commit_update, initial_snapshot, run_round
from tandem.federated.fleet.messages import Instruction, ProtocolError, Report, validate_weights
from tandem.federated.fleet.spec import ClientContext


def handle_instruction(
    context: ClientContext,
    snapshot: ClientSnapshot | None,
    instruction: Instruction,
    hardware: Hardware,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[ClientSnapshot, Report]:
    """Execute an instruction; returns the next state, which must be stored before the report is sent.

    A repeated instruction gives the same report again; an instruction of an earlier round raises ``ProtocolError``.
    """
    if instruction.device != context.device:
        raise ProtocolError(f"device: the instruction is for device {instruction.device}, this is {context.device}.")
    if instruction.fingerprint != context.spec.fingerprint:
        raise ProtocolError(
            "fingerprint: the run has another scenario or seed than this device; start the device with the run's "
            "scenario.yaml and --seed."
        )
    if snapshot is None or snapshot.run != instruction.run:
        snapshot = initial_snapshot(context, instruction.run, instruction.clock_s)
    if instruction.round == snapshot.round and snapshot.report is not None:
        return snapshot, snapshot.report
    if instruction.round <= snapshot.round:
        raise ProtocolError(f"round: {instruction.round} is not after {snapshot.round}, which is already done.")
    current = snapshot.client.model
    model = current if instruction.weights is None else validate_weights(instruction.weights, current)
    snapshot = _apply_acknowledgement(snapshot, instruction, model)
    snapshot = catch_up(context, snapshot, instruction.clock_s)
    return run_round(context, snapshot, instruction, model, hardware, clock)


def _apply_acknowledgement(snapshot: ClientSnapshot, instruction: Instruction, model: Model) -> ClientSnapshot:
    """Commit the last update if the server has used it; otherwise keep its samples, to train on them again."""
    if instruction.acknowledged <= snapshot.settled:
        return dataclasses.replace(snapshot, update_pending=False)
    if snapshot.update_pending and instruction.acknowledged == snapshot.round:
        snapshot = commit_update(snapshot, model)
    else:  # this device has lost its state and with it the update: only adopt the server's model
        snapshot = dataclasses.replace(snapshot, client=eqx.tree_at(lambda c: c.model, snapshot.client, model))
    # Without weights no model was adopted. The report then has a lower ``settled``, and the server sends the model.
    settled = snapshot.settled if instruction.weights is None else instruction.acknowledged
    return dataclasses.replace(snapshot, settled=settled, update_pending=False)


def sample_counts(snapshot: ClientSnapshot) -> dict[str, int]:
    """Return how many requests and samples the device holds, and the totals of its counters."""
    state = snapshot.client
    counters = {name: int(count) for name, count in vars(state.counters).items()}
    return {"waiting": int(state.waiting_count), "buffered": int(state.buffer_count), **counters}
