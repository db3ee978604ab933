"""Quantities with units, as users write them: ``3 GHz``, ``200 KB``, ``{uniform: [10, 50]}``.

A field's name ends in the unit of a bare number (``frequency_max_hz: 3e9``); a string may carry another unit of the
same dimension (``frequency_max_hz: 3 GHz``). After validation everything is a float in the base unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_serializer

from tandem.errors import short_repr

_NUMBER_AND_UNIT = re.compile(r"^\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S.*?)?\s*$")


class Range(BaseModel):
    """The uniform distribution on [low, high] of a device's constant; a plain number is a range of width 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: float
    high: float

    @model_serializer
    def _as_written(self) -> float | dict[str, list[float]]:
        return self.low if self.low == self.high else {"uniform": [self.low, self.high]}


@dataclass(frozen=True)
class Dimension:
    """A physical dimension: its base unit ('' for none), the units users write, and the range of plausible values."""

    name: str
    base: str
    units: Mapping[str, float]
    example: str
    low: float = 0.0
    high: float = math.inf
    open_low: bool = True  # is ``low`` itself excluded?

    def parse(self, value: Any) -> float:
        """Convert a number in the base unit, or text such as '3 GHz', to a float in the base unit."""
        number = self._to_base(value)
        if not math.isfinite(number):
            raise ValueError(f"is {short_repr(value)}, not a finite number; {self._fix()}")
        below = number <= self.low if self.open_low else number < self.low
        if below or number > self.high:
            raise ValueError(
                f"is {short_repr(value)}, outside {self._range()}; write a {self.name} such as {self.example}"
            )
        return number

    def parse_range(self, value: Any) -> Range:
        """Convert a number, or ``{uniform: [low, high]}``, to the range that devices draw from."""
        if isinstance(value, Range):
            return value
        if not isinstance(value, dict):
            number = self.parse(value)
            return Range(low=number, high=number)
        bounds = value.get("uniform")
        if set(value) != {"uniform"} or not isinstance(bounds, list | tuple) or len(bounds) != 2:
            raise ValueError(f"is {short_repr(value)}; write a number or {{uniform: [low, high]}}")
        low, high = (self.parse(bound) for bound in bounds)
        if low > high:
            raise ValueError(f"has its bounds in the wrong order; write {{uniform: [{bounds[1]}, {bounds[0]}]}}")
        return Range(low=low, high=high)

    def _to_base(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"is {short_repr(value)}, not a {self.name}; {self._fix()}")
        if isinstance(value, int | float):
            return _as_float(value)
        match = _NUMBER_AND_UNIT.match(value)
        if match is None:
            raise ValueError(f"is {short_repr(value)}, not a {self.name}; {self._fix()}")
        number, unit = float(match[1]), match[2] or self.base
        if unit not in self.units:
            known = f"use one of {', '.join(self.units)}" if self.base else "write the number alone"
            raise ValueError(f"has the unit {short_repr(unit)}, which is not a unit of {self.name}; {known}")
        return number * self.units[unit]

    def _range(self) -> str:
        comparison = ">" if self.open_low else ">="
        upper = "" if math.isinf(self.high) else f" and <= {self.high:g}"
        return f"what a {self.name} can be ({f'{comparison} {self.low:g}{upper} {self.base}'.strip()})"

    def _fix(self) -> str:
        return f"write a number in {self.base}, or {self.example}" if self.base else f"write one such as {self.example}"


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _not_bool(value: Any) -> Any:
    """Raise ValueError for booleans, which Python accepts as 0 and 1."""
    if isinstance(value, bool):
        raise ValueError(f"is {short_repr(value)}; write a number")
    return value


# The bounds of a dimension detect a missing unit (a frequency of 3 that means GHz), not an unusual device.
FREQUENCY = Dimension("frequency", "Hz", {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}, "2 GHz", low=1e5, high=1e12)
POWER = Dimension("power", "W", {"W": 1.0, "mW": 1e-3, "kW": 1e3}, "500 mW", high=1e5)
TIME = Dimension("duration", "s", {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}, "5 s", low=1e-6, high=1e6)
TIME_OR_ZERO = Dimension("duration", "s", TIME.units, "5 s", high=1e6, open_low=False)
SIZE = Dimension(
    "data size",
    "bit",
    {"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "B": 8.0, "KB": 8e3, "MB": 8e6, "GB": 8e9},
    "200 KB",
    low=1.0,
    high=1e13,
    open_low=False,
)
ENERGY = Dimension("energy", "J", {"J": 1.0, "mJ": 1e-3, "kJ": 1e3}, "5 J", high=1e9, open_low=False)
DISTANCE = Dimension("distance", "m", {"m": 1.0, "km": 1e3}, "800 m", high=1e7)
CYCLES = Dimension("number of cycles", "cycles", {"cycles": 1.0, "Mcycles": 1e6}, "30 Mcycles", low=1e3, high=1e14)
RATE = Dimension("rate", "/s", {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}, "6 /s", high=1e6)
DECAY = Dimension("decay", "/s", RATE.units, "0.01 /s", high=1e3, open_low=False)
DECIBEL = Dimension("level", "dB", {"dB": 1.0}, "12 dB", low=-400.0, high=400.0)
SPREAD = Dimension("level", "dB", DECIBEL.units, "5 dB", high=60.0, open_low=False)
NOISE = Dimension("noise density", "dBm/Hz", {"dBm/Hz": 1.0}, "-174 dBm/Hz", low=-400.0, high=400.0)
COUNT = Dimension("number", "", {"": 1.0, "requests": 1.0, "samples": 1.0}, "200", high=1e9)
FACTOR = Dimension("factor", "", {"": 1.0, "x": 1.0}, "1.2", high=1e9)
CAPACITANCE = Dimension("capacitance", "W s^3", {"W s^3": 1.0}, "1e-27", high=1e-18)

Real = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_not_bool)]
Whole = Annotated[int, BeforeValidator(_not_bool)]
Hertz = Annotated[float, BeforeValidator(FREQUENCY.parse)]
Seconds = Annotated[float, BeforeValidator(TIME.parse)]
SecondsOrZero = Annotated[float, BeforeValidator(TIME_OR_ZERO.parse)]
Bits = Annotated[float, BeforeValidator(SIZE.parse)]
PerSecond = Annotated[float, BeforeValidator(RATE.parse)]
Decay = Annotated[float, BeforeValidator(DECAY.parse)]
Decibels = Annotated[float, BeforeValidator(DECIBEL.parse)]
Spread = Annotated[float, BeforeValidator(SPREAD.parse)]
NoiseDensity = Annotated[float, BeforeValidator(NOISE.parse)]
Count = Annotated[float, BeforeValidator(COUNT.parse)]

HertzRange = Annotated[Range, BeforeValidator(FREQUENCY.parse_range)]
WattsRange = Annotated[Range, BeforeValidator(POWER.parse_range)]
JoulesRange = Annotated[Range, BeforeValidator(ENERGY.parse_range)]
MetresRange = Annotated[Range, BeforeValidator(DISTANCE.parse_range)]
CyclesRange = Annotated[Range, BeforeValidator(CYCLES.parse_range)]
FactorRange = Annotated[Range, BeforeValidator(FACTOR.parse_range)]
CapacitanceRange = Annotated[Range, BeforeValidator(CAPACITANCE.parse_range)]
