"""``tandem train``: a front of policies for a scenario, into a folder from which it can go on if it is stopped."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tandem.cli.options import JsonOption, SetOption, print_json
from tandem.errors import InputError
from tandem.scenario import load_scenario

if TYPE_CHECKING:
    from tandem.runs.run import Run
    from tandem.runs.run_dir import RunRecord
    from tandem.runs.trainer import Callback

# As text: what they are is only known to modules that import JAX, and help should not wait for it.
ALGORITHMS = "pc-ppo (one network for any preference), c-moppo (the paper's), pg-morl, s-ppo, r-ppo, moea-d or nsga2"
PRESETS = "default, quick (a fifth to a third of the rounds) or, for the paper's algorithms, literal (its settings)"


def train(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            help="A preset (see 'tandem scenario list') or a YAML file; default: paper.",
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"{ALGORITHMS}; default: pc-ppo.", show_default=False)
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"{PRESETS}; default: default.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**31, help="Of all randomness of the training; default: 0.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run; default: runs/SCENARIO-ALGORITHM-PRESET-seedN.", show_default=False),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(min=1, help="Environment rounds to spend, validation included, if not the preset's."),
    ] = None,
    shield: Annotated[
        bool | None, typer.Option("--shield/--no-shield", help="Override the scenario's and the preset's shield.")
    ] = None,
    overrides: SetOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--train-set", metavar="NAME=VALUE", help="An option of the algorithm, such as clip_eps=0.2."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Go on with an unfinished run, as it was begun.", show_default=False),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write for TensorBoard as well; needs the extra 'tensorboard'.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a front of policies for a scenario, which is a preset (such as paper) or a YAML file.

    Writes run.json, scenario.yaml, progress.csv (a row for each chunk of steps), checkpoints, and at the end
    policies.safetensors and front.json, with every policy's accuracy, latency (s) and energy (J) as measured on fresh
    seeds. Ctrl-C, a crash or a kill costs a few seconds of work: go on with --resume.
    """
    asked = list(settings or [])
    asked += [] if budget is None else [f"budget={budget}"]
    asked += [] if shield is None else [f"shield={str(shield).lower()}"]
    if resume is None:
        run = _begin(scenario or "paper", overrides or [], algorithm, preset, seed, out, asked, tensorboard)
    else:
        given = {"--algorithm": algorithm, "--preset": preset, "--seed": seed, "--out": out}
        run = _resume(resume, given, scenario, overrides or [], asked, tensorboard)
    if as_json:
        print_json(run.summary())
    else:
        _print(run)


def _begin(
    scenario: str,
    overrides: list[str],
    algorithm: str | None,
    preset: str | None,
    seed: int | None,
    out: Path | None,
    asked: list[str],
    tensorboard: bool,
) -> Run:
    loaded = load_scenario(scenario, overrides)
    use_cores()
    from tandem import api
    from tandem.learn.registry import DEFAULT_ALGORITHM, DEFAULT_PRESET
    from tandem.runs.trainer import default_folder

    algorithm, preset, seed = algorithm or DEFAULT_ALGORITHM, preset or DEFAULT_PRESET, seed or 0
    folder = out or default_folder(loaded.name, algorithm, preset, seed)
    with _shown(folder, tensorboard) as listeners:
        return api.train(loaded, algorithm, preset, seed, folder, asked, listeners=listeners)


def _resume(
    folder: Path, given: dict[str, Any], scenario: str | None, overrides: list[str], asked: list[str], tensorboard: bool
) -> Run:
    from tandem import api
    from tandem.runs.run_dir import read_record

    record = read_record(folder)
    _check_agrees(folder, record, given, scenario, overrides, asked)
    # As many as it began with: shared out otherwise, the same sums may round differently.
    use_cores(record.device.count if record.device.platform == "cpu" else None)
    if record.status == "finished":
        Console(stderr=True).print(f"{folder}: is finished already; nothing was done.", highlight=False, soft_wrap=True)
        return api.resume(folder)
    with _shown(folder, tensorboard) as listeners:
        return api.resume(folder, listeners=listeners)


