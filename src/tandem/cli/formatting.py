"""Formatting of tables, numbers and durations for the commands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem.objectives import AXIS_LABELS

MAX_DIGITS = 4  # significant digits of a number
PIPED_WIDTH = 160  # columns of a table that goes to a file or another program


def make_console() -> Console:
    """Return a console on stdout; if that is not a terminal, it is wide enough to print tables without wrapping."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, PIPED_WIDTH))


def print_table(
    out: Console, rows: Sequence[Mapping[str, str]], numbers: Collection[str], spare: Sequence[str] = ()
) -> None:
    """Print rows of cells by heading; on a narrow terminal omit ``spare`` columns, in their order, until it fits.

    Cells are never truncated.
    """
    unlimited = out.options.update(width=10_000)
    left_out: list[str] = []
    while True:
        table = Table(box=None, header_style="bold", pad_edge=False)
        headings = [heading for heading in rows[0] if heading not in left_out]
        for heading in headings:
            number = heading in numbers
            table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
        for row in rows:
            table.add_row(*(escape(row[heading]) for heading in headings))
        if len(left_out) == len(spare) or out.measure(table, options=unlimited).maximum <= out.width:
            break
        left_out.append(spare[len(left_out)])
    out.print(table, highlight=False)
    if left_out:
        out.print(f"(A wider terminal shows also: {', '.join(left_out)}.)", style="dim", highlight=False)


def format_interval(mean: float, width: float | None) -> str:
    """Format a mean and half the width of its interval, with as many digits as are significant for the interval."""
    if width is None:
        return f"{mean:.4g}"
    wanted = 1 - _magnitude(width) if width > 0 else MAX_DIGITS
    digits = max(0, min(wanted, MAX_DIGITS - 1 - _magnitude(mean)))
    return f"{mean:.{digits}f} ± {width:.{digits}f}"


def format_objectives(means: Sequence[float], widths: Sequence[float | None]) -> dict[str, str]:
    """Return the cells of accuracy, latency and energy."""
    return {name: format_interval(mean, width) for name, mean, width in zip(AXIS_LABELS, means, widths, strict=True)}


def format_duration(seconds: float) -> str:
    """Return a time as ``45 s``, ``2 min 05 s`` or ``3 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60:,} h {minutes % 60:02} min"


def count(number: int, one: str, several: str) -> str:
    """Return a number with its noun, in the singular or plural."""
    return f"{number:,} {one if number == 1 else several}"


def plural_policies(number: int) -> str:
    """Return a number of policies as text, such as '1 policy' or '12 policies'."""
    return count(number, "policy", "policies")


def _magnitude(value: float) -> int:
    """Return the position of the first digit: 0 for units, -1 for tenths."""
    return int(f"{value:e}".partition("e")[2])
