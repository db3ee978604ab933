"""The door between a SuperNode and its device: whatever the device does, the node is free again by the deadline."""

import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower

Ask = Callable[[str, bytes, float], bytes]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    from tandem.federated.flower.launcher import APP

    monkeypatch.syspath_prepend(str(APP))
    from tandem_fleet.client import _asked

    return _asked


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with Listener(str(tmp_path / "socket"), family="AF_UNIX") as listening:
        yield listening


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_a_device_that_hangs_keeps_nobody(ask: Ask, listener: Listener, size: int) -> None:
    for _ in range(4):  # the line of callers is full after two
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match=r"has not answered within 0\.2 s"):
            ask(str(listener.address), bytes(size), 0.2)
        assert time.monotonic() - began_s < 2


def test_an_answer_comes_back_whole(ask: Ask, listener: Listener) -> None:
    def echo() -> None:
        with listener.accept() as caller:
            caller.send_bytes(caller.recv_bytes() * 2)

    threading.Thread(target=echo, daemon=True).start()
    assert ask(str(listener.address), bytes(3_000_000), 20.0) == bytes(6_000_000)


def test_a_device_that_refuses_or_is_not_there_is_told_apart(ask: Ask, listener: Listener, tmp_path: Path) -> None:
    def refuse() -> None:
        with listener.accept() as caller:
            caller.recv_bytes()

    threading.Thread(target=refuse, daemon=True).start()
    with pytest.raises(ConnectionError, match="has refused the instruction"):
        ask(str(listener.address), b"x", 20.0)
    with pytest.raises(ConnectionError, match="no device listens there"):
        ask(str(tmp_path / "nowhere"), b"x", 20.0)
