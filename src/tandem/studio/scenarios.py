"""The main fields of a scenario for a form, checked by the same code as on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tandem.errors import InputError
from tandem.federated.build import build_system
from tandem.scenario import Scenario, dump_scenario, load_scenario, preset_names


class MainField(NamedTuple):
    """A field of the form."""

    path: str
    label: str
    unit: str
    help: str


FIELDS = (
    MainField("fleet.size", "Devices", "", "Number of devices of the fleet."),
    MainField("fleet.seed", "Seed of the fleet", "", "Seed of the values that are drawn for each device."),
    MainField("rounds", "Rounds of an episode", "", "Length of an episode in training and evaluation."),
    MainField("workload.request_rate_per_s", "Requests of a device", "1/s", "Mean over devices."),
    MainField("channel.bandwidth_hz", "Bandwidth", "Hz", "Of the uplink, shared by the trainers of a round."),
    MainField("training.iterations", "Local iterations, U", "", "Passes over the data in one round of training."),
    MainField("training.update_bits", "Size of an update", "bit", "What a trainer uploads."),
    MainField("limits.round_max_s", "Longest round, L_max", "s", "A trainer that takes longer violates C1."),
    MainField("limits.queue_max", "Queue, Q_max", "requests", "More requests violate C2."),
    MainField("limits.data_max", "Buffer, D_max", "samples", "More samples violate C3."),
    MainField("accuracy.model_decay_per_s", "Decay of a model", "1/s", "How fast a model loses accuracy."),
    MainField("shield.enabled", "Shield", "", "Whether actions are projected onto what all constraints allow."),
)


def form_document() -> dict[str, Any]:
    """Return the fields and their values in every preset."""
    values = {name: _values(load_scenario(name)) for name in preset_names()}
    return {"presets": list(preset_names()), "fields": [field._asdict() for field in FIELDS], "values": values}


def check_scenario(preset: str, changes: Mapping[str, str]) -> dict[str, Any]:
    """Validate a preset with changed fields; return it as YAML, or the sentence that says what to fix."""
    try:
        scenario = load_feasible(preset, changes)
    except InputError as error:
        return {"valid": False, "problem": str(error), "yaml": None}
    return {"valid": True, "problem": None, "yaml": dump_scenario(scenario)}


def load_feasible(preset: str, changes: Mapping[str, str]) -> Scenario:
    """Load a preset with changed fields. Raises InputError if it is not valid, or if its fleet cannot be served."""
    scenario = load_scenario(preset, overrides(preset, changes))
    build_system(scenario)
    return scenario


def overrides(preset: str, changes: Mapping[str, str]) -> list[str]:
    """Return the changes as arguments of ``--set``. Raises InputError for what the form does not have."""
    if preset not in preset_names():
        raise InputError(f"{preset}: is not a preset; choose one of {', '.join(preset_names())}.")
    known = {field.path for field in FIELDS}
    for path in changes:
        if path not in known:
            raise InputError(f"{path}: cannot be changed here; write a scenario file and use 'tandem train FILE'.")
    return [f"{path}={value}" for path, value in changes.items()]


def _values(scenario: Scenario) -> dict[str, str]:
    document = scenario.model_dump(mode="json")
    values = {}
    for field in FIELDS:
        value: Any = document
        for part in field.path.split("."):
            value = value[part]
        values[field.path] = str(value).lower() if isinstance(value, bool) else f"{value:.12g}"
    return values
