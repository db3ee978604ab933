"""A device as a process of its own: it listens on a local socket, and outlives whoever brings the messages."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from dataclasses import replace
from multiprocessing.connection import Listener
from pathlib import Path

from tandem.errors import InputError
from tandem.federated.fleet.answering import Device
from tandem.federated.fleet.coordinator import opened, plan
from tandem.federated.fleet.messages import GarbledError, to_bytes
from tandem.policy.rules import Threshold


def warm(device: Device) -> None:
    """Compile everything a round needs, on a copy of the device that is thrown away."""
    problem = device.place.problem
    order = plan(problem, Threshold(), opened(problem, "warming")).instructions[device.place.number]
    with tempfile.TemporaryDirectory() as folder:
        copy = replace(device, folder=Path(folder))
        for number in range(2):
            train = order.model_copy(update={"round": number, "train": number == 1})
            copy.answer(to_bytes(train.model_copy(update={"clock_s": number * order.duration_s})))


def listen(device: Device, address: Path) -> None:
    """Answer until the process is ended. A message at a time: a device does one thing in a round."""
    warm(device)
    address.unlink(missing_ok=True)  # of a process that was killed
    try:
        listener = Listener(str(address), family="AF_UNIX")
    except OSError as error:
        raise InputError(f"--address {address}: cannot be listened on ({error.strerror}); name another path.") from None
    address.chmod(0o600)
    print(f"device {device.place.number} listens at {address}", file=sys.stderr, flush=True)
    with listener:
        while True:
            # Who hung up is none of our concern: the answer is kept, and the instruction may come again.
            with contextlib.suppress(OSError, EOFError), listener.accept() as caller:
                try:
                    answer = device.answer(caller.recv_bytes())
                except (GarbledError, TimeoutError) as error:
                    print(f"refused: {error}", file=sys.stderr, flush=True)
                    continue  # the SuperNode sees the call end, and reports an error
                caller.send_bytes(answer)
