"""Loading a scenario: a preset or a YAML file, with overrides; errors are one sentence that says what to fix."""

from __future__ import annotations

import copy
import functools
import os.path
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tandem.errors import InputError, describe_error, did_you_mean, one_line, short_repr
from tandem.io.yaml_reader import dump_yaml, read_assignment, read_yaml
from tandem.scenario.base import PluginConfig
from tandem.scenario.plugins import AccuracyMappingConfig, ArrivalsConfig, FadingConfig, TaskConfig
from tandem.scenario.schema import Scenario

_INDEX = re.compile(r"\[(\d+)\]")
# Keys of mappings that stand for one value: such a mapping is replaced as a whole, never merged.
_VALUE_KEYS = {"uniform", "many-to-one", "one-to-many", "samples_per_request"}
# Fields in which a bare word stands for {kind: word}.
_PLUGINS: dict[str, type[PluginConfig]] = {
    "arrivals": ArrivalsConfig,
    "fading": FadingConfig,
    "mapping": AccuracyMappingConfig,
    "task": TaskConfig,
}

Location = tuple[int | str, ...]


def preset_names() -> list[str]:
    """List the scenarios shipped with the package."""
    folder = resources.files("tandem.scenario").joinpath("presets")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_scenario(name_or_path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Scenario:
    """Read a preset or a file, apply overrides, validate.

    ``overrides`` are ``"fleet.size=20"`` strings or a mapping of such paths to values. A file may begin with
    ``extends: paper`` (a preset or another file, relative to it) and then hold only what differs.
    """
    try:
        fields, source = _read(str(name_or_path))
        if isinstance(overrides, Mapping):
            changes = list(overrides.items())
        else:
            changes = [_parse_override(text, source) for text in overrides]
        for path, value in changes:
            _override(fields, path, copy.deepcopy(value), source)
        return _validate(_with_absolute_paths(fields, Path()), source)
    except InputError as error:
        raise InputError(one_line(str(error))) from None


def dump_scenario(scenario: Scenario) -> str:
    """Write a scenario as YAML that ``load_scenario`` reads back to an equal one."""
    return dump_yaml(scenario.model_dump(mode="json"))


def _read(name: str, folder: Path = Path(), seen: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """Return the fields of a preset or file merged into those it extends, and its name for messages."""
    if name in preset_names():
        source, written = f"preset {name}", _preset(name)
    else:
        path = folder / name
        source, folder = str(path), path.parent
        written = _parse(_read_text(path), source)
    identity = os.path.realpath(source)
    if identity in seen:
        raise InputError(f"{source}: extends itself in a circle; remove one of these 'extends' lines.")
    fields = _with_absolute_paths(written, folder)
    base = fields.pop("extends", None)
    if base is None:
        return fields, source
    if not isinstance(base, str):
        raise InputError(f"{source}: extends is {short_repr(base)}; write the name of a preset or the path of a file.")
    try:
        return _merge(_read(base, folder, (*seen, identity))[0], fields), source
    except InputError as error:
        raise InputError(f"{source}: extends: {error}") from None


@functools.cache
def _preset(name: str) -> dict[str, Any]:
    text = resources.files("tandem.scenario").joinpath("presets", f"{name}.yaml").read_text("utf-8")
    return _parse(text, f"preset {name}")


def _read_text(path: Path) -> str:
    presets = ", ".join(preset_names())
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        hint = did_you_mean(path.name, preset_names()) if path.suffix == "" else f"fix the path or use one of {presets}"
        raise InputError(f"{path}: there is no such file and no preset of that name; {hint}.") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name a scenario file in it, or a preset: {presets}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text; write a scenario as a YAML file in UTF-8.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions.") from None
    except ValueError as error:  # a path no system allows
        raise InputError(f"{path}: is not a path ({error}); name a scenario file, or a preset: {presets}.") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        fields = read_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(f"{source}{_describe_yaml_error(error)}; fix that line.") from None
    if fields is None or fields == {}:
        raise InputError(f"{source}: is empty; start from 'extends: paper' or from 'tandem scenario show paper'.")
    if not isinstance(fields, dict):
        raise InputError(
            f"{source}: is {short_repr(fields)} and has no fields; write 'field: value' lines, or 'extends: paper'."
        )
    return fields


def _describe_yaml_error(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it does not parse"
    return f"{place}: cannot be read as YAML ({problem})"


def _with_absolute_paths(fields: Any, folder: Path) -> Any:
    """Copy fields, with each path made absolute (in the file it is relative to ``folder``)."""
    if isinstance(fields, list):
        return [_with_absolute_paths(part, folder) for part in fields]
    if not isinstance(fields, dict):
        return fields
    return {
        key: str((folder / part).absolute())
        if (key == "path" or str(key).endswith("_path")) and isinstance(part, str)
        else _with_absolute_paths(part, folder)
        for key, part in fields.items()
    }


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge mappings field by field; a plugin of another kind, a list or a value replaces the old value."""
    return {**base, **{key: _merge_value(base.get(key), value) for key, value in changes.items()}}


def _merge_value(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict) or not _VALUE_KEYS.isdisjoint({*old, *new}):
        return new
    same_kind = new.get("kind", old.get("kind")) == old.get("kind")
    return _merge(old, new) if same_kind else new


def _parse_override(text: str, source: str) -> tuple[str, Any]:
    try:
        return read_assignment(text, "--set", "fleet.size=20")
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _override(fields: dict[str, Any], path: str, value: Any, source: str) -> None:
    """Set a path such as ``fleet.devices[0].count``; unknown names are found by validation later."""
    option = f"{source}: --set {path}"
    *steps, last = _INDEX.sub(r".\1", path).split(".")
    node: Any = fields
    for position, step in enumerate(steps):
        key = _resolve_key(node, step, option, ".".join(steps[:position]))
        if isinstance(node, dict) and node.get(key) is None:
            node[key] = {}
        elif key in _PLUGINS and isinstance(node[key], str):
            node[key] = {"kind": node[key]}
        node = node[key]
    key = _resolve_key(node, last, option, ".".join(steps))
    if key == "kind" and steps and steps[-1] in _PLUGINS and isinstance(value, str):
        known = _PLUGINS[steps[-1]].choices.get(value)
        for field in set(node) - set(known.model_fields if known else node):
            del node[field]  # it belongs to the kind that is replaced
    node[key] = _merge_value(node.get(key) if isinstance(node, dict) else node[key], value)


def _resolve_key(node: Any, step: str, option: str, parent: str) -> str | int:
    """Convert a step of a path into a key of a mapping or an index of a list."""
    if not step:
        raise InputError(f"{option}: has an empty name between its dots; write it as in --set fleet.size=20.")
    if isinstance(node, dict):
        return step
    if not isinstance(node, list):
        raise InputError(
            f"{option}: {parent} is {short_repr(node)} and has no field {step!r}; set {parent} as a whole."
        )
    if step not in map(str, range(len(node))):
        raise InputError(f"{option}: {parent} has no entry {step}; use one of 0 to {len(node) - 1}.")
    return int(step)


def _validate(fields: dict[str, Any], source: str) -> Scenario:
    try:
        scenario = Scenario.model_validate(fields)
    except ValidationError as error:
        raise InputError(_describe_validation_error(error, fields, source)) from None
    scenario._source = source
    return scenario


def _describe_validation_error(error: ValidationError, fields: dict[str, Any], source: str) -> str:
    """Write one sentence on the first error, and the number of further ones."""
    problems: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        location = _written_location(detail["loc"], fields)
        message = describe_error(detail)
        if detail["type"] == "missing" and location[:2] == ("fleet", "devices"):
            message = "is missing; give it there, in fleet.defaults or by a profile"
        problems.setdefault(_field_path(location), message)
    field, message = next(iter(problems.items()))
    more = f" ({len(problems) - 1} more after this one)" if len(problems) > 1 else ""
    return f"{source}: {field} {message}{more}."


def _written_location(location: Location, fields: dict[str, Any]) -> Location:
    """Return where a value was written: a device's field may come from ``fleet.defaults``."""
    match location:
        case ("fleet", "devices", int(n), str(field), *rest):
            fleet = fields["fleet"]
            group = fleet["devices"][n] if "devices" in fleet else {}
            if field not in group and field in (fleet.get("defaults") or {}):
                return ("fleet", "defaults", field, *rest)
    return location


def _field_path(location: Location) -> str:
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text or "the scenario"
