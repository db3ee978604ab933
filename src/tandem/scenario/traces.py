"""Recorded time series: a CSV file with ``time_s`` in equal steps and one column for each device."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError, one_line, short_repr

MAX_VALUE = 1e12  # larger than any time, rate or gain


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
    place = one_line(f"{source}: {field}: {path}")
    header, rows, lines = _read_rows(path, place)
    columns = len(header) - 1
    if columns < devices:
        raise InputError(
            f"{place}: has {columns} device columns for {devices} devices; add columns or lower fleet.size."
        )
    table = _to_numbers(rows, lines, columns, place)
    times, values = table[:, 0], table[:, 1 : devices + 1]
    if np.any(values < lowest):
        row, device = np.argwhere(values < lowest)[0]
        raise InputError(
            f"{place}, line {lines[row]}: {values[row, device]:g} for device {device} is below {lowest:g}; "
            f"write {meaning}."
        )
    step_s = _time_step(times, lines, place)
    if not repeat and len(times) * step_s < duration_s:
        raise InputError(
            f"{place}: covers {len(times) * step_s:g} s, but an episode can last {duration_s:g} s; "
            "record more, lower rounds or limits.round_max_s, or set repeat: true."
        )
    return Trace(step_s=step_s, values=values, repeat=repeat)


def _read_rows(path: Path, place: str) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the header, the rows below it, and the line number of each row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte-order mark
            reader = csv.reader(file)
            numbered = [(reader.line_num, row) for row in reader if row]
    except FileNotFoundError:
        raise InputError(f"{place}: there is no such file; write its path relative to the scenario file.") from None
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror}); check the path and its permissions.") from None
    except (ValueError, csv.Error) as error:
        raise InputError(one_line(f"{place}: cannot be read as CSV ({error}); save it as UTF-8 text.")) from None
    if not numbered or numbered[0][1][0].strip() != "time_s":
        raise InputError(f"{place}: does not begin with the column 'time_s'; write the header time_s,0,1 and so on.")
    if len(numbered) < 3:
        raise InputError(f"{place}: holds {len(numbered) - 1} rows of values; record at least two.")
    return numbered[0][1], [row for _, row in numbered[1:]], [line for line, _ in numbered[1:]]


def _to_numbers(rows: list[list[str]], lines: list[int], columns: int, place: str) -> NDArray[np.float64]:
    for row, line in zip(rows, lines, strict=True):
        if len(row) != columns + 1:
            raise InputError(
                f"{place}, line {line}: has {len(row)} values for {columns + 1} columns; complete the row."
            )
    try:
        table = np.array(rows, dtype=np.float64)
    except ValueError:
        cells = ((line, cell) for row, line in zip(rows, lines, strict=True) for cell in row)
        line, cell = next((line, cell) for line, cell in cells if not _is_number(cell))
        raise InputError(f"{place}, line {line}: {short_repr(cell)} is not a number; fix that cell.") from None
    usable = np.abs(table) < MAX_VALUE  # false for NaN too
    if not np.all(usable):
        row, column = np.argwhere(~usable)[0]
        raise InputError(
            f"{place}, line {lines[row]}: {short_repr(rows[row][column])} is not a finite number below {MAX_VALUE:g}; "
            "fill the gap."
        )
    return table


def _is_number(cell: str) -> bool:
    try:
        np.float64(cell)
    except ValueError:
        return False
    return True


def _time_step(times: NDArray[np.float64], lines: list[int], place: str) -> float:
    steps = np.diff(times)
    rounding = 4 * float(np.spacing(np.abs(times).max()))  # of large times, such as seconds since 1970
    unequal = (steps <= 0) | ~np.isclose(steps, steps[0], rtol=1e-6, atol=rounding)
    if np.any(unequal):
        line = lines[int(np.argmax(unequal)) + 1]
        raise InputError(
            f"{place}, line {line}: time_s does not grow in equal steps; resample the trace to a fixed interval."
        )
    return float(steps[0])
