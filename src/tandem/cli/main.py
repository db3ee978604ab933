"""The ``tandem`` command. Thin: parse, call, print; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import typer

from tandem import __version__
from tandem.cli.commands import (
    calibrate,
    evaluate,
    fleet,
    front,
    pick,
    pretrain,
    reproduce,
    runs,
    scenario,
    simulate,
    train,
)
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
app.command("train")(train.train)
app.command("runs")(runs.runs)
app.command("front")(front.front)
app.command("pick")(pick.pick)
app.command("evaluate")(evaluate.evaluate)
app.command("reproduce")(reproduce.reproduce)
app.command("calibrate")(calibrate.calibrate)
app.command("pretrain")(pretrain.pretrain)
app.add_typer(fleet.app, name="fleet")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tandem {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Schedule training and inference on fleets of edge devices."""


def _keep_compiled_programs() -> None:
    """Let JAX keep what it compiles in the user's cache, so that the second run starts at once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem" / "jax"
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")


def main() -> None:
    """Run the command line."""
    _keep_compiled_programs()
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
