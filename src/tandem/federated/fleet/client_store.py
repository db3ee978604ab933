"""Durable state of a device: one file for each run, replaced atomically, used by one process at a time.

Each run has its own file, so that a message of another run cannot overwrite the state of this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tandem.device.hardware import Hardware
from tandem.errors import InputError
from tandem.federated.fleet.client import handle_instruction
from tandem.federated.fleet.client_round import ClientSnapshot, initial_snapshot
from tandem.federated.fleet.messages import Instruction, ProtocolError, Report, from_bytes, to_bytes
from tandem.federated.fleet.spec import ClientContext
from tandem.io.array_file import read_arrays, write_arrays
from tandem.io.locks import file_lock
from tandem.io.tree_io import flatten_arrays, restore_arrays

REPORT = "report"  # the entry with the bytes of the last report
TREES = ("fleet", "client")
NOTE = ("run", "device", "round", "settled", "update_pending")
LOCK_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class ClientHandler:
    """A device with the folder of its durable state."""

    context: ClientContext
    store: Path
    hardware: Hardware
    lock_timeout_s: float = LOCK_TIMEOUT_S

    def handle(self, data: bytes) -> bytes:
        """Execute an instruction, store the new state, then return the report: a reported round is never lost."""
        instruction = from_bytes(Instruction, data)
        path = snapshot_path(self.store, instruction.run, self.context.device)
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_suffix(".lock"), self.lock_timeout_s):
            before = load_snapshot(path, self.context)
            after, report = handle_instruction(self.context, before, instruction, self.hardware)
            if after is not before:
                save_snapshot(path, after)
        return to_bytes(report)


def snapshot_path(store: Path, run: str, device: int) -> Path:
    """Return the path of a device's state in a run."""
    return store / run / f"device-{device}.safetensors"


def save_snapshot(path: Path, snapshot: ClientSnapshot) -> None:
    """Write the state, so that it survives the process and a power cut."""
    report = b"" if snapshot.report is None else to_bytes(snapshot.report)
    arrays = flatten_arrays({name: getattr(snapshot, name) for name in TREES})
    arrays[REPORT] = np.frombuffer(report, np.uint8)
    write_arrays(path, arrays, {name: getattr(snapshot, name) for name in NOTE}, durable=True)


def load_snapshot(path: Path, context: ClientContext) -> ClientSnapshot | None:
    """Read the state; None if there is none. Raises InputError if it is damaged, or of another fleet."""
    if not path.exists():
        return None
    try:
        arrays, note = read_arrays(path)
        data = arrays.pop(REPORT).tobytes()
        report = from_bytes(Report, data) if data else None
        fields: dict[str, Any] = {name: note[name] for name in NOTE}
    except (InputError, KeyError, ProtocolError):  # the message of read_arrays recommends to train again
        raise InputError(
            f"{path}: is damaged, or not the state of a device; move it away to start the device from scratch."
        ) from None
    initial = initial_snapshot(context, fields["run"], 0.0)
    trees = restore_arrays({name: getattr(initial, name) for name in TREES}, arrays, path)
    return ClientSnapshot(report=report, **fields, **trees)
