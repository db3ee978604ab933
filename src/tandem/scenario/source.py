"""From a preset's name or a YAML file, and overrides, to a Scenario; or to one sentence that says what to mend."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tandem.errors import InputError
from tandem.scenario.parts import did_you_mean
from tandem.scenario.schema import Scenario

_INDEX = re.compile(r"\[(\d+)\]")


def preset_names() -> list[str]:
    """The scenarios shipped with the package."""
    folder = resources.files("tandem.scenario").joinpath("presets")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_scenario(name_or_path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Scenario:
    """Read a preset or a file, apply overrides, validate.

    ``overrides`` are ``"fleet.size=20"`` strings or a mapping of such paths to values. A file may begin with
    ``extends: paper`` (a preset or another file, relative to it) and then hold only what differs.
    """
    fields, source = _read(str(name_or_path))
    pairs = overrides.items() if isinstance(overrides, Mapping) else [_split_override(text) for text in overrides]
    for path, value in pairs:
        _override(fields, path, value)
    return _validate(fields, source)


def dump_scenario(scenario: Scenario) -> str:
    """The scenario as YAML that ``load_scenario`` reads back to an equal one."""
    return yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read(name_or_path: str, seen: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    if name_or_path in preset_names():
        text = resources.files("tandem.scenario").joinpath("presets", f"{name_or_path}.yaml").read_text("utf-8")
        source, folder = f"preset {name_or_path}", Path()
    else:
        path = Path(name_or_path)
        source, folder = str(path), path.parent
        text = _read_text(path)
    if source in seen:
        raise InputError(
            f"{source}: extends itself, by way of {' and '.join(seen)}; remove one of the 'extends' lines."
        )
    fields = _parse(text, source)
    _resolve_paths(fields, folder)
    base = fields.pop("extends", None)
    if base is None:
        return fields, source
    if base not in preset_names():
        base = str(folder / str(base))
    return _merge(_read(base, (*seen, source))[0], fields), source


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a scenario file in it, or a preset: {', '.join(preset_names())}.")
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        hint = did_you_mean(str(path), preset_names())
        raise InputError(f"{path}: there is no such file and no preset of that name; {hint}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text; a scenario is a YAML file in UTF-8.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions.") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        fields = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it does not parse"
        raise InputError(f"{source}{place}: is not valid YAML ({problem}); mend that line.") from None
    if not isinstance(fields, dict):
        raise InputError(
            f"{source}: holds no fields; start from 'extends: paper' or from 'tandem scenario show paper'."
        )
    return fields


def _resolve_paths(fields: Any, folder: Path) -> None:
    """Make the paths of trace files relative to the scenario file that names them."""
    for part in fields.values() if isinstance(fields, dict) else fields if isinstance(fields, list) else ():
        if isinstance(part, dict) and part.get("kind") == "trace" and isinstance(part.get("path"), str):
            part["path"] = str(folder / part["path"])
        _resolve_paths(part, folder)


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Mappings merge field by field; a plug of another kind, a list or a value replaces what was there."""
    return {**base, **{key: _changed(base.get(key), value) for key, value in changes.items()}}


def _changed(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict) or "uniform" in old or "uniform" in new:
        return new
    same_kind = new.get("kind", old.get("kind")) == old.get("kind")
    return _merge(old, new) if same_kind else new


def _split_override(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise InputError(f"--set {text}: has no '='; write --set field.path=value, such as --set fleet.size=20.")
    try:
        return path.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise InputError(f"--set {text}: the value is not valid YAML; quote it or mend its brackets.") from None


def _override(fields: dict[str, Any], path: str, value: Any) -> None:
    """Set ``fleet.devices[0].count`` and the like; whether the name exists is for validation to say."""
    steps = _INDEX.sub(r".\1", path).split(".")
    here: Any = fields
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        if isinstance(here, list):
            if not step.isdigit() or int(step) >= len(here):
                raise InputError(f"--set {path}: there is no entry {step}; the list has {len(here)}, counted from 0.")
            key: Any = int(step)
        elif isinstance(here, dict):
            key = step
        else:
            before = ".".join(steps[:position])
            raise InputError(f"--set {path}: {before} is a single value ({here!r}), it has no field {step!r}.")
        if last:
            old = here[key] if isinstance(here, list) else here.get(key)
            here[key] = _changed(old, value)
        elif isinstance(here, dict):
            here = here.setdefault(key, {})
        else:
            here = here[key]


def _validate(fields: dict[str, Any], source: str) -> Scenario:
    try:
        return Scenario.model_validate({**fields, "source": source})
    except ValidationError as error:
        raise InputError(_sentence(error, source)) from None


def _sentence(error: ValidationError, source: str) -> str:
    """One sentence for the first problem, in the user's words, and how many more there are."""
    problems = error.errors()
    first = problems[0]
    place = _place(first["loc"])
    match first["type"]:
        case "missing":
            in_group = re.match(r"fleet\.devices\[\d+\]", place)
            where = "give it there, in fleet.defaults or by a profile" if in_group else "give it a value"
            said = f"is missing; {where}"
        case "extra_forbidden":
            said = f"is not a field; {did_you_mean(str(first['loc'][-1]), _siblings(first['loc']))}"
        case "value_error":
            said = str(first["ctx"]["error"])
        case _:
            said = f"is {first['input']!r}; {first['msg'][0].lower()}{first['msg'][1:]}"
    more = f" ({len(problems) - 1} more after this one)" if len(problems) > 1 else ""
    return f"{source}: {place or 'the scenario'} {said}{more}."


def _place(location: tuple[int | str, ...]) -> str:
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def _siblings(location: tuple[int | str, ...]) -> list[str]:
    """The field names that would have been right where an unknown one stands."""
    model: Any = Scenario
    for step in location[:-1]:
        if isinstance(step, int):
            continue
        annotation = model.model_fields[step].annotation if step in getattr(model, "model_fields", {}) else None
        inner = getattr(annotation, "__args__", ())
        model = next((kind for kind in (annotation, *inner) if hasattr(kind, "model_fields")), None)
        if model is None:
            return []
    return [name for name in model.model_fields if name != "source"]
