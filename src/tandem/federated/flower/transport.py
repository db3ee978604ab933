"""The messages of a round over Flower's grid, with a deadline.

Flower assigns random numbers to its nodes. A node that was registered with a key keeps its number, and the user can
name the device it belongs to. Other nodes get a new number after a restart: every new node is asked once which device
it is. The answer may arrive during a round; the device then takes part in the next one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable import inflatable_utils

from tandem.device.messages import Message as FleetMessage
from tandem.device.messages import to_bytes
from tandem.federated.fleet.messages import NO_ANSWER

POLL_S = 0.1
BACKOFF_S = 0.05  # before an object of a reply that is still being sent is asked for again
QUERY_TTL_S = 600.0  # time in which a node may answer which device it is
NODE_SHARE = 0.8  # of the deadline: a node stops waiting for its device first, so that it is free for the next round


# Flower waits for 1 s before it asks again for a part of a reply that was not there. It has no setting for this.
_PULL_OPTIONS = inflatable_utils.pull_objects.__kwdefaults__ or {}
if "initial_backoff" in _PULL_OPTIONS:
    _PULL_OPTIONS["initial_backoff"] = BACKOFF_S


class FlowerTransport:
    """A transport that sends instructions to the connected nodes, and collects the reports before the deadline."""

    def __init__(self, grid: Grid, size: int, deadline_s: float, nodes: Mapping[int, int] | None = None) -> None:
        """Create the transport of ``size`` devices; with ``nodes`` (the node of each device) no node is queried."""
        self._grid, self._size, self._deadline_s = grid, size, deadline_s
        self._nodes_are_given = nodes is not None
        self._node_of: dict[int, int] = dict(nodes or {})  # by device; the node that last named the device
        self._queried: set[int] = set()  # nodes
        self._pending: dict[str, int] = {}  # node, by the id of the query without an answer yet

    def wait_for_devices(self, timeout_s: float) -> int:
        """Wait until every device is connected, or for ``timeout_s``; returns how many are."""
        until_s = time.monotonic() + timeout_s
        while True:
            self._discover_nodes()
            connected = len(set(self._node_of.values()) & set(self._grid.get_node_ids()))
            if connected == self._size or time.monotonic() >= until_s:
                return connected
            time.sleep(POLL_S)

    def __call__(self, instructions: Sequence[FleetMessage]) -> Mapping[int, bytes | str]:
        """Send the instructions and return, by device, the report's bytes, or the reason why there is none."""
        until_s = time.monotonic() + self._deadline_s
        self._discover_nodes()
        connected = set(self._grid.get_node_ids())
        answers: dict[int, bytes | str] = {instruction.device: "not connected" for instruction in instructions}
        devices = [i.device for i in instructions if self._node_of.get(i.device) in connected]
        messages = [self._instruction_message(i) for i in instructions if i.device in devices]
        ids = self._grid.push_messages(messages)
        waiting = {message_id: device for message_id, device in zip(ids, devices, strict=True) if message_id}
        answers.update(dict.fromkeys(waiting.values(), NO_ANSWER))
        while waiting and time.monotonic() < until_s:
            time.sleep(POLL_S)
            for reply in self._grid.pull_messages(list(waiting)):
                device = waiting.pop(reply.metadata.reply_to_message_id, None)
                if device is not None:
                    answers[device] = _read_answer(reply)
            self._discover_nodes()
        return answers

    def _instruction_message(self, instruction: FleetMessage) -> Message:
        fields = {"instruction": to_bytes(instruction), "deadline_s": NODE_SHARE * self._deadline_s}
        # The message expires with the round: a node that reconnects must not receive outdated instructions.
        return make_message(self._node_of[instruction.device], "train", fields, self._deadline_s)

    def _discover_nodes(self) -> None:
        """Ask new nodes which device they are, and read the answers that have arrived."""
        if self._nodes_are_given:
            return
        new = [node for node in self._grid.get_node_ids() if node not in self._queried]
        if new:
            self._queried.update(new)
            queries = [make_message(node, "query", {"query": "device"}, QUERY_TTL_S) for node in new]
            ids = self._grid.push_messages(queries)
            self._pending.update({message_id: node for message_id, node in zip(ids, new, strict=True) if message_id})
        if not self._pending:
            return
        for reply in self._grid.pull_messages(list(self._pending)):
            node = self._pending.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                self._queried.discard(node)  # ask again, if it is still connected
                continue
            device = reply.content["fleet"].get("device") if "fleet" in reply.content else None
            if isinstance(device, int) and 0 <= device < self._size:
                self._node_of[device] = node


def make_message(node: int, message_type: str, fields: dict[str, Any], ttl_s: float) -> Message:
    """Return a Flower message to a node."""
    content = RecordDict({"fleet": ConfigRecord(fields)})
    return Message(content, dst_node_id=node, message_type=message_type, ttl=ttl_s)


def _read_answer(reply: Message) -> bytes | str:
    """Return the report's bytes, which the server checks, or the reason why there is none."""
    if reply.has_error():
        lines = str(reply.error.reason).strip().splitlines()
        return f"Flower's error {reply.error.code}: {lines[-1] if lines else 'no reason given'}"
    report = reply.content["fleet"].get("report") if "fleet" in reply.content else None
    return report if isinstance(report, bytes) else "an answer without a report"
