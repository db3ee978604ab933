"""Recorded series: a CSV with ``time_s`` in equal steps and one column for each device."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError


@dataclass(frozen=True)
class Trace:
    """Values [time, device], each holding from its time for ``step_s`` seconds."""

    step_s: float
    values: NDArray[np.float64]
    repeat: bool


def read_trace(
    path: Path, *, devices: int, duration_s: float, repeat: bool, lowest: float, meaning: str, field: str, source: str
) -> Trace:
    """Read and check a trace that must last ``duration_s`` (unless it repeats) and cover every device."""
    where = f"{source}: {field}: {path}"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except FileNotFoundError:
        raise InputError(f"{where}: there is no such file; the path is relative to the scenario file.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{where}: cannot be read as CSV ({error}); save it as UTF-8 text.") from None
    if not rows or rows[0][0] != "time_s":
        raise InputError(f"{where}: the first column is not 'time_s'; the header must be time_s,0,1,2,...")
    columns = len(rows[0]) - 1
    if columns < devices:
        raise InputError(
            f"{where}: has {columns} device columns for {devices} devices; add columns or lower fleet.size."
        )
    table = _numbers(rows, columns, where)
    times, values = table[:, 0], table[:, 1 : devices + 1]
    if np.any(values < lowest):
        line, device = np.argwhere(values < lowest)[0]
        raise InputError(
            f"{where}: line {line + 2}, device {device}: {values[line, device]:g} is below {lowest:g}; "
            f"the values are {meaning}."
        )
    step_s = _step(times, where)
    if not repeat and len(times) * step_s < duration_s:
        raise InputError(
            f"{where}: covers {len(times) * step_s:g} s, but an episode can last {duration_s:g} s; "
            "record more, lower rounds or limits.round_max_s, or set repeat: true."
        )
    return Trace(step_s=step_s, values=values, repeat=repeat)


def _numbers(rows: list[list[str]], columns: int, where: str) -> NDArray[np.float64]:
    if len(rows) < 3:
        raise InputError(f"{where}: holds {len(rows) - 1} rows of values; at least two are needed.")
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != columns + 1:
            raise InputError(f"{where}: line {line} has {len(row)} values for {columns + 1} columns; complete the row.")
    try:
        table = np.array(rows[1:], dtype=np.float64)
    except ValueError as error:
        raise InputError(f"{where}: holds something that is not a number ({error}); mend that cell.") from None
    if not np.all(np.isfinite(table)):
        line = int(np.argwhere(~np.isfinite(table))[0][0]) + 2
        raise InputError(f"{where}: line {line} holds a value that is not finite; fill the gap.")
    return table


def _step(times: NDArray[np.float64], where: str) -> float:
    steps = np.diff(times)
    if steps[0] <= 0 or not np.allclose(steps, steps[0], rtol=1e-6):
        raise InputError(f"{where}: time_s does not grow in equal steps; resample the trace to a fixed interval.")
    return float(steps[0])
