"""``tandem scenario list``, ``show`` and ``check``."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandem.cli.options import JsonOption, ScenarioArgument, SetOption, print_json
from tandem.cli.task_options import task_spinner
from tandem.scenario import Scenario, build_device_table, device_profiles, dump_scenario, load_scenario, preset_names

app = typer.Typer(help="List, show and check scenarios.", no_args_is_help=True)


@app.command("list")
def list_scenarios(as_json: JsonOption = False) -> None:
    """List the presets and the device profiles shipped with Tandem."""
    presets = {name: load_scenario(name) for name in preset_names()}
    if as_json:
        rows = [{"name": n, "description": s.description, "devices": s.fleet.size} for n, s in presets.items()]
        print_json({"presets": rows, "profiles": list(device_profiles())})
        return
    table = Table("preset", "devices", "description", box=None, header_style="bold")
    for name, scenario in presets.items():
        table.add_row(name, str(scenario.fleet.size), scenario.description)
    console = Console()
    console.print(table)
    console.print("\nDevice profiles: " + ", ".join(device_profiles()))


@app.command()
def show(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    devices: bool = typer.Option(False, "--devices", help="Show the sampled devices instead of the scenario."),
    as_json: JsonOption = False,
) -> None:
    """Show a scenario as YAML with every field filled in, for example to start your own from."""
    loaded = load_scenario(scenario, overrides or [])
    if devices:
        _show_devices(loaded, as_json)
    elif as_json:
        print_json(loaded.model_dump(mode="json"))
    else:
        typer.echo(dump_scenario(loaded), nl=False)


def _show_devices(loaded: Scenario, as_json: bool) -> None:
    table = build_device_table(loaded)
    columns = {
        "χ_tr (M)": table.training_cycles_per_sample / 1e6,
        "χ_in (M)": table.inference_cycles_per_request / 1e6,
        "f_max (GHz)": table.frequency_max_hz / 1e9,
        "p_max (W)": table.power_max_w,
        "λ (/s)": table.request_rate_per_s,
        "F": table.samples_per_request,
        "distance (m)": table.distance_m,
    }
    if as_json:
        fields = {name: values for name, values in vars(table).items() if name not in ("names", "groups")}
        print_json(
            [{"name": name, **{f: float(v[n]) for f, v in fields.items()}} for n, name in enumerate(table.names)]
        )
        return
    printed = Table("device", *columns, box=None, header_style="bold")
    for n, name in enumerate(table.names):
        printed.add_row(escape(name), *(f"{values[n]:.3g}" for values in columns.values()))
    Console().print(printed)


@app.command()
def check(scenario: ScenarioArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Check that a scenario is valid and that its fleet can be served, and show the limits the shield enforces."""
    from tandem.federated.build import build_system  # imports JAX, which list and show do not need

    loaded = load_scenario(scenario, overrides or [])
    with task_spinner(loaded):
        worst_case = build_system(loaded).worst_case
    trainers, samples = worst_case.max_trainers.tolist(), worst_case.max_data.tolist()
    keeps_data = loaded.shield.enabled and loaded.limits.overflow == "violation"
    document = {
        "scenario": loaded.name,
        "devices": loaded.fleet.size,
        "shield": loaded.shield.enabled,
        "longest_round_s": float(worst_case.round_limit_s),
        "most_trainers": {"lowest": min(trainers), "highest": max(trainers)},
        "reserved_trainers": int(worst_case.reserved) if keeps_data else None,
        "rounds_between_trainings": worst_case.period.tolist() if keeps_data else None,
        "trainable_samples": {"lowest": min(samples), "highest": max(samples)},
    }
    if as_json:
        print_json(document)
        return
    typer.echo(f"{loaded.source}: valid, and its {loaded.fleet.size} devices can be served.")
    typer.echo(
        f"In the worst case: rounds up to {document['longest_round_s']:.3g} s; "
        f"{min(trainers):.0f} to {max(trainers):.0f} devices can share the uplink; "
        f"a device can train on {min(samples):.3g} to {max(samples):.3g} samples in a round."
    )
    if keeps_data:
        periods = worst_case.period
        typer.echo(
            f"No sample is discarded: a round has room for {worst_case.reserved} trainers at least, and every device "
            f"has a place in one of {periods.min()} to {periods.max()} rounds."
        )
