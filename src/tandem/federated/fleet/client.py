"""One device of a fleet, as a state machine: an instruction in, the next state and a report out.

Samples that were trained on stay until a later instruction acknowledges the update; if none does, the server never used
it, and they are trained on again. So a message that is lost, late or repeated neither loses a sample nor lets one be
trained on twice. What the device does between instruction and report is in ``living``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import equinox as eqx

from tandem.federated.algorithm import Model
from tandem.federated.fleet.client_round import (
    ClientContext,
    ClientSnapshot,
    catch_up,
    commit_update,
    initial_snapshot,
    run_round,
)
from tandem.federated.fleet.hardware import Hardware
from tandem.federated.fleet.messages import Instruction, ProtocolError, Report, validate_weights

NO_ROUND = -1


@dataclasses.dataclass(frozen=True)
class ProtocolState:
    """A device, durable: all of this is on disk before a report is sent."""

    run: str
    number: int
    round: int  # the last one it took part in; -1 is none
    settled: int  # the last acknowledged round it has acted on
    unsettled: bool  # its last report carried an update that it has not heard of since
    snapshot: ClientSnapshot
    report: Report | None  # the last one, in case the instruction comes again


def initial_state(place: ClientContext, run: str, clock_s: float) -> ProtocolState:
    """A device that joins the run now."""
    return ProtocolState(run, place.number, NO_ROUND, NO_ROUND, False, initial_snapshot(place, clock_s), None)


def handle_instruction(
    place: ClientContext,
    station: ProtocolState | None,
    order: Instruction,
    hardware: Hardware,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[ProtocolState, Report]:
    """Do as told: the next state, to be kept before the report is sent.

    An instruction that was obeyed already is answered as before; one of an earlier round is refused.
    """
    if order.device != place.number:
        raise ProtocolError(f"device: the instruction is for device {order.device}, and this is {place.number}.")
    if order.fingerprint != place.spec.fingerprint:
        raise ProtocolError(
            "fingerprint: the run has another scenario or seed than this device; start the device with the run's "
            "scenario.yaml and --seed."
        )
    if station is None or station.run != order.run:
        station = initial_state(place, order.run, order.clock_s)
    if order.round == station.round and station.report is not None:
        return station, station.report
    if order.round <= station.round:
        raise ProtocolError(f"round: the instruction is of round {order.round}, and round {station.round} is done.")
    current = station.snapshot.client.model
    model = current if order.weights is None else validate_weights(order.weights, current)
    station = _settled(station, order, model)
    counts = catch_up(place, station.snapshot, order.clock_s)
    counts, work = run_round(place, counts, order, model, hardware, clock)
    report = Report(
        run=order.run,
        device=order.device,
        round=order.round,
        weights=work.weights,
        trained=work.trained,
        settled=station.settled,
        samples=work.samples,
        accuracy=work.accuracy,
        work_s=work.work_s,
        **work.values,
    )
    return dataclasses.replace(
        station, round=order.round, unsettled=work.trained, snapshot=counts, report=report
    ), report


def _settled(station: ProtocolState, order: Instruction, model: Model) -> ProtocolState:
    """The last update is in the server's model, and its samples go; or it never will be, and they stay."""
    if order.acknowledged <= station.settled:
        return dataclasses.replace(station, unsettled=False)
    counts = station.snapshot
    if station.unsettled and order.acknowledged == station.round:
        counts = commit_update(counts, model)
    else:  # it has forgotten what it sent, with its disk: a model is news all the same
        counts = eqx.tree_at(lambda c: c.client.model, counts, model)
    # The server leaves out a model that this device once had; it sends it if the report says that it is not settled.
    settled = station.settled if order.weights is None else order.acknowledged
    return dataclasses.replace(station, settled=settled, unsettled=False, snapshot=counts)


def sample_counts(station: ProtocolState) -> dict[str, int]:
    """What it holds and what has become of the rest, in whole requests and samples."""
    device = station.snapshot.client
    tally = {name: int(count) for name, count in vars(device.counters).items()}
    return {"waiting": int(device.waiting_count), "buffered": int(device.buffer_count), **tally}
