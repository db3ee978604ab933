"""A device as the carrier of messages meets it: an instruction's bytes in, a report's bytes out, state kept between."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tandem.federated.fleet.hardware import Hardware
from tandem.federated.fleet.living import Place
from tandem.federated.fleet.messages import Instruction, from_bytes, to_bytes
from tandem.federated.fleet.station import obey
from tandem.federated.fleet.store import alone_with, keep, path_of, recall

PATIENCE_S = 20.0


@dataclass(frozen=True)
class Device:
    """A device and the folder of its memory."""

    place: Place
    folder: Path
    hardware: Hardware
    patience_s: float = PATIENCE_S

    def answer(self, data: bytes) -> bytes:
        """Obey, remember, report: in this order, so that what was reported is never forgotten."""
        order = from_bytes(Instruction, data)
        path = path_of(self.folder, order.run, self.place.number)
        with alone_with(path, self.patience_s):
            before = recall(path, self.place)
            after, report = obey(self.place, before, order, self.hardware)
            if after is not before:
                keep(path, after)
        return to_bytes(report)
