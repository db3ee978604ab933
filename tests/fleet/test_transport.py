"""Who is which device: nodes that say so themselves, or nodes that the user has named."""

from collections.abc import Sequence
from typing import Any

import pytest

from tandem.federated.fleet.server_plan import init_server, plan_round
from tandem.federated.fleet.spec import FleetSpec
from tandem.policy.heuristics import Threshold

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower


class Grid:
    """Flower's, as far as nobody ever answers."""

    def __init__(self, *nodes: int) -> None:
        self.nodes = nodes
        self.sent: list[tuple[int, str]] = []

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Sequence[tuple[int, str]]) -> list[str]:
        self.sent += messages
        return [f"message-{n}" for n, _ in enumerate(messages)]

    def pull_messages(self, names: Sequence[str]) -> list[Any]:
        return []


def test_named_nodes_are_not_asked_and_strangers_not_told(problem: FleetSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.federated.flower import transport as carrier

    monkeypatch.setattr(carrier, "_to", lambda node, kind, fields, ttl_s: (node, kind))  # messages need a run
    grid = Grid(11, 22, 99)
    carry = carrier.FlowerTransport(grid, 4, 0.3, {0: 11, 1: 22, 2: 33, 3: 44})
    assert carry.wait(0.0) == 2
    answers = carry(plan_round(problem, Threshold(), init_server(problem, "test")).instructions)
    assert grid.sent == [(11, "train"), (22, "train")]
    assert answers == {0: "no answer in time", 1: "no answer in time", 2: "not connected", 3: "not connected"}


def test_other_nodes_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.federated.flower import transport as carrier

    monkeypatch.setattr(carrier, "_to", lambda node, kind, fields, ttl_s: (node, kind))
    grid = Grid(11, 22)
    assert carrier.FlowerTransport(grid, 2, 0.3).wait(0.5) == 0
    assert grid.sent == [(11, "query"), (22, "query")]
