"""The ClientApp: passes an instruction from Flower to the device, and the device's report back.

With ``device-address`` in the node's configuration the device is a separate process, which outlives this one and has
everything compiled; nothing large is imported here in that case. Without it (simulation) the device is part of this
process, and its state is in the run's folder.
"""

from __future__ import annotations

import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp


def answer_query(message: Message, context: Context) -> Message:
    """Answer which device this node is."""
    return _reply(message, {"device": int(context.node_config["partition-id"])})


def answer_instruction(message: Message, context: Context) -> Message:
    """Answer an instruction with the device's report."""
    fields: Any = message.content["fleet"]
    address = context.node_config.get("device-address")
    if address is not None:
        report = request_report(str(address), fields["instruction"], float(fields["deadline_s"]))
    else:
        from tandem.federated.flower.client_app import handle_message

        device = int(context.node_config["partition-id"])
        report = handle_message(str(context.run_config["folder"]), device, fields["instruction"])
    return _reply(message, {"report": report})


def request_report(address: str, instruction: bytes, deadline_s: float) -> bytes:
    """Send the instruction to the device at a socket and return its report.

    Every step has a time limit, so that a device that hangs does not keep this node from the next round.
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


def _connect(address: str, timeout_s: float) -> Connection:
    """Connect to a socket, with a limit on every pause; a longer one raises BlockingIOError."""
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    with socket.socket(socket.AF_UNIX) as connecting:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            connecting.setsockopt(socket.SOL_SOCKET, option, limit)
        connecting.connect(address)
        return Connection(connecting.detach())


def _reply(message: Message, fields: dict[str, Any]) -> Message:
    return Message(RecordDict({"fleet": ConfigRecord(fields)}), reply_to=message)


app = ClientApp()
app.query()(answer_query)
app.train()(answer_instruction)
