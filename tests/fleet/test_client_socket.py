"""The socket between a SuperNode and its device: whatever the device does, the node is free again by the deadline."""

import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower

Request = Callable[[str, bytes, float], bytes]


@pytest.fixture
def request_report(monkeypatch: pytest.MonkeyPatch) -> Request:
    from tandem.federated.flower.launcher import APP

    monkeypatch.syspath_prepend(str(APP))
    from tandem_fleet.client import request_report

    return request_report


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with Listener(str(tmp_path / "socket"), family="AF_UNIX") as listening:
        yield listening


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_device_that_hangs_does_not_block_its_node(request_report: Request, listener: Listener, size: int) -> None:
    for _ in range(4):  # the queue of connections is full after two
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            request_report(str(listener.address), bytes(size), 0.2)
        assert time.monotonic() - began_s < 2


def test_large_answer_arrives_complete(request_report: Request, listener: Listener) -> None:
    def echo() -> None:
        with listener.accept() as connection:
            connection.send_bytes(connection.recv_bytes() * 2)

    threading.Thread(target=echo, daemon=True).start()
    assert request_report(str(listener.address), bytes(3_000_000), 20.0) == bytes(6_000_000)


def test_refusal_differs_from_absence(request_report: Request, listener: Listener, tmp_path: Path) -> None:
    def refuse() -> None:
        with listener.accept() as connection:
            connection.recv_bytes()

    threading.Thread(target=refuse, daemon=True).start()
    with pytest.raises(ConnectionError, match="refused the instruction"):
        request_report(str(listener.address), b"x", 20.0)
    with pytest.raises(ConnectionError, match="no device listens"):
        request_report(str(tmp_path / "nowhere"), b"x", 20.0)
