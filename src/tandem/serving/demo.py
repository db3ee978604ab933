"""A simulated fleet that uses a service over HTTP, round after round. This module imports JAX and httpx."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tandem.serving.bodies import DecisionDocument, OutcomeRequest
from tandem.serving.client import Client, ServiceError
from tandem.serving.simulated_fleet import SimulatedFleet, SimulatedOutcome

_PAUSE_S = 0.5
_TEMPORARY = frozenset({None, 408, 429, 503})  # statuses of a service that is away or busy; None: no answer
Answer = TypeVar("Answer")
Waiting = Callable[[str], None]


@dataclass(frozen=True)
class PlayedRound:
    """A round of the fleet: what the service decided, what happened, and how long the answer took."""

    number: int
    decision: DecisionDocument
    outcome: SimulatedOutcome
    answer_s: float


def play_rounds(
    client: Client, fleet: SimulatedFleet, rounds_per_s: float, waiting: Waiting = lambda problem: None
) -> Iterator[PlayedRound]:
    """Ask for decisions, execute them and record the outcomes, without end.

    ``rounds_per_s`` limits the speed; 0 is no limit. A service that is away is waited for: the same round is asked for
    again, and ``waiting`` gets the problem. Raises ServiceError if the service refuses a request.
    """
    due = time.monotonic()
    while True:
        if rounds_per_s:
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1) + 1 / rounds_per_s  # after a pause at most a second is made up for
        number, report = fleet.round, fleet.report()
        started = time.perf_counter()
        decision = _ask(partial(client.decide, report), waiting)
        answer_s = time.perf_counter() - started
        train = [mode == "train" for mode in decision.mode]
        outcome = fleet.advance(train, decision.power_w, decision.frequency_hz)
        body = OutcomeRequest.model_validate(outcome.document(number))
        _ask(partial(client.record_outcome, body), waiting)
        yield PlayedRound(number, decision, outcome, answer_s)


def wait_for_round(client: Client, waiting: Waiting = lambda problem: None) -> int:
    """Return the number to use for the next round, as soon as the service answers."""
    return _ask(client.next_round, waiting)


def _ask(question: Callable[[], Answer], waiting: Waiting) -> Answer:
    while True:
        try:
            return question()
        except ServiceError as error:
            if error.status not in _TEMPORARY:
                raise
            waiting(str(error))
            time.sleep(_PAUSE_S)
