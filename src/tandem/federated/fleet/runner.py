"""A run of a fleet: round after round, whatever carries the messages."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tandem.federated.fleet.config import PROGRESS, RESULT, SCENARIO, FleetConfig, load_policy
from tandem.federated.fleet.messages import Instruction
from tandem.federated.fleet.server import TimedRound, aggregate_round
from tandem.federated.fleet.server_plan import ServerState, plan_round
from tandem.federated.fleet.server_store import load_run, save_round, server_lock
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel.state import FleetState, RoundOutcome
from tandem.io.atomic import atomic_write
from tandem.io.tables import Table
from tandem.objectives import OBJECTIVE_KEYS, to_user_units
from tandem.policy.base import Policy
from tandem.runs.trace import trace_table, write_trace
from tandem.scenario import build_device_table, load_scenario

# Takes instructions out, and brings what has come back by the deadline: a report's bytes, or why there is none.
Transport = Callable[[Sequence[Instruction]], Mapping[int, bytes | str]]


def run_rounds(
    problem: FleetSpec, policy: Policy, server: ServerState, number: int, carry: Transport
) -> Iterator[tuple[ServerState, TimedRound]]:
    """Play so many rounds from here on. A carrier that brings nothing, or rubbish, costs those devices that round."""
    for _ in range(number):
        began_s = time.perf_counter()
        decided = plan_round(problem, policy, server)
        server, closed = aggregate_round(problem, server, decided, carry(decided.instructions))
        yield server, TimedRound(closed, time.perf_counter() - began_s)


def stack_rounds(played: Sequence[TimedRound]) -> tuple[FleetState, RoundOutcome]:
    """States before each round and outcomes, [rounds, ...] in NumPy, as ``runs.simulation.histories`` gives them."""
    plain = [
        (
            dataclasses.replace(one.record.before, key=jax.random.key_data(one.record.before.key)),
            one.record.outcome,
        )
        for one in played
    ]
    stacked: tuple[FleetState, RoundOutcome] = jax.tree.map(lambda *leaves: np.stack(leaves), *plain)
    return stacked


def fleet_table(seed: int, names: Sequence[str], played: Sequence[TimedRound]) -> Table:
    """The simulator's trace, and for each device whether it was heard and how long it worked by the wall clock."""
    return {
        **trace_table(seed, names, *stack_rounds(played)),
        "reported": np.concatenate([one.record.reported for one in played]),
        "work_s": np.concatenate([one.record.work_s for one in played]),
    }


def summary(names: Sequence[str], played: Sequence[TimedRound]) -> dict[str, Any]:
    """A run in a few numbers, for a JSON document."""
    _, outcome = stack_rounds(played)
    means = to_user_units(np.asarray(outcome.objectives, np.float64).mean(axis=0))
    return {
        "rounds": len(played),
        "objectives": dict(zip(OBJECTIVE_KEYS, means.tolist(), strict=True)),
        "trainers_per_round": float(np.sum(outcome.trained, axis=-1).mean()),
        "simulated_s": float(np.sum(outcome.duration_s)),
        "wall_s_by_round": [one.wall_s for one in played],
        "reports": int(sum(one.record.reported.sum() for one in played)),
        "reports_expected": len(played) * len(names),
        "failures": [
            {"round": number, "device": names[n], "reason": reason}
            for number, one in enumerate(played)
            for n, reason in one.record.refused.items()
        ],
    }


def run_to_folder(folder: Path, settings: FleetConfig, problem: FleetSpec, carry: Transport) -> dict[str, Any]:
    """Play the rounds that are left; every file is whole or not there, also when the run is stopped."""
    policy = load_policy(settings.policy, settings.prefer, problem.system)
    names = build_device_table(load_scenario(folder / SCENARIO)).names
    with server_lock(folder):
        server, played = load_run(folder, problem, policy, settings.run)
        try:
            for after, one in run_rounds(problem, policy, server, settings.rounds - len(played), carry):
                save_round(folder, after, one)  # before anybody hears of the next
                played.append(one)
                _append(folder / PROGRESS, _line(len(played), names, one))
        finally:
            if played and settings.trace != "none":
                write_trace(folder / f"trace.{settings.trace}", [fleet_table(settings.seed, names, played)])
        document = summary(names, played)
        with atomic_write(folder / RESULT) as temporary:
            temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return document


def _line(done: int, names: Any, one: TimedRound) -> dict[str, Any]:
    outcome = one.record.outcome
    return {
        "done": done,
        "trained": int(outcome.trained.sum()),
        "reported": int(one.record.reported.sum()),
        "wall_s": one.wall_s,
        "failed": {names[n]: reason for n, reason in one.record.refused.items()},
    }


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
