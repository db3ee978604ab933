"""A run of a fleet: round after round, whatever carries the messages."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tandem.federated.fleet.closing import Closed, close
from tandem.federated.fleet.coordinator import Server, plan
from tandem.federated.fleet.messages import Instruction
from tandem.federated.fleet.problem import Problem
from tandem.feel.objectives import IN_USERS_UNITS, OBJECTIVES
from tandem.feel.state import FleetState, RoundOutcome
from tandem.policy.protocol import Policy
from tandem.runs.trace import Table, trace_table

# Takes instructions out, and brings what has come back by the deadline: a report's bytes, or why there is none.
Carrier = Callable[[Sequence[Instruction]], Mapping[int, bytes | str]]


@dataclass(frozen=True)
class Played:
    """A round that was played, and how long it took by the wall clock."""

    closed: Closed
    wall_s: float


def rounds(
    problem: Problem, policy: Policy, server: Server, number: int, carry: Carrier
) -> Iterator[tuple[Server, Played]]:
    """Play so many rounds from here on. A carrier that brings nothing, or rubbish, costs those devices that round."""
    for _ in range(number):
        began_s = time.perf_counter()
        decided = plan(problem, policy, server)
        server, closed = close(problem, server, decided, carry(decided.instructions))
        yield server, Played(closed, time.perf_counter() - began_s)


def history(played: Sequence[Played]) -> tuple[FleetState, RoundOutcome]:
    """States before each round and outcomes, [rounds, ...] in NumPy, as ``runs.simulation.histories`` gives them."""
    plain = [
        (
            dataclasses.replace(one.closed.before, key=jax.random.key_data(one.closed.before.key)),
            one.closed.outcome,
        )
        for one in played
    ]
    stacked: tuple[FleetState, RoundOutcome] = jax.tree.map(lambda *leaves: np.stack(leaves), *plain)
    return stacked


def fleet_table(seed: int, names: Sequence[str], played: Sequence[Played]) -> Table:
    """The simulator's trace, and for each device whether it was heard and how long it worked by the wall clock."""
    return {
        **trace_table(seed, names, *history(played)),
        "reported": np.concatenate([one.closed.reported for one in played]),
        "work_s": np.concatenate([one.closed.work_s for one in played]),
    }


def summary(names: Sequence[str], played: Sequence[Played]) -> dict[str, Any]:
    """A run in a few numbers, for a JSON document."""
    _, outcome = history(played)
    means = np.asarray(outcome.objectives, np.float64).mean(axis=0) * IN_USERS_UNITS
    return {
        "rounds": len(played),
        "objectives": dict(zip(OBJECTIVES, means.tolist(), strict=True)),
        "trainers_per_round": float(np.sum(outcome.trained, axis=-1).mean()),
        "simulated_s": float(np.sum(outcome.duration_s)),
        "wall_s_by_round": [one.wall_s for one in played],
        "reports": int(sum(one.closed.reported.sum() for one in played)),
        "reports_expected": len(played) * len(names),
        "failures": [
            {"round": number, "device": names[n], "reason": reason}
            for number, one in enumerate(played)
            for n, reason in one.closed.refused.items()
        ],
    }
