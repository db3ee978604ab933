"""Which node is which device: nodes that name their device, or nodes that the user has named."""

from collections.abc import Sequence
from typing import Any

import pytest

from tandem.federated.fleet.decider import PolicyDecider
from tandem.federated.fleet.server import init_server, plan_round
from tandem.federated.fleet.spec import FleetSpec
from tandem.policy.heuristics import Threshold

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower


class SilentGrid:
    """Flower's grid with nodes that never answer."""

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


@pytest.fixture(autouse=True)
def _plain_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages can be made only within a run."""
    from tandem.federated.flower import transport

    monkeypatch.setattr(transport, "make_message", lambda node, message_type, fields, ttl_s: (node, message_type))


def test_instructions_go_to_given_nodes_only(spec: FleetSpec) -> None:
    from tandem.federated.flower.transport import FlowerTransport

    grid = SilentGrid(11, 22, 99)
    transport = FlowerTransport(grid, 4, 0.3, {0: 11, 1: 22, 2: 33, 3: 44})
    assert transport.wait_for_devices(0.0) == 2
    plan = plan_round(spec, PolicyDecider(spec.system, Threshold()), init_server(spec, "test"))
    answers = transport(plan.instructions)
    assert grid.sent == [(11, "train"), (22, "train")]
    assert answers == {0: "no answer in time", 1: "no answer in time", 2: "not connected", 3: "not connected"}


def test_other_nodes_are_queried_once() -> None:
    from tandem.federated.flower.transport import FlowerTransport

    grid = SilentGrid(11, 22)
    assert FlowerTransport(grid, 2, 0.3).wait_for_devices(0.5) == 0
    assert grid.sent == [(11, "query"), (22, "query")]
