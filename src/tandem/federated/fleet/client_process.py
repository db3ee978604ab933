"""A device as a separate process: it answers on a local socket, and outlives the processes that deliver messages."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import tempfile
from dataclasses import replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from tandem.errors import InputError
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.decider import PolicyDecider
from tandem.federated.fleet.messages import ProtocolError, to_bytes
from tandem.federated.fleet.server import init_server, plan_round
from tandem.policy.heuristics import Threshold

READ_TIMEOUT_S = 10.0  # a connection without data for this long is closed


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
    address.unlink(missing_ok=True)  # left by a process that was killed
    try:
        listener = Listener(str(address), family="AF_UNIX")
    except OSError as error:
        raise InputError(f"--address {address}: cannot listen there ({error.strerror}); name another path.") from None
    address.chmod(0o600)
    print(f"device {handler.context.device} listens at {address}", file=sys.stderr, flush=True)
    with listener:
        while True:
            # Ignore peers that disconnect or send nothing: the report is stored and can be requested again.
            with contextlib.suppress(OSError, EOFError), listener.accept() as connection:
                _set_timeout(connection, read_timeout_s)
                report = _handle(handler, connection.recv_bytes())
                if report is not None:  # otherwise the connection closes, and the SuperNode reports an error
                    connection.send_bytes(report)


def _handle(handler: ClientHandler, data: bytes) -> bytes | None:
    try:
        return handler.handle(data)
    except (ProtocolError, OSError) as error:  # a wrong message; a locked state; a full disk
        print(f"refused: {error}", file=sys.stderr, flush=True)
        return None


def _set_timeout(connection: Connection, timeout_s: float) -> None:
    """Limit every pause while sending or receiving; a longer one raises BlockingIOError."""
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as same_socket:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            same_socket.setsockopt(socket.SOL_SOCKET, option, limit)
