"""The body of the ClientApp in Flower's simulation. The device's state is on disk, since Flower chooses the process."""

from __future__ import annotations

import functools
from pathlib import Path

from tandem.device.hardware import SimulatedHardware
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.config import read_config
from tandem.federated.fleet.run_dir import CLIENT_STORE
from tandem.federated.fleet.spec import ClientContext, FleetSpec, load_spec


def handle_message(folder: str, device: int, instruction: bytes) -> bytes:
    """Execute an instruction for a device of the run in ``folder``, and return the device's report."""
    run_folder = Path(folder)
    spec = _load_spec(run_folder, read_config(run_folder).run)
    handler = ClientHandler(ClientContext.init(spec, device), run_folder / CLIENT_STORE, SimulatedHardware())
    return handler.handle(instruction)


@functools.lru_cache(maxsize=1)  # read and compiled once in a process, not once for each message
def _load_spec(folder: Path, run: str) -> FleetSpec:
    return load_spec(folder, read_config(folder).seed)
