"""A device's memory: one file for each run, whole or as it was before, and one process at a time.

Runs do not share a file: a message that strays in from another run cannot make the device forget this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tandem.errors import InputError
from tandem.federated.fleet.client import ProtocolState, handle_instruction, initial_state
from tandem.federated.fleet.client_round import ClientContext, ClientSnapshot
from tandem.federated.fleet.hardware import Hardware
from tandem.federated.fleet.messages import Instruction, ProtocolError, Report, from_bytes, to_bytes
from tandem.io.locks import file_lock
from tandem.io.tree_io import flatten_arrays, read_arrays, restore_arrays, write_arrays

REPORT = "report"
COUNTS = "counts."


def path_of(folder: Path, run: str, number: int) -> Path:
    """Where a device's state in this run is."""
    return folder / run / f"device-{number}.safetensors"


def save(path: Path, station: ProtocolState) -> None:
    """Write the state; it survives the process, and the machine's power."""
    report = b"" if station.report is None else to_bytes(station.report)
    arrays = {COUNTS + name: array for name, array in flatten_arrays(station.snapshot).items()}
    arrays[REPORT] = np.frombuffer(report, np.uint8)
    note = {name: getattr(station, name) for name in ("run", "number", "round", "settled", "unsettled")}
    write_arrays(path, arrays, note, durable=True)


def load(path: Path, place: ClientContext) -> ProtocolState | None:
    """The state as it was kept; None if there is none. InputError if it is damaged, or of another fleet."""
    if not path.exists():
        return None
    try:
        arrays, note = read_arrays(path)
        stored = arrays.pop(REPORT).tobytes()
        report = from_bytes(Report, stored) if stored else None
        fields: dict[str, Any] = {name: note[name] for name in ("run", "number", "round", "settled", "unsettled")}
    except (InputError, KeyError, ProtocolError):  # what reads arrays speaks of training, which is no help here
        raise InputError(f"{path}: is damaged, or not the state of a device; move it away to begin anew.") from None
    like = initial_state(place, note["run"], 0.0).snapshot
    counts: ClientSnapshot = restore_arrays(
        like, {name.removeprefix(COUNTS): array for name, array in arrays.items()}, path
    )
    return ProtocolState(snapshot=counts, report=report, **fields)


PATIENCE_S = 20.0


@dataclass(frozen=True)
class ClientHandler:
    """A device and the folder of its memory."""

    context: ClientContext
    folder: Path
    hardware: Hardware
    patience_s: float = PATIENCE_S

    def handle(self, data: bytes) -> bytes:
        """Obey, remember, report: in this order, so that what was reported is never forgotten."""
        order = from_bytes(Instruction, data)
        path = path_of(self.folder, order.run, self.context.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_suffix(".lock"), self.patience_s):
            before = load(path, self.context)
            after, report = handle_instruction(self.context, before, order, self.hardware)
            if after is not before:
                save(path, after)
        return to_bytes(report)
