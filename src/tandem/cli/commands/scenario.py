"""``tandem scenario list | show | check``."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from tandem.cli.options import JsonOption, ScenarioArgument, SetOption, print_json
from tandem.cli.task_options import task_spinner
from tandem.scenario import build_device_table, device_profiles, dump_scenario, load_scenario, preset_names

app = typer.Typer(help="List, show and check scenarios.", no_args_is_help=True)


@app.command("list")
def list_scenarios(as_json: JsonOption = False) -> None:
    """List the presets and the device profiles shipped with Tandem."""
    presets = {name: load_scenario(name) for name in preset_names()}
    if as_json:
        rows = [{"name": n, "description": s.description, "devices": s.fleet.size} for n, s in presets.items()]
        print_json({"presets": rows, "profiles": list(device_profiles())})
        return
    table = Table("preset", "devices", "what it is", box=None, header_style="bold")
    for name, scenario in presets.items():
        table.add_row(name, str(scenario.fleet.size), scenario.description)
    console = Console()
    console.print(table)
    console.print("\nDevice profiles: " + ", ".join(device_profiles()))


@app.command()
def show(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    devices: bool = typer.Option(False, "--devices", help="Show the drawn devices instead of the scenario."),
    as_json: JsonOption = False,
) -> None:
    """Show a scenario with every field filled in, as YAML to start your own from."""
    loaded = load_scenario(scenario, overrides or [])
    if devices:
        _show_devices(loaded, as_json)
    elif as_json:
        print_json(loaded.model_dump(mode="json"))
    else:
        typer.echo(dump_scenario(loaded), nl=False)


def _show_devices(loaded: Any, as_json: bool) -> None:
    drawn = build_device_table(loaded)
    columns = {
        "χ_tr (M)": drawn.training_cycles_per_sample / 1e6,
        "χ_in (M)": drawn.inference_cycles_per_request / 1e6,
        "f_max (GHz)": drawn.frequency_max_hz / 1e9,
        "p_max (W)": drawn.power_max_w,
        "λ (/s)": drawn.request_rate_per_s,
        "F": drawn.samples_per_request,
        "distance (m)": drawn.distance_m,
    }
    if as_json:
        fields = {name: values for name, values in vars(drawn).items() if name not in ("names", "groups")}
        print_json(
            [{"name": name, **{f: float(v[n]) for f, v in fields.items()}} for n, name in enumerate(drawn.names)]
        )
        return
    table = Table("device", *columns, box=None, header_style="bold")
    for n, name in enumerate(drawn.names):
        table.add_row(name, *(f"{values[n]:.3g}" for values in columns.values()))
    Console().print(table)


@app.command()
def check(scenario: ScenarioArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Check that a scenario is valid and that its fleet can be served, and say what the shield will hold it to."""
    loaded = load_scenario(scenario, overrides or [])
    from tandem.federated.build import build_system

    with task_spinner(loaded):
        envelope = build_system(loaded).worst_case
    trainers = envelope.max_trainers.tolist()
    samples = envelope.max_trainable_data.tolist()
    found = {
        "scenario": loaded.name,
        "devices": loaded.fleet.size,
        "shield": loaded.shield.enabled,
        "longest_round_s": float(envelope.round_limit_s),
        "most_trainers": {"lowest": min(trainers), "highest": max(trainers)},
        "trainable_samples": {"lowest": min(samples), "highest": max(samples)},
    }
    if as_json:
        print_json(found)
        return
    typer.echo(f"{loaded.source}: valid, and its {loaded.fleet.size} devices can be served.")
    typer.echo(
        f"Worst case planned for: rounds up to {found['longest_round_s']:.3g} s; "
        f"{min(trainers):.0f} to {max(trainers):.0f} devices can share the uplink; "
        f"a device can train on {min(samples):.3g} to {max(samples):.3g} samples in a round."
    )
