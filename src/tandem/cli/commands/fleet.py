"""``tandem fleet``: devices and server as processes of their own, over Flower."""

from __future__ import annotations

import json
import shlex
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tandem.cli.commands.pick import weights
from tandem.cli.commands.simulate import POLICIES
from tandem.cli.options import JsonOption, ScenarioArgument, SetOption, print_json
from tandem.cli.task_options import DataOption, TaskOption, progress_bar, task_overrides, task_spinner
from tandem.errors import InputError, did_you_mean
from tandem.objectives import AXIS_LABELS, OBJECTIVE_KEYS
from tandem.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from tandem.federated.fleet.config import FleetConfig

MARGIN_S = 50.0  # on top of L_max, for messages and for the first round's compilation

app = typer.Typer(no_args_is_help=True, help="Run a fleet for real: devices and server as processes, over Flower.")


@app.command("run")
def run(
    context: typer.Context,
    scenario: ScenarioArgument = "paper",
    task: TaskOption = None,
    data: DataOption = None,
    policy: Annotated[str, typer.Option(help=f"A rule ({POLICIES}) or the folder of a trained run.")] = "threshold",
    prefer: Annotated[
        str | None, typer.Option(metavar="NAME=WEIGHT,...", help="What matters how much, for a trained run.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100_000, help="Rounds to play.")] = 5,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="The world's seed, as in 'tandem simulate'.")] = 0,
    engine: Annotated[str, typer.Option(help="simulation (in Ray) or deployment (on loopback).")] = "simulation",
    superlink: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="A SuperLink of Flower's configuration; starts nothing."),
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="With --superlink: JSON, the Flower node of each device's number. Without it nodes say who they are.",
        ),
    ] = None,
    hardware: Annotated[str, typer.Option(help="What devices set: simulated or cpufreq.")] = "simulated",
    deadline_s: Annotated[
        float | None,
        typer.Option("--deadline", min=0.1, metavar="S", help="Wait so long for reports; default: L_max and a margin."),
    ] = None,
    wait_s: Annotated[float, typer.Option("--wait", min=0, metavar="S", help="Wait so long for devices first.")] = 120,
    overrides: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results; default: fleets/SCENARIO-POLICY.", show_default=False)
    ] = None,
    trace: Annotated[str, typer.Option(help="Format of the trace: csv, parquet or none.")] = "csv",
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Go on with a run that was stopped, as it was begun.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a fleet: a server that decides, devices that serve, train and report, one exchange a round.

    Decisions, queues and data are those of 'tandem simulate' with the same scenario, task, seed and policy, for as long
    as every device answers. A device that does not costs its own contribution to that round. Writes fleet.json,
    scenario.yaml and a trace in the simulator's format. What ends the server costs the round it was in: go on with
    --resume.
    """
    if resume is not None:
        _refuse_beside_resume(context, resume)
        document = _resumed(resume)
    else:
        preference = None if prefer is None else weights(prefer)
        loaded = load_scenario(scenario, task_overrides(task, data) + list(overrides or []) + [f"rounds={rounds}"])
        if loaded.accuracy.task is None:
            raise InputError("--task: a fleet needs models to run; name a task, such as --task digits.")
        document = _begun(
            loaded,
            out or Path("fleets") / f"{loaded.name}-{Path(policy).name}",
            policy=policy,
            prefer=preference,
            seed=seed,
            rounds=rounds,
            deadline_s=loaded.limits.round_max_s + MARGIN_S if deadline_s is None else deadline_s,
            patience_s=wait_s,
            trace=trace,
            engine=engine,
            hardware=hardware,
            superlink=superlink,
            nodes=None if nodes is None else _nodes(nodes, loaded.fleet.size, superlink),
        )
    if as_json:
        print_json(document)
        return
    _print(document)


def _begun(loaded: Scenario, folder: Path, **said: Any) -> dict[str, Any]:
    """Check everything, then write the run's folder, then play."""
    from tandem.federated.build import build_system
    from tandem.federated.fleet.config import CONFIG, FleetConfig, load_policy, write_config
    from tandem.federated.fleet.hardware import HARDWARE
    from tandem.federated.flower.launcher import ENGINES, check_installed
    from tandem.io.atomic import results_folder
    from tandem.runs.trace import check_format

    check_installed()
    settings = FleetConfig(run=uuid.uuid4().hex, **said)
    for option, value, known in (
        ("--engine", settings.engine, ENGINES),
        ("--hardware", settings.hardware, tuple(HARDWARE)),
    ):
        if value not in known:
            raise InputError(f"{option} {value}: is not known; {did_you_mean(value, known)}.")
    if settings.engine == "simulation" and settings.hardware != "simulated":
        raise InputError(
            f"--hardware {settings.hardware}: devices in a simulation share a machine; use --engine deployment."
        )
    if settings.trace != "none":
        check_format(settings.trace)
    with task_spinner(loaded):  # refuse what cannot decide before anything is started
        load_policy(settings.policy, settings.prefer, build_system(loaded))
    results_folder(folder, CONFIG)
    decider = Path(settings.policy)
    kept = settings.model_copy(update={"policy": str(decider.resolve()) if decider.is_dir() else settings.policy})
    write_config(folder, kept, loaded)
    return _played(folder, kept, loaded)


def _resumed(folder: Path) -> dict[str, Any]:
    """Go on where the server was ended."""
    from tandem.federated.fleet.config import RESULT, SCENARIO, read_config

    settings = read_config(folder)
    loaded = load_scenario(folder / SCENARIO)
    if (folder / RESULT).exists():
        typer.echo(f"{folder}: is finished already; nothing was done.", err=True)
        return _document(folder, settings, loaded, json.loads((folder / RESULT).read_text(encoding="utf-8")))
    return _played(folder, settings, loaded)


