"""The devices that decisions are made for: their constants, and the worst-case bounds of the shield."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tandem.serving.messages import DeviceProfile


@dataclass(frozen=True)
class Fleet:
    """The fleet of an export file, or one derived from it; arrays are in single precision, as in the simulator."""

    names: tuple[str, ...]

    def changed(self, profiles: Iterable[DeviceProfile] = (), removed: Sequence[str] = ()) -> Fleet:
        """Return the fleet with devices added, replaced or removed, with new bounds and a new timetable.

        Raises FleetMismatchError if the fleet cannot be kept stable, with the device and the cause.
        """
        raise NotImplementedError
