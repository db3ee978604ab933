"""A run of a fleet into its folder: every round as it comes, then the trace and the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tandem.federated.fleet.ledger import only_server, record, remembered
from tandem.federated.fleet.playing import Carrier, Played, fleet_table, rounds, summary
from tandem.federated.fleet.problem import Problem
from tandem.federated.fleet.settings import PROGRESS, RESULT, SCENARIO, FleetSettings, policy_named
from tandem.runs.files import written_whole
from tandem.runs.trace import write_trace
from tandem.scenario import device_table, load_scenario


def play_into(folder: Path, settings: FleetSettings, problem: Problem, carry: Carrier) -> dict[str, Any]:
    """Play the rounds that are left; every file is whole or not there, also when the run is stopped."""
    policy = policy_named(settings.policy, settings.prefer, problem.system)
    names = device_table(load_scenario(folder / SCENARIO)).names
    with only_server(folder):
        server, played = remembered(folder, problem, policy, settings.run)
        try:
            for after, one in rounds(problem, policy, server, settings.rounds - len(played), carry):
                record(folder, after, one)  # before anybody hears of the next
                played.append(one)
                _append(folder / PROGRESS, _line(len(played), names, one))
        finally:
            if played and settings.trace != "none":
                write_trace(folder / f"trace.{settings.trace}", [fleet_table(settings.seed, names, played)])
        document = summary(names, played)
        with written_whole(folder / RESULT) as temporary:
            temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return document


def _line(done: int, names: Any, one: Played) -> dict[str, Any]:
    outcome = one.closed.outcome
    return {
        "done": done,
        "trained": int(outcome.trained.sum()),
        "reported": int(one.closed.reported.sum()),
        "wall_s": one.wall_s,
        "failed": {names[n]: reason for n, reason in one.closed.refused.items()},
    }


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
