"""``tandem pretrain``: the model that a task's devices start with."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.options import JsonOption, check_writable, print_json
from tandem.cli.progress import progress_bar, spinner
from tandem.cli.task_options import DataOption, task_overrides
from tandem.scenario import load_scenario


def pretrain(
    task: Annotated[str, typer.Argument(metavar="TASK", help="digits or cifar10.")] = "digits",
    data: DataOption = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Passes over the data, if not the task's.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Of all randomness.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="File for the model; default: kept in the cache.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pre-train the model of a task.

    What was stopped goes on where it was when the command is run again. A model kept in the cache (the task's own
    number of epochs, seed 0, no --out) is found by itself, before the one that comes with the package for cifar10;
    another is named as accuracy.task.pretrained_path.
    """
    if out is not None:
        check_writable(out, "--out")
    written = load_scenario("paper", task_overrides(task, data)).accuracy.task
    assert written is not None

    # JAX takes a second to import; what needs it comes after the arguments are known to be readable.
    from tandem.federated.tasks.base import build_task
    from tandem.federated.tasks.models import weight_count
    from tandem.federated.tasks.pretraining import Progressed, cache_path, read_pretrained
    from tandem.federated.tasks.pretraining import pretrain as make

    found = build_task(written)
    with spinner(f"Reading the data of {task}"):
        read = found.data()
    recipe = found.pretrain_config if epochs is None else dataclasses.replace(found.pretrain_config, epochs=epochs)
    path = cache_path(found, read, recipe, seed) if out is None else out
    known = out is None and path.exists()
    if known:
        model = read_pretrained(found, path)
    else:
        with progress_bar(
            f"Pre-training for {task}: {recipe.epochs} epochs of {len(read.pretraining):,} images"
        ) as progress:

            def told(now: Progressed) -> None:
                progress(now.step, now.steps, f"steps, loss {now.loss:.3f}")

            model = make(found, read, path, recipe, seed, told)
    document = {
        "task": task,
        "accuracy": model.accuracy,
        "images": len(read.requests),
        "weights": weight_count(model.model),
        "epochs": recipe.epochs,
        "seed": seed,
        "made_before": known,
        "file": str(model.path),
    }
    if as_json:
        print_json(document)
        return
    typer.echo(
        f"{task}: {model.accuracy:.1%} of {len(read.requests):,} images it has not seen, "
        f"{document['weights']:,} weights{', made before' if known else ''}"
    )
    typer.echo(f"Kept in {model.path}")
