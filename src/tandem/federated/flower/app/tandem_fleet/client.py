"""A device's door: what Flower brings goes to the device, what the device says goes back.

With ``device-address`` in the node's configuration the device is a process of its own, which outlives this one and has
everything compiled; nothing heavy is imported here then. Without it (simulation) the device lives in this process, and
its memory in the run's folder.
"""

from __future__ import annotations

import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp


def hello(message: Message, context: Context) -> Message:
    """Which device this node is."""
    return _reply(message, {"device": int(context.node_config["partition-id"])})


def obey(message: Message, context: Context) -> Message:
    """One instruction, one report."""
    sent: Any = message.content["fleet"]
    address = context.node_config.get("device-address")
    if address is not None:
        report = _asked(str(address), sent["instruction"], float(sent["deadline_s"]))
    else:
        from tandem.federated.flower.client_app import handle_message

        number = int(context.node_config["partition-id"])
        report = handle_message(str(context.run_config["folder"]), number, sent["instruction"])
    return _reply(message, {"report": report})


def _asked(address: str, instruction: bytes, deadline_s: float) -> bytes:
    """The device's report. A device that hangs must not keep this node from the next round: every step has an end."""
    until_s = time.monotonic() + deadline_s
    try:
        with _called(address, deadline_s) as device:
            device.send_bytes(instruction)
            if device.poll(max(until_s - time.monotonic(), 0)):
                return device.recv_bytes()
    except BlockingIOError:  # it lets nobody in, or does not listen to the end
        pass
    except EOFError:
        raise ConnectionError(f"{address}: the device has refused the instruction, or ended; its log says.") from None
    except OSError as error:
        raise ConnectionError(f"{address}: no device listens there ({error.strerror}).") from None
    raise TimeoutError(f"{address}: the device has not answered within {deadline_s:g} s.")


def _called(address: str, patience_s: float) -> Connection:
    """A connection on which no call, message or pause in an answer lasts longer than so; BlockingIOError if it does."""
    limit = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6))
    with socket.socket(socket.AF_UNIX) as calling:
        for side in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            calling.setsockopt(socket.SOL_SOCKET, side, limit)
        calling.connect(address)
        return Connection(calling.detach())


def _reply(message: Message, fields: dict[str, Any]) -> Message:
    return Message(RecordDict({"fleet": ConfigRecord(fields)}), reply_to=message)


app = ClientApp()
app.query()(hello)
app.train()(obey)
