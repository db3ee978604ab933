"""uvicorn on a socket that is bound before the start, and with an orderly end on SIGTERM and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn

from tandem.errors import InputError
from tandem.io.atomic import reason


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address. Port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise InputError(
            f"--host {host} --port {port}: cannot be used ({reason(error)}); choose another port."
        ) from None
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in the event loop that uvicorn would choose."""
    with asyncio.Runner(loop_factory=uvicorn.Config(app="", log_config=None).get_loop_factory()) as runner:
        runner.run(main)


class GracefulServer(uvicorn.Server):
    """A server that finishes its requests on SIGTERM and Ctrl-C, and whose process then ends with code 0."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None], on_start: Callable[[], None]) -> None:
        """Call ``on_start`` when the server answers, and ``on_stop`` when it is told to end."""
        super().__init__(config)
        self._on_stop = on_stop
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is there now stays: collections need not look at it, which took up to 0.1 s
        if not self.should_exit:
            self._on_start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals here. uvicorn would send them to the process again after the end."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            self._on_stop()
            self.force_exit = self.should_exit  # a second signal does not wait for requests
            self.should_exit = True

        signals = (signal.SIGINT, signal.SIGTERM)
        for each in signals:
            loop.add_signal_handler(each, end)
        try:
            yield
        finally:
            for each in signals:
                loop.remove_signal_handler(each)
