"""Meters of the energy that a device uses: a cumulative count of joules, from the hardware or from the user.

A meter never pretends: where nothing measures, there is none, and a report says so, or has the estimate of the paper's
model with the source ``estimate``.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tandem.errors import InputError

POWERCAP = Path("/sys/class/powercap")
HWMON = Path("/sys/class/hwmon")
SAMPLE_S = 0.1  # between two readings of a power
COMMAND_TIMEOUT_S = 5.0


class EnergyMeter(Protocol):
    """A cumulative count of energy."""

    source: str  # where the figures come from, such as rapl

    def read_j(self) -> float:
        """Return the joules used since some fixed moment; it never decreases."""


class RaplMeter:
    """The counters of Intel's and AMD's processors (RAPL), which overflow every few minutes or hours."""

    source = "rapl"

    def __init__(self, folder: Path = POWERCAP) -> None:
        """Use all packages below ``folder``; raises InputError if there are none, or if they cannot be read."""
        self._counters = sorted(folder.glob("intel-rapl:?/energy_uj"))
        if not self._counters:
            raise InputError(f"--energy rapl: {folder} has no counters of energy; use another meter.")
        try:
            self._last = [_read_number(counter) for counter in self._counters]
            self._ranges = [_read_number(counter.with_name("max_energy_range_uj")) for counter in self._counters]
        except (OSError, ValueError) as error:
            raise InputError(
                f"--energy rapl: {self._counters[0]} cannot be read ({error}); run as root or give this user access."
            ) from None
        self._total_uj = 0.0
        self._mutex = threading.Lock()

    def read_j(self) -> float:
        with self._mutex:
            for n, counter in enumerate(self._counters):
                value = _read_number(counter)
                difference = value - self._last[n]
                self._total_uj += difference if difference >= 0 else difference + self._ranges[n]
                self._last[n] = value
            return self._total_uj / 1e6


class PowerMeter:
    """Integrates a power that is read again and again, by a thread that ends with the process."""

    def __init__(self, source: str, read_w: Callable[[], float], interval_s: float = SAMPLE_S) -> None:
        self.source = source
        self._read_w = read_w
        self._interval_s = interval_s
        self._mutex = threading.Lock()
        self._total_j = 0.0
        self._last_s, self._last_w = time.monotonic(), read_w()
        threading.Thread(target=self._sample, name="tandem-power", daemon=True).start()

    def read_j(self) -> float:
        with self._mutex:
            return self._total_j + self._last_w * (time.monotonic() - self._last_s)

    def _sample(self) -> None:
        while True:
            time.sleep(self._interval_s)
            try:
                power_w = self._read_w()
            except (OSError, ValueError, subprocess.SubprocessError):
                continue  # the last power stays in force until the next reading
            now_s = time.monotonic()
            with self._mutex:
                self._total_j += self._last_w * (now_s - self._last_s)
                self._last_s, self._last_w = now_s, power_w


class FileMeter:
    """A file of the user's that holds a cumulative count of joules as text."""

    source = "file"

    def __init__(self, path: Path) -> None:
        """Read the file once; raises InputError if it does not hold a number."""
        self._path = path
        try:
            self._highest_j = _read_number(path)
        except (OSError, ValueError) as error:
            raise InputError(f"--energy file:{path}: is not a file with a number of joules ({error}).") from None

    def read_j(self) -> float:
        with contextlib.suppress(OSError, ValueError):  # it is being replaced; the next reading counts
            self._highest_j = max(self._highest_j, _read_number(self._path))
        return self._highest_j


class EstimatedEnergy:
    """The paper's model, E = e f^3 t: for time of computing at a frequency. It is an estimate and is marked so."""

    source = "estimate"

    def __init__(self, capacitance: float, frequency_hz: float) -> None:
        self._capacitance = capacitance
        self.frequency_hz = frequency_hz  # of computing; the device changes it if the hardware can
        self._total_j = 0.0

    def add_busy(self, busy_s: float) -> None:
        """Count time of computing."""
        self._total_j += self._capacitance * self.frequency_hz**3 * busy_s

    def read_j(self) -> float:
        return self._total_j


def ina3221_meter(folder: Path = HWMON) -> PowerMeter:
    """Return a meter of the power monitor of NVIDIA Jetsons; raises InputError if there is none.

    The first channel is the input of the whole module. Its power is voltage (mV) times current (mA).
    """
    for monitor in sorted(folder.glob("hwmon*")):
        name = monitor / "name"
        if name.is_file() and name.read_text().strip() == "ina3221" and (monitor / "curr1_input").is_file():

            def read_w(monitor: Path = monitor) -> float:
                return _read_number(monitor / "in1_input") * _read_number(monitor / "curr1_input") * 1e-6

            return PowerMeter("ina3221", read_w)
    raise InputError(f"--energy ina3221: {folder} has no power monitor INA3221; use another meter.")


def command_meter(command: str, interval_s: float = 1.0) -> PowerMeter:
    """Return a meter of the watts that a command of the user's prints, once in each interval."""

    def read_w() -> float:
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True
        )
        return float(done.stdout)

    try:
        return PowerMeter("command", read_w, interval_s)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise InputError(f"--energy command:{command}: does not print a number of watts ({error}).") from None


def find_meter(text: str) -> EnergyMeter | None:
    """Return the meter that ``auto``, ``none``, ``rapl``, ``ina3221``, ``file:PATH`` or ``command:COMMAND`` names."""
    kind, _, rest = text.partition(":")
    match kind:
        case "none":
            return None
        case "rapl":
            return RaplMeter()
        case "ina3221":
            return ina3221_meter()
        case "file" if rest:
            return FileMeter(Path(rest))
        case "command" if rest:
            return command_meter(rest)
        case "auto":
            for build in (ina3221_meter, RaplMeter):
                try:
                    return build()
                except InputError:
                    continue
            return None
    raise InputError(f"--energy {text}: use auto, none, rapl, ina3221, file:PATH or command:COMMAND.")


def _read_number(path: Path) -> float:
    value = float(path.read_text())
    if not 0 <= value < float("inf"):
        raise ValueError(f"{path}: {value} is not a count")
    return value
