"""``tandem pretrain``: train the model that a task's devices start with."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.options import JsonOption, check_writable, print_json
from tandem.cli.progress import progress_bar, spinner
from tandem.cli.task_options import DataOption, task_overrides
from tandem.io.atomic import explain_write_errors
from tandem.rng import MAX_SEED
from tandem.scenario import load_scenario


def pretrain(
    task: Annotated[str, typer.Argument(metavar="TASK", help="digits or cifar10.")] = "digits",
    data: DataOption = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Passes over the data; default: the task's.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Random seed.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="File for the model; default: in the cache.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pre-train the model of a task.

    If the command is interrupted, run it again: it continues from its last checkpoint. A model in the cache (default
    epochs, seed 0, no --out) is used automatically and takes precedence over the model for cifar10 in the package. To
    use another file, set accuracy.task.pretrained_path.
    """
    if out is not None:
        check_writable(out, "--out")
    config = load_scenario("paper", task_overrides(task, data, "TASK")).accuracy.task
    assert config is not None

    # Importing JAX takes a second, so arguments are checked first.
    from tandem.federated.tasks.base import build_task
    from tandem.federated.tasks.models import weight_count
    from tandem.federated.tasks.pretraining import PretrainProgress, cache_path, read_pretrained
    from tandem.federated.tasks.pretraining import pretrain as train_model

    built = build_task(config)
    with spinner(f"Reading the data of {task}"):
        images = built.data()
    settings = built.pretrain_config if epochs is None else dataclasses.replace(built.pretrain_config, epochs=epochs)
    path = cache_path(built, images, settings, seed) if out is None else out
    cached = out is None and path.exists()
    if cached:
        pretrained = read_pretrained(built, path)
    else:
        message = f"Pre-training for {task}: {settings.epochs} epochs of {len(images.pretraining):,} images"
        then = "run the same command again"
        with explain_write_errors(path, then=then), progress_bar(message) as progress:

            def on_progress(now: PretrainProgress) -> None:
                progress(now.step, now.steps, f"steps, loss {now.loss:.3f}")

            pretrained = train_model(built, images, path, settings, seed, on_progress)
    document = {
        "task": task,
        "accuracy": pretrained.accuracy,
        "images": len(images.requests),
        "weights": weight_count(pretrained.model),
        "epochs": settings.epochs,
        "seed": seed,
        "made_before": cached,
        "file": str(pretrained.path),
    }
    if as_json:
        print_json(document)
        return
    typer.echo(
        f"{task}: accuracy {pretrained.accuracy:.1%} on {len(images.requests):,} other images, "
        f"{document['weights']:,} weights{', from the cache' if cached else ''}"
    )
    typer.echo(f"Written to {pretrained.path}" if not cached else f"Read from {pretrained.path}")
