"""What the commands that read a run share: how they name it, number it, and say that a file cannot be written."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem.errors import InputError
from tandem.objectives import AXIS_LABELS

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)]
DIGITS = 4  # significant ones, at most
UNPRINTED_WIDTH = 160  # of tables that go to a file or another program, which can scroll


def make_console() -> Console:
    """On stdout; where that is no terminal, wide enough for a table's columns to stay whole."""
    printed = Console()
    return printed if printed.is_terminal else Console(width=max(printed.width, UNPRINTED_WIDTH))


def print_table(
    out: Console, rows: Sequence[Mapping[str, str]], numbers: Collection[str], spare: Sequence[str] = ()
) -> None:
    """Print rows of cells by heading; where a terminal is too narrow, without as many of the spare columns as need be.

    A cell is never cut short: half a number is worse than none.
    """
    unbounded = out.options.update(width=10_000)
    left_out: list[str] = []
    while True:
        table = Table(box=None, header_style="bold", pad_edge=False)
        headings = [heading for heading in rows[0] if heading not in left_out]
        for heading in headings:
            number = heading in numbers
            table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
        for row in rows:
            table.add_row(*(escape(row[heading]) for heading in headings))
        if len(left_out) == len(spare) or out.measure(table, options=unbounded).maximum <= out.width:
            break
        left_out.append(spare[len(left_out)])
    out.print(table, highlight=False)
    if left_out:
        out.print(f"(A wider terminal shows also: {', '.join(left_out)}.)", style="dim", highlight=False)


def format_interval(mean: float, width: float | None) -> str:
    """A mean and half its interval, to the digits that the interval leaves meaningful, within reason."""
    if width is None:
        return f"{mean:.4g}"
    wanted = 1 - _magnitude(width) if width > 0 else DIGITS
    digits = max(0, min(wanted, DIGITS - 1 - _magnitude(mean)))
    return f"{mean:.{digits}f} ± {width:.{digits}f}"


def format_objectives(means: Sequence[float], widths: Sequence[float | None]) -> dict[str, str]:
    """The cells of accuracy, latency and energy."""
    return {name: format_interval(mean, width) for name, mean, width in zip(AXIS_LABELS, means, widths, strict=True)}


def count(number: int, one: str, several: str) -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else several}"


def plural_policies(number: int) -> str:
    """So many policies."""
    return count(number, "policy", "policies")


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before anything is computed for it."""
    why = None
    if path.is_dir():
        why = "is a folder; name a file in it"
    elif not path.parent.is_dir():
        why = f"cannot be written, for there is no folder {path.parent}; make it first"
    elif not os.access(path.parent, os.W_OK):
        why = "cannot be written (Permission denied); name a file in another folder"
    if why:
        raise InputError(f"{option} {path}: {why}.")


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Say in one sentence what the system says in many."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written ({error.strerror}); name another file.") from None


def _magnitude(value: float) -> int:
    """The place of the first digit: 0 for units, -1 for tenths."""
    return int(f"{value:e}".partition("e")[2])
