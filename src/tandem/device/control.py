"""The socket on which a device takes instructions: one message in, one message out, for the SuperNode beside it.

The device's process outlives the processes that deliver messages, so that it keeps its state and compiled programs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from tandem.device.messages import ProtocolError
from tandem.errors import InputError

READ_TIMEOUT_S = 10.0  # a connection without data for this long is closed
Handle = Callable[[bytes], bytes]  # raises ProtocolError for a message that is refused


def listen(address: Path) -> Listener:
    """Return a listener at a socket that only this user can open. A socket left by a killed process is replaced."""
    address.unlink(missing_ok=True)
    try:
        listener = Listener(str(address), family="AF_UNIX")
    except OSError as error:
        raise InputError(f"--address {address}: cannot listen there ({error.strerror}); name another path.") from None
    address.chmod(0o600)
    return listener


def answer_messages(listener: Listener, handle: Handle, read_timeout_s: float = READ_TIMEOUT_S) -> None:
    """Answer one message at a time until the listener is closed."""
    while True:
        try:
            connection = listener.accept()
        except OSError as error:
            if error.errno is None:  # the listener was closed
                return
            continue
        # Ignore peers that disconnect or send nothing: the report is stored and can be requested again.
        with contextlib.suppress(OSError, EOFError), connection:
            _set_timeout(connection, read_timeout_s)
            report = _handle(handle, connection.recv_bytes())
            if report is not None:  # otherwise the connection closes, and the SuperNode reports an error
                connection.send_bytes(report)


def request_report(address: Path, instruction: bytes, deadline_s: float) -> bytes:
    """Send an instruction to the device at a socket and return its report, both as bytes.

    Raises ConnectionError if there is no device or it refuses, and TimeoutError if it does not answer in time.
    """
    until_s = time.monotonic() + deadline_s
    try:
        with _connect(address, deadline_s) as device:
            device.send_bytes(instruction)
            if device.poll(max(until_s - time.monotonic(), 0)):
                return device.recv_bytes()
    except BlockingIOError:  # the device does not accept the connection, or does not read the whole instruction
        pass
    except EOFError:
        raise ConnectionError(f"{address}: the device refused the instruction, or ended; see its log.") from None
    except OSError as error:
        raise ConnectionError(f"{address}: no device listens there ({error.strerror}).") from None
    raise TimeoutError(f"{address}: the device has not answered within {deadline_s:g} s.")


def _handle(handle: Handle, data: bytes) -> bytes | None:
    try:
        return handle(data)
    except (ProtocolError, OSError) as error:  # a wrong message; a locked state; a full disk
        print(f"refused: {error}", file=sys.stderr, flush=True)
    except Exception:  # the next message may be answered
        traceback.print_exc()
    return None


def _connect(address: Path, timeout_s: float) -> Connection:
    """Connect to a socket, with a limit on every pause, also while the other side does not accept."""
    with socket.socket(socket.AF_UNIX) as connecting:
        _limit_pauses(connecting, timeout_s)
        connecting.connect(str(address))
        return Connection(connecting.detach())


def _set_timeout(connection: Connection, timeout_s: float) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as same_socket:
        _limit_pauses(same_socket, timeout_s)


def _limit_pauses(some_socket: socket.socket, timeout_s: float) -> None:
    """Limit every pause while connecting, sending or receiving; a longer one raises BlockingIOError."""
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        some_socket.setsockopt(socket.SOL_SOCKET, option, limit)
