"""The hardware of a device, which sets clock frequency and transmission power.

Simulated hardware accepts any value, and the times of a round follow from the paper's formulas. On Linux the clock of a
real processor is capped through cpufreq, if that exists and this process may write to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tandem.errors import InputError

CPUFREQ = Path("/sys/devices/system/cpu/cpufreq")
HZ_PER_KHZ = 1000  # cpufreq uses kHz


@dataclass(frozen=True)
class HardwareSetting:
    """Clock frequency and transmission power."""

    frequency_hz: float
    power_w: float


class Hardware(Protocol):
    """The interface of the hardware that a device runs on."""

    measured: bool  # whether computing times are measured by the wall clock instead of computed by the formulas

    def apply(self, setting: HardwareSetting) -> HardwareSetting:
        """Set frequency and power as close to ``setting`` as possible, and return the values that were set."""


class SimulatedHardware:
    """Hardware that accepts every setting."""

    measured = False

    def apply(self, setting: HardwareSetting) -> HardwareSetting:
        """Return the setting unchanged."""
        return setting


class Cpufreq:
    """A Linux processor with a cap on its clock. Power has no such interface; it is returned unchanged."""

    measured = True

    def __init__(self, folder: Path = CPUFREQ) -> None:
        """Use all clock domains in ``folder``; raises InputError if there are none, or if they are not writable."""
        self._domains = sorted(folder.glob("policy*"))
        if not self._domains:
            raise InputError(f"--hardware cpufreq: {folder} has no clock domains; use --hardware simulated.")
        try:
            for domain in self._domains:
                cap = domain / "scaling_max_freq"
                cap.write_text(cap.read_text())
        except OSError as error:
            raise InputError(
                f"--hardware cpufreq: {cap} cannot be written ({error.strerror}); run as root, give this user write "
                "access, or use --hardware simulated."
            ) from None

    def apply(self, setting: HardwareSetting) -> HardwareSetting:
        """Cap the clock of every domain; the lowest cap is the frequency of the device."""
        caps = [self._cap(domain, setting.frequency_hz) for domain in self._domains]
        return HardwareSetting(min(caps), setting.power_w)

    def _cap(self, domain: Path, frequency_hz: float) -> float:
        lowest, highest = (int((domain / f"cpuinfo_{end}_freq").read_text()) for end in ("min", "max"))
        khz = min(max(round(frequency_hz / HZ_PER_KHZ), lowest), highest)
        (domain / "scaling_max_freq").write_text(str(khz))
        return int((domain / "scaling_max_freq").read_text()) * float(HZ_PER_KHZ)


HARDWARE = {"simulated": SimulatedHardware, "cpufreq": Cpufreq}