def _check_agrees(
    folder: Path,
    record: RunRecord,
    given: dict[str, Any],
    scenario: str | None,
    overrides: list[str],
    asked: list[str],
) -> None:
    """Refuse what contradicts the run: it goes on as it was begun, or not at all."""
    from tandem.learn.registry import config_from_document, override_config
    from tandem.runs.problem import override_shield
    from tandem.runs.run_dir import RECORD, read_scenario

    fix = "leave that out, or train into another folder without --resume"
    known = {"--algorithm": record.algorithm, "--preset": record.preset, "--seed": record.seed, "--out": folder}
    for name, value in given.items():
        if value is not None and value != known[name]:
            raise InputError(f"{name} {value}: the run in {folder} was begun with {known[name]}; {fix}.")
    options = config_from_document(record.algorithm, record.config, f"{folder / RECORD}: options")
    for text in asked:
        if override_config(record.algorithm, options, [text]) != options:
            name = text.partition("=")[0]
            raise InputError(f"{text}: the run in {folder} was begun with {name}={getattr(options, name)}; {fix}.")
    if scenario is not None or overrides:
        own = read_scenario(folder)
        said = read_scenario(folder, overrides) if scenario is None else load_scenario(scenario, overrides)
        if override_shield(options, said) != own:
            raise InputError(f"{folder}: its scenario is not what SCENARIO and --set say; {fix}.")


@contextlib.contextmanager
def _shown(folder: Path, tensorboard: bool) -> Iterator[list[Callback]]:
    """The listeners of a training; and how to go on if it does not come to its end."""
    from tandem.cli.progress import LiveProgress
    from tandem.runs.run_dir import RECORD

    extra: list[Callback] = []
    if tensorboard:
        from tandem.runs.callbacks import TensorBoard

        extra.append(TensorBoard())
    again = f"tandem train --resume {shlex.quote(str(folder))}"
    try:
        with LiveProgress() as live:
            yield [live, *extra]
    except KeyboardInterrupt:
        if not (folder / RECORD).exists():
            raise
        typer.echo(f"tandem: interrupted, and kept; go on with '{again}'.", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); make room, then '{again}'.") from None


def use_cores(count: int | None = None) -> None:
    """Let JAX see each core as a device, over which populations are shared out; before its first operation.

    A run that goes on with another number of devices goes on rightly, but its numbers may differ in the last bits.
    """
    import jax

    chosen_otherwise = "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", "")
    if not chosen_otherwise:
        with contextlib.suppress(RuntimeError):  # JAX is at work already, as where this is not a process of its own
            jax.config.update("jax_num_cpu_devices", count or os.cpu_count() or 1)  # type: ignore[no-untyped-call]


def _print(run: Run) -> None:
    document = run.summary()
    console = Console()
    console.print(
        f"[bold]{document['algorithm']}[/bold] on [bold]{document['scenario']}[/bold]: preset {document['preset']}, "
        f"seed {document['seed']}",
        highlight=False,
    )
    from tandem.cli.progress import duration
    from tandem.learn import ALGORITHMS as KNOWN

    console.print(f"({KNOWN[run.algorithm_name].summary})", style="dim", highlight=False)
    table = Table("", "", box=None, show_header=False)
    table.add_row("hypervolume", f"{document['hypervolume']:.5g}")
    table.add_row("sparsity", f"{document['sparsity']:.4g}")
    table.add_row("policies", f"{document['policies']}")
    table.add_row("rounds in violation", f"{document['violation_rate']:.2%}")
    table.add_row("environment rounds", f"{document['rounds']:,}")
    table.add_row("time", duration(document["wall_s"]))
    table.add_row("rounds/s", f"{document['rounds_per_s'] or 0:,.0f}")
    console.print(table)
    if not document["within_tolerance"]:
        console.print(
            f"No policy stayed within the tolerance of {run.config.tolerance:.1%} rounds in violation; these come "
            "nearest. Train longer, or with --shield.",
            highlight=False,
            soft_wrap=True,
        )
    folder = shlex.quote(document["folder"])
    console.print(f"Written to {document['folder']}/", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Next: tandem front {folder}, tandem pick {folder}", highlight=False, markup=False, soft_wrap=True)