def _refuse_beside_resume(context: typer.Context, folder: Path) -> None:
    """A run goes on as it was begun, or not at all."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and parameter.name not in ("resume", "as_json"):
            name = parameter.opts[0] if parameter.opts[0].startswith("-") else "SCENARIO"
            raise InputError(
                f"{name}: the run in {folder} goes on as it was begun; leave that out, or begin another run without "
                "--resume."
            )


def _played(folder: Path, settings: FleetConfig, loaded: Scenario) -> dict[str, Any]:
    from tandem.federated.flower.launcher import LaunchConfig, launch_fleet

    size = loaded.fleet.size
    title = f"Running {settings.policy} on {loaded.name}: {size} devices, {settings.rounds} rounds over Flower"
    try:
        with progress_bar(title) as progress:

            def told(line: dict[str, Any]) -> None:
                progress(line["done"], settings.rounds, f"rounds, {line['reported']} of {size} devices heard")

            found = launch_fleet(LaunchConfig(folder.resolve(), settings, size), told)
    except KeyboardInterrupt:
        typer.echo(f"tandem: interrupted; {_what_now(folder, settings)}", err=True)
        raise typer.Exit(130) from None
    return _document(folder, settings, loaded, found)


def _what_now(folder: Path, settings: FleetConfig) -> str:
    again = f"go on with 'tandem fleet run --resume {shlex.quote(str(folder))}'."
    if settings.superlink is None:
        return again
    return f"the run goes on at the SuperLink; stop it with 'flwr stop RUN-ID {settings.superlink}', and later {again}"


def _document(folder: Path, settings: FleetConfig, loaded: Scenario, found: dict[str, Any]) -> dict[str, Any]:
    assert loaded.accuracy.task is not None
    return {
        "scenario": loaded.name,
        "policy": settings.policy,
        "task": loaded.accuracy.task.kind,
        "engine": settings.engine if settings.superlink is None else f"superlink {settings.superlink}",
        "seed": settings.seed,
        "devices": loaded.fleet.size,
        **found,
        "folder": str(folder),
    }


def _nodes(path: Path, size: int, superlink: str | None) -> dict[int, int]:
    """From a file such as {"0": 1234, "1": 5678}: the node that each device is, as 'flwr supernode register' said."""
    if superlink is None:
        raise InputError(f"--nodes {path}: is for nodes that run already; name their SuperLink with --superlink.")
    try:
        found = {int(number): int(node) for number, node in json.loads(path.read_text(encoding="utf-8")).items()}
    except OSError as error:
        raise InputError(f"--nodes {path}: cannot be read ({error.strerror}).") from None
    except (ValueError, AttributeError, TypeError):
        raise InputError(f'--nodes {path}: is not JSON such as {{"0": 1234, "1": 5678}}; write it so.') from None
    for number in range(size):
        if number not in found:
            raise InputError(f"--nodes {path}: has no node for device {number}; the fleet has 0 to {size - 1}.")
    if len(set(found.values())) < len(found) or len(found) > size:
        raise InputError(f"--nodes {path}: has a node twice, or more nodes than the fleet's {size} devices.")
    return found


@app.command("device")
def device(
    scenario: ScenarioArgument,
    number: Annotated[int, typer.Option(min=0, help="Which device of the fleet this is, from 0.")],
    address: Annotated[Path, typer.Option(help="The socket to listen on; the SuperNode's device-address.")],
    memory: Annotated[Path, typer.Option(help="The folder of the device's durable state.")],
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="The world's seed: the server's.")] = 0,
    hardware: Annotated[str, typer.Option(help="What it sets: simulated or cpufreq.")] = "simulated",
) -> None:
    """Be one device of a fleet: hold its queue, samples and model, and obey what its SuperNode brings."""
    loaded = load_scenario(scenario)

    from tandem.federated.fleet.client_process import serve_forever
    from tandem.federated.fleet.client_round import ClientContext
    from tandem.federated.fleet.client_store import ClientHandler
    from tandem.federated.fleet.hardware import HARDWARE
    from tandem.federated.fleet.spec import build_spec

    if hardware not in HARDWARE:
        raise InputError(f"--hardware {hardware}: is not known; {did_you_mean(hardware, tuple(HARDWARE))}.")
    if number >= loaded.fleet.size:
        raise InputError(f"--number {number}: the fleet has devices 0 to {loaded.fleet.size - 1}; choose one of them.")
    obeying = HARDWARE[hardware]()
    with task_spinner(loaded):
        place = ClientContext.init(build_spec(loaded, seed), number)
    serve_forever(ClientHandler(place, memory, obeying), address)


def _print(document: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"[bold]{document['policy']}[/bold] on [bold]{document['scenario']}[/bold]: {document['devices']} devices, "
        f"{document['rounds']} rounds over Flower ({document['engine']})",
        highlight=False,
    )
    table = Table("", "", "", box=None)
    for name, label in zip(OBJECTIVE_KEYS, AXIS_LABELS, strict=True):
        table.add_row(label, f"{document['objectives'][name]:.4g}", "")
    table.add_row("trainers a round", f"{document['trainers_per_round']:.2f}", "")
    table.add_row("reports", str(document["reports"]), f"of {document['reports_expected']}")
    wall = document["wall_s_by_round"]
    table.add_row("round by the wall clock (s)", f"{sum(wall) / len(wall):.2f}", f"the first {wall[0]:.1f}")
    console.print(table)
    for failure in document["failures"]:
        line = f"round {failure['round']}, {failure['device']}: {failure['reason']}"
        console.print(line, style="dim", highlight=False, markup=False)
    console.print(f"Written to {document['folder']}/", highlight=False)
