"""A device of a simulated fleet as a separate process, which answers on a local socket."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tandem.device.control import READ_TIMEOUT_S, answer_messages, listen
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.decider import PolicyDecider
from tandem.federated.fleet.messages import to_bytes
from tandem.federated.fleet.server import init_server, plan_round
from tandem.policy.heuristics import Threshold


def warm_up(handler: ClientHandler) -> None:
    """Compile everything that a round needs, with a temporary copy of the device."""
    spec = handler.context.spec
    plan = plan_round(spec, PolicyDecider(spec.system, Threshold()), init_server(spec, "warm-up"))
    instruction = plan.instructions[handler.context.device]
    with tempfile.TemporaryDirectory() as folder:
        copy = replace(handler, store=Path(folder))
        for number in range(2):
            update = {"round": number, "train": number == 1, "clock_s": number * instruction.duration_s}
            copy.handle(to_bytes(instruction.model_copy(update=update)))


def serve_forever(handler: ClientHandler, address: Path, read_timeout_s: float = READ_TIMEOUT_S) -> None:
    """Answer one message at a time at the socket ``address``, until the process ends."""
    warm_up(handler)
    with listen(address) as listener:
        print(f"device {handler.context.device} listens at {address}", file=sys.stderr, flush=True)
        answer_messages(listener, handler.handle, read_timeout_s)
