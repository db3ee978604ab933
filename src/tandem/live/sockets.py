"""A transport of messages to devices on this machine, over their control sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tandem.device.control import request_report
from tandem.device.messages import LiveInstruction, to_bytes


class SocketTransport:
    """Sends an instruction to each device at the same time, and waits for the reports until the deadline."""

    def __init__(self, addresses: Sequence[Path], deadline_s: float) -> None:
        """Use the sockets of the devices, in the order of their numbers."""
        self._addresses = list(addresses)
        self._deadline_s = deadline_s
        self._pool = ThreadPoolExecutor(max_workers=max(len(self._addresses), 1))

    def __call__(self, instructions: Sequence[LiveInstruction]) -> Mapping[int, bytes | str]:
        """Return, by device, the report's bytes, or the reason why there is none."""
        pending = {each.device: self._pool.submit(self._ask, each) for each in instructions}
        return {device: answer.result() for device, answer in pending.items()}

    def _ask(self, instruction: LiveInstruction) -> bytes | str:
        try:
            return request_report(self._addresses[instruction.device], to_bytes(instruction), self._deadline_s)
        except (ConnectionError, TimeoutError) as error:
            return str(error)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)
