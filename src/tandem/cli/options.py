"""Options that several commands share, and how they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A preset (see 'tandem scenario list') or a YAML file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, such as fleet.size=20. May be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


def print_json(document: Any) -> None:
    """One document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


@contextmanager
def spinner(message: str) -> Iterator[None]:
    """Show on stderr that something takes its time: a spinner on a terminal, a plain line elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(message):
            yield
    else:
        console.print(message, highlight=False)
        yield
