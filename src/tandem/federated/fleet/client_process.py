"""A device as a process of its own: it listens on a local socket, and outlives whoever brings the messages."""

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
from tandem.federated.fleet.messages import ProtocolError, to_bytes
from tandem.federated.fleet.server_plan import init_server, plan_round
from tandem.policy.heuristics import Threshold

READ_TIMEOUT_S = 10.0  # a caller who says nothing for so long is left


def warm_up(device: ClientHandler) -> None:
    """Compile everything a round needs, on a copy of the device that is thrown away."""
    problem = device.context.spec
    order = plan_round(problem, Threshold(), init_server(problem, "warming")).instructions[device.context.number]
    with tempfile.TemporaryDirectory() as folder:
        copy = replace(device, folder=Path(folder))
        for number in range(2):
            train = order.model_copy(update={"round": number, "train": number == 1})
            copy.handle(to_bytes(train.model_copy(update={"clock_s": number * order.duration_s})))


def serve_forever(device: ClientHandler, address: Path, caller_s: float = READ_TIMEOUT_S) -> None:
    """Answer until the process is ended. A message at a time: a device does one thing in a round."""
    warm_up(device)
    address.unlink(missing_ok=True)  # of a process that was killed
    try:
        listener = Listener(str(address), family="AF_UNIX")
    except OSError as error:
        raise InputError(f"--address {address}: cannot be listened on ({error.strerror}); name another path.") from None
    address.chmod(0o600)
    print(f"device {device.context.number} listens at {address}", file=sys.stderr, flush=True)
    with listener:
        while True:
            # Who hung up or says nothing is not our concern: the answer is kept, and the instruction may come again.
            with contextlib.suppress(OSError, EOFError), listener.accept() as caller:
                _bounded(caller, caller_s)
                answer = _answer(device, caller.recv_bytes())
                if answer is not None:  # or else the SuperNode sees the call end, and reports an error
                    caller.send_bytes(answer)


def _answer(device: ClientHandler, said: bytes) -> bytes | None:
    try:
        return device.handle(said)
    except (ProtocolError, OSError) as error:  # no instruction for us; another process at work, or the disk is full
        print(f"refused: {error}", file=sys.stderr, flush=True)
        return None


def _bounded(caller: Connection, patience_s: float) -> None:
    """Let no pause of the caller last longer than so; BlockingIOError if one does."""
    limit = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6))
    with socket.socket(fileno=os.dup(caller.fileno())) as same:
        for side in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            same.setsockopt(socket.SOL_SOCKET, side, limit)
