"""How a device obeys: clock and transmission power are set here, and here only.

Simulated hardware takes any clock and power and needs no time; the round's times follow from the paper's formulas. On
Linux the clock of a real processor is capped through cpufreq, where that exists and this process may write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tandem.errors import InputError

CPUFREQ = Path("/sys/devices/system/cpu/cpufreq")
KILO = 1000  # cpufreq counts in kHz


@dataclass(frozen=True)
class HardwareSetting:
    """What hardware runs at."""

    frequency_hz: float
    power_w: float


class Hardware(Protocol):
    """What a device runs on."""

    measured: bool  # whether computing takes as long as the wall clock says, and not as long as the formulas do

    def apply(self, wanted: HardwareSetting) -> HardwareSetting:
        """Set clock and power as near as possible to what is wanted; returns what was set."""


class SimulatedHardware:
    """Obeys to the digit, at once."""

    measured = False

    def apply(self, wanted: HardwareSetting) -> HardwareSetting:
        """As wanted."""
        return wanted


class Cpufreq:
    """A Linux processor whose clock can be capped. Radio power has no such interface and is taken as wanted."""

    measured = True

    def __init__(self, folder: Path = CPUFREQ) -> None:
        """All clock domains below ``folder``; refused if there are none, or they may not be written."""
        self._domains = sorted(folder.glob("policy*"))
        if not self._domains:
            raise InputError(f"--hardware cpufreq: {folder} has no clock to set; use --hardware simulated.")
        try:
            for domain in self._domains:
                cap = domain / "scaling_max_freq"
                cap.write_text(cap.read_text())
        except OSError as error:
            raise InputError(
                f"--hardware cpufreq: {cap} cannot be written ({error.strerror}); run as root or allow the user to, or "
                "use --hardware simulated."
            ) from None

    def apply(self, wanted: HardwareSetting) -> HardwareSetting:
        """Cap every domain's clock; the slowest cap is what counts."""
        caps = [self._capped(domain, wanted.frequency_hz) for domain in self._domains]
        return HardwareSetting(min(caps), wanted.power_w)

    def _capped(self, domain: Path, frequency_hz: float) -> float:
        lowest, highest = (int((domain / f"cpuinfo_{end}_freq").read_text()) for end in ("min", "max"))
        khz = min(max(round(frequency_hz / KILO), lowest), highest)
        (domain / "scaling_max_freq").write_text(str(khz))
        return int((domain / "scaling_max_freq").read_text()) * float(KILO)


HARDWARE = {"simulated": SimulatedHardware, "cpufreq": Cpufreq}
