"""The ``tandem`` command.

A user's mistake, or a place that cannot be written to, is reported in one sentence, with exit code 2. Any other error
of the operating system, such as full memory, is reported in one sentence too, with exit code 1.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from tandem import __version__
from tandem.errors import InputError
from tandem.io.atomic import NO_SPACE, reason


class Command(NamedTuple):
    """The module and function of a command, and its line in ``tandem --help``."""

    target: str  # module below tandem.cli.commands, and the function or typer.Typer in it
    summary: str
    hidden: bool = False  # started by other commands


COMMANDS = {
    "scenario": Command("scenario:app", "List, show and check scenarios."),
    "simulate": Command("simulate:simulate", "Simulate a heuristic policy on a scenario and report what it achieves."),
    "train": Command("train:train", "Train a front of policies for a scenario."),
    "runs": Command("runs:runs", "List the training runs below a folder, oldest first."),
    "front": Command("front:front", "Show the policies of a run's front, and write them as a table and a figure."),
    "pick": Command("pick:pick", "Choose one policy of a run's front by preference, limits or knee."),
    "studio": Command(
        "studio:studio", "Open a local page to see fronts, choose a policy, and watch trainings and fleets."
    ),
    "export": Command("export:export", "Write a run into one file that is all a scheduler needs to decide."),
    "evaluate": Command("evaluate:evaluate", "Evaluate a run's front on new seeds, or on a changed scenario."),
    "reproduce": Command("reproduce:reproduce", "Reproduce the figures and tables of the paper."),
    "calibrate": Command("calibrate:calibrate", "Fit the accuracy mapping of a scenario to a task."),
    "pretrain": Command("pretrain:pretrain", "Pre-train the model of a task."),
    "serve": Command("serve:serve", "Serve decisions over HTTP, each stored before it is answered."),
    "demo-fleet": Command(
        "demo_fleet:demo_fleet", "Simulate a fleet that asks a service for decisions over HTTP.", True
    ),
    "tune": Command("tune:tune", "Fine-tune the policy of a service on its recorded rounds, in the background."),
    "token": Command("token:app", "Create, list and revoke the tokens of 'tandem serve'."),
    "device": Command("device:device", "Run a live device: answer requests over HTTP, and train on their labels."),
    "node": Command("node:node", "Connect a device to a Flower SuperLink, in place of a SuperNode."),
    "fleet": Command("fleet:app", "Run a fleet for real: devices and server as processes, over Flower."),
}


class LazyGroup(TyperGroup):
    """A command group that imports the module of a command only when the command is used.

    Most commands import JAX, which takes a second or two; ``tandem --help`` and ``tandem front`` do not need it.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, command in COMMANDS.items():
            # For the help only; replaced when it is used.
            self.add_command(TyperCommand(name, help=command.summary, hidden=command.hidden))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the command that the arguments name."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """Import the module of a command."""
    module, _, attribute = COMMANDS[name].target.partition(":")
    target = getattr(importlib.import_module(f"tandem.cli.commands.{module}"), attribute)
    if isinstance(target, typer.Typer):
        return get_group(target)
    single = typer.Typer(add_completion=False)
    single.command(name)(target)
    return get_command(single)


app = typer.Typer(
    name="tandem",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tandem {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Schedule training and inference on fleets of edge devices."""


def _use_compilation_cache() -> None:
    """Make JAX store compiled programs in the user's cache, so that a second run starts faster."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the user has no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem" / "jax"
        cache.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")


def _prepare_streams() -> None:
    """Make printing possible if a stream is closed (None), or if its encoding does not have every character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _end_with_parent() -> None:
    """Make a child process of another ``tandem`` command end with it."""
    if "TANDEM_ENDS_WITH_PARENT" in os.environ:
        from tandem.io.child_process import end_with_parent  # only then: the import takes a moment

        end_with_parent()


def main() -> None:
    """Run the command line."""
    _end_with_parent()
    _use_compilation_cache()  # before JAX is imported
    _prepare_streams()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where an error can be reported
    except InputError as error:
        print(f"tandem: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("tandem: interrupted; no partial files were left.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output (such as head) has closed the pipe, which is not an error.
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:  # of the output, or of a file whose writer does not say more
        sys.stdout = io.StringIO()  # otherwise Python tries at its end to write the output again
        full = error.errno in NO_SPACE
        fix = "make room on the disk and try again" if full else "check the path, its permissions and the disk"
        place = error.filename or "the output"
        print(f"tandem: {place}: cannot be read or written ({reason(error)}); {fix}.", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):  # how JAX says it
            raise
        print("tandem: the memory is full; use fewer devices, rounds, episodes or seeds.", file=sys.stderr)
        sys.exit(1)
