"""A round's messages over Flower's grid, with a deadline.

Flower numbers its nodes at random. A node that was registered with a key keeps its number, and the user can say which
device it is. Other nodes have new numbers after a restart: every node that is new is asked once which device it is; the
answer may come while a round goes on, and the device takes part in the next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from tandem.federated.fleet.messages import Instruction, to_bytes
from tandem.federated.fleet.server import NO_ANSWER

POLL_S = 0.1
HELLO_S = 600.0  # how long a node may take to say which device it is


class FlowerTransport:
    """Carries instructions to the nodes there are, and brings back what arrives before the deadline."""

    def __init__(self, grid: Grid, size: int, deadline_s: float, nodes: Mapping[int, int] | None = None) -> None:
        """For a fleet of this size; with ``nodes`` no node is asked who it is."""
        self._grid, self._size, self._deadline_s = grid, size, deadline_s
        self._given = nodes is not None
        self._node_of: dict[int, int] = dict(nodes or {})  # by device; or the node that introduced itself last
        self._known: set[int] = set()  # nodes that were asked
        self._asked: dict[str, int] = {}  # the node, by the message that asks it

    def wait(self, patience_s: float) -> int:
        """Until every device is there, or ``patience_s`` have passed. Returns how many are."""
        until_s = time.monotonic() + patience_s
        while True:
            self._discover_nodes()
            there = len(set(self._node_of.values()) & set(self._grid.get_node_ids()))
            if there == self._size or time.monotonic() >= until_s:
                return there
            time.sleep(POLL_S)

    def __call__(self, instructions: Sequence[Instruction]) -> Mapping[int, bytes | str]:
        """What has come back by device: a report, or a word on why there is none."""
        until_s = time.monotonic() + self._deadline_s
        self._discover_nodes()
        connected = set(self._grid.get_node_ids())
        answers: dict[int, bytes | str] = {order.device: "not connected" for order in instructions}
        sent = [order for order in instructions if self._node_of.get(order.device) in connected]
        messages = [self._message(order) for order in sent]
        waiting = {
            name: order.device for name, order in zip(self._grid.push_messages(messages), sent, strict=True) if name
        }
        answers.update(dict.fromkeys(waiting.values(), NO_ANSWER))
        while waiting and time.monotonic() < until_s:
            time.sleep(POLL_S)
            for reply in self._grid.pull_messages(list(waiting)):
                device = waiting.pop(reply.metadata.reply_to_message_id, None)
                if device is not None:
                    answers[device] = _answer(reply)
            self._discover_nodes()
        return answers

    def _message(self, order: Instruction) -> Message:
        # A node gives up on its device a little before the server does, and is free for the next round.
        fields = {"instruction": to_bytes(order), "deadline_s": 0.8 * self._deadline_s}
        # It expires with the round: a node that was away must not find last week's instructions.
        return _to(self._node_of[order.device], "train", fields, self._deadline_s)

    def _discover_nodes(self) -> None:
        """Ask new nodes who they are, and hear those who have answered."""
        if self._given:
            return
        new = [node for node in self._grid.get_node_ids() if node not in self._known]
        if new:
            self._known.update(new)
            names = self._grid.push_messages([_to(node, "query", {"hello": True}, HELLO_S) for node in new])
            self._asked.update({name: node for name, node in zip(names, new, strict=True) if name})
        if not self._asked:
            return
        for reply in self._grid.pull_messages(list(self._asked)):
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                self._known.discard(node)  # it is asked again, if it is still there
                continue
            device = reply.content["fleet"].get("device") if "fleet" in reply.content else None
            if isinstance(device, int) and 0 <= device < self._size:
                self._node_of[device] = node


def _to(node: int, kind: str, fields: dict[str, Any], ttl_s: float) -> Message:
    return Message(RecordDict({"fleet": ConfigRecord(fields)}), dst_node_id=node, message_type=kind, ttl=ttl_s)


def _answer(reply: Message) -> bytes | str:
    """The report's bytes as they are, to be judged by whoever knows reports."""
    if reply.has_error():
        lines = str(reply.error.reason).strip().splitlines()
        return f"Flower's error {reply.error.code}: {lines[-1] if lines else 'no reason given'}"
    report = reply.content["fleet"].get("report") if "fleet" in reply.content else None
    return report if isinstance(report, bytes) else "an answer without a report"
