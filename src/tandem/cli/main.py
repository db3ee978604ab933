"""The ``tandem`` command. Thin: parse, call, print; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import sys

import typer

from tandem import __version__
from tandem.cli import scenario, simulate
from tandem.errors import InputError

app = typer.Typer(
    name="tandem",
    help="Schedule training and inference on fleets of edge devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(scenario.app, name="scenario")
app.command("simulate")(simulate.simulate)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tandem {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Schedule training and inference on fleets of edge devices."""


def main() -> None:
    """Run the command line."""
    try:
        app()
    except InputError as error:
        print(f"tandem: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("tandem: interrupted; nothing half-written was left.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (such as head) has gone; that is its right.
        sys.stderr.close()
        sys.exit(141)
