"""The loop over the rounds of a fleet, for any transport of messages."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tandem.federated.fleet.config import FleetConfig
from tandem.federated.fleet.decider import Decider, LoadDecider
from tandem.federated.fleet.messages import Instruction
from tandem.federated.fleet.run_dir import PROGRESS, RESULT, SCENARIO, server_lock
from tandem.federated.fleet.server import RoundRecord, ServerState, aggregate_round, plan_round
from tandem.federated.fleet.server_store import load_server, save_round
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel.state import FleetState, RoundOutcome
from tandem.io.tables import Table, write_json
from tandem.objectives import OBJECTIVE_KEYS, to_user_units
from tandem.runs.trace import trace_table, write_trace
from tandem.scenario import build_device_table, load_scenario

# Delivers instructions, and returns by device the report's bytes, or the reason why there is none by the deadline.
Transport = Callable[[Sequence[Instruction]], Mapping[int, bytes | str]]


def run_rounds(
    spec: FleetSpec, decide: Decider, server: ServerState, count: int, transport: Transport
) -> Iterator[tuple[ServerState, RoundRecord]]:
    """Run ``count`` rounds. A device without a valid answer misses that round; the others are not affected."""
    for _ in range(count):
        began_s = time.perf_counter()
        plan = plan_round(spec, decide, server)
        server, record = aggregate_round(spec, server, plan, transport(plan.instructions))
        yield server, dataclasses.replace(record, wall_s=time.perf_counter() - began_s)


def run_to_folder(
    folder: Path, config: FleetConfig, spec: FleetSpec, transport: Transport, load_decider: LoadDecider
) -> dict[str, Any]:
    """Run the remaining rounds of the run in a folder, write trace and result, and return the result.

    Files are written atomically, so each is complete or absent if the run is stopped.
    """
    scenario = load_scenario(folder / SCENARIO)
    decide = load_decider(config, scenario, spec.system)
    names = build_device_table(scenario).names
    with server_lock(folder):
        server, records = load_server(folder, spec, decide, config.run)
        try:
            for after, record in run_rounds(spec, decide, server, scenario.rounds - len(records), transport):
                save_round(folder, after, record)  # before the next instructions are sent
                records.append(record)
                _append_line(folder / PROGRESS, _progress_line(len(records), names, record))
        finally:
            if records and config.trace != "none":
                write_trace(folder / f"trace.{config.trace}", [fleet_table(config.seed, names, records)])
        result = summarise_rounds(names, records)
        write_json(folder / RESULT, result)
    return result


def stack_rounds(records: Sequence[RoundRecord]) -> tuple[FleetState, RoundOutcome]:
    """Stack states before each round and outcomes, [rounds, ...] in NumPy, like ``runs.simulation``."""
    pairs = [
        (dataclasses.replace(record.before, key=jax.random.key_data(record.before.key)), record.outcome)
        for record in records
    ]
    stacked: tuple[FleetState, RoundOutcome] = jax.tree.map(lambda *leaves: np.stack(leaves), *pairs)
    return stacked


def fleet_table(seed: int, names: Sequence[str], records: Sequence[RoundRecord]) -> Table:
    """Return the simulator's trace with two more columns: whether the device reported, and its wall-clock time."""
    return {
        **trace_table(seed, names, *stack_rounds(records)),
        "reported": np.concatenate([record.reported for record in records]),
        "work_s": np.concatenate([record.work_s for record in records]),
    }


def summarise_rounds(names: Sequence[str], records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Summarise a run as a JSON document."""
    _, outcome = stack_rounds(records)
    means = to_user_units(np.asarray(outcome.objectives, np.float64).mean(axis=0))
    return {
        "rounds": len(records),
        "objectives": dict(zip(OBJECTIVE_KEYS, means.tolist(), strict=True)),
        "trainers_per_round": float(np.sum(outcome.trained, axis=-1).mean()),
        "simulated_s": float(np.sum(outcome.duration_s)),
        "wall_s_by_round": [record.wall_s for record in records],
        "reports": int(sum(record.reported.sum() for record in records)),
        "reports_expected": len(records) * len(names),
        "failures": [
            {"round": number, "device": names[n], "reason": reason}
            for number, record in enumerate(records)
            for n, reason in record.refused.items()
        ],
    }


def _progress_line(done: int, names: Sequence[str], record: RoundRecord) -> dict[str, Any]:
    return {
        "done": done,
        "trained": int(record.outcome.trained.sum()),
        "reported": int(record.reported.sum()),
        "wall_s": record.wall_s,
        "failed": {names[n]: reason for n, reason in record.refused.items()},
    }


def _append_line(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
