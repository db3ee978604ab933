"""``tandem tune``: background fine-tuning of the policy that a service uses."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.commands.serve import DEFAULT_DATABASE, DatabaseOption, FleetOption, open_store
from tandem.cli.options import JsonOption, print_json
from tandem.cli.progress import progress_callback
from tandem.errors import InputError

if TYPE_CHECKING:
    from tandem.progress import ProgressCallback
    from tandem.serving.storage import Store

POLL_S = 2.0
NICENESS = 19  # the lowest priority: decisions come first


def tune(
    database: DatabaseOption = DEFAULT_DATABASE,
    fleet: FleetOption = "default",
    once: Annotated[bool, typer.Option("--once", help="Tune now, report the result and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --once: publish and record nothing.")] = False,
    every: Annotated[int, typer.Option(min=1, metavar="ROUNDS", help="New rounds between two tunings.")] = 500,
    window: Annotated[int, typer.Option(min=30, max=100_000, metavar="ROUNDS", help="Rounds to estimate from.")] = 500,
    budget: Annotated[
        int, typer.Option(min=1, max=10**9, metavar="ROUNDS", help="Simulated rounds of training.")
    ] = 100_000,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Random seed.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune the policy of a service on its recorded rounds, in the background.

    Each tuning estimates request rates, channels and computing times of all devices, trains the policy further on the
    estimate, and compares. A new version is published only if it is better at the operating point with 95 % confidence
    and no less feasible over the whole front. 'tandem serve' starts this command by itself, unless told otherwise.
    """
    if dry_run and not once:
        raise InputError("--dry-run: needs --once.")
    settings = {"window": window, "budget": budget, "seed": seed}
    store = open_store(database, fleet)
    try:
        _lower_priority()
        if once:
            with progress_callback("tuning", "steps") as on_progress:
                document = _tune(store, settings, on_progress, dry_run=dry_run)
            if document is None:
                raise InputError(f"{store.place}: has no policy yet; start 'tandem serve RUN' first.")
            print_json(document) if as_json else typer.echo(document["reason"])
        else:
            _tune_forever(store, settings, every)
    finally:
        store.close()


def _tune_forever(store: Store, settings: dict[str, Any], every: int) -> None:
    """Tune whenever enough rounds are new, as the only process that tunes this fleet; ends on Ctrl-C and SIGTERM."""
    from tandem.serving.storage import StorageUnavailableError

    while True:
        try:
            with store.tuning_lock() as mine:
                while mine and not _is_due(store, every):
                    time.sleep(POLL_S)
                if mine:
                    document = _tune(store, settings)
                    if document is not None:
                        typer.echo(f"Tuning: {document['reason']}")
        except StorageUnavailableError as error:
            typer.echo(f"Tuning waits for the database: {error}", err=True)
        time.sleep(POLL_S)


def _is_due(store: Store, every: int) -> bool:
    state = store.read_state()
    last = store.list_events("tuning", 1)
    since = last[0].document["newest_round"] if last else -1
    return state.version is not None and state.newest_round - since >= every


def _tune(
    store: Store, settings: dict[str, Any], on_progress: ProgressCallback | None = None, *, dry_run: bool = False
) -> dict[str, Any] | None:
    from tandem.progress import ignore_progress
    from tandem.serving.tuning import TuningConfig, tune_store  # imports JAX, which a waiting tuner does not need

    tuning = tune_store(store, TuningConfig(**settings), on_progress or ignore_progress, dry_run=dry_run)
    return None if tuning is None else tuning.document


def _lower_priority() -> None:
    if hasattr(os, "nice"):
        os.nice(NICENESS)
