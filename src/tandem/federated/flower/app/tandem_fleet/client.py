"""A device's door: what Flower brings goes to the device, what the device says goes back.

With ``device-address`` in the node's configuration the device is a process of its own, which outlives this one and has
everything compiled; nothing heavy is imported here then. Without it (simulation) the device lives in this process, and
its memory in the run's folder.
"""

from __future__ import annotations

from multiprocessing.connection import Client
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
        from tandem.federated.flower.within import answer

        number = int(context.node_config["partition-id"])
        report = answer(str(context.run_config["folder"]), number, sent["instruction"])
    return _reply(message, {"report": report})


def _asked(address: str, instruction: bytes, deadline_s: float) -> bytes:
    with Client(address, family="AF_UNIX") as device:
        device.send_bytes(instruction)
        if not device.poll(deadline_s):  # or a device that hangs would keep this node from the next round too
            raise TimeoutError(f"{address}: the device has not answered within {deadline_s:g} s.")
        return device.recv_bytes()


def _reply(message: Message, fields: dict[str, Any]) -> Message:
    return Message(RecordDict({"fleet": ConfigRecord(fields)}), reply_to=message)


app = ClientApp()
app.query()(hello)
app.train()(obey)
