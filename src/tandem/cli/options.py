"""Arguments and options that several commands share, with functions that parse values and print results."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from tandem.errors import InputError, did_you_mean
from tandem.io.atomic import check_replaceable, check_writable_folder, reason
from tandem.io.yaml_reader import read_assignment
from tandem.objectives import OBJECTIVE_LABELS

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A preset (see 'tandem scenario list') or a YAML file.")
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a finished training run.", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Override a field of the scenario, e.g. fleet.size=20. May be repeated."
    ),
]
PreferOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=WEIGHT,...",
        help="Objective weights, e.g. accuracy=0.5,latency=0.3,energy=0.2.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]

PREFERENCE_EXAMPLE = "accuracy=0.5,latency=0.3,energy=0.2"


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def parse_overrides(texts: Sequence[str] | None) -> dict[str, Any]:
    """Parse the values of --set into a mapping of fields to values; the last value of a repeated field is used."""
    return dict(read_assignment(text, "--set", "fleet.size=20") for text in texts or ())


def parse_preference(text: str) -> tuple[float, float, float]:
    """Parse ``accuracy=0.5,latency=0.3`` into three weights that sum to 1; an objective that is not named gets 0."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InputError(
                f"--prefer {text}: {part.strip()!r} is not NAME=WEIGHT; write it as in {PREFERENCE_EXAMPLE}."
            )
        if name not in OBJECTIVE_LABELS:
            raise InputError(f"--prefer {text}: {name!r} is not an objective; {did_you_mean(name, OBJECTIVE_LABELS)}.")
        if name in weights:
            raise InputError(f"--prefer {text}: {name} is given twice; give each objective one weight.")
        weights[name] = _parse_weight(text, name, value)
    total = sum(weights.values())
    if total <= 0:
        raise InputError(f"--prefer {text}: every weight is 0; make at least one larger, as in {PREFERENCE_EXAMPLE}.")
    if math.isinf(total):
        raise InputError(f"--prefer {text}: the weights are too large; write smaller ones, as in {PREFERENCE_EXAMPLE}.")
    accuracy, latency, energy = (weights.get(name, 0.0) / total for name in OBJECTIVE_LABELS)
    return accuracy, latency, energy


def _parse_weight(text: str, name: str, value: str) -> float:
    try:
        weight = float(value)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise InputError(f"--prefer {text}: {value!r} is not a number; write it as in {PREFERENCE_EXAMPLE}.")
    if weight < 0:
        raise InputError(f"--prefer {text}: the weight of {name} is negative; give 0 or more.")
    return weight


def check_writable(path: Path, option: str) -> None:
    """Raise InputError for a file that cannot be written or belongs to a run, before its content is computed."""
    from tandem.runs.run_dir import FILES, RECORD  # imports JAX

    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    problem = None
    if path.is_dir():
        problem = "is a folder; name a file in it"
    elif not folder.is_dir():
        problem = f"cannot be written, because there is no folder {folder}; create it first"
    elif path.name in FILES and (folder / RECORD).exists():
        problem = "is a file of a run; name another file"
    if problem:
        raise InputError(f"{option} {path}: {problem}.")
    with report_write_errors(path, option):
        try:
            check_replaceable(path)
        except InputError as error:
            raise InputError(f"{option} {error}") from None
        check_writable_folder(folder)


@contextmanager
def report_write_errors(path: Path, option: str) -> Iterator[None]:
    """Convert an OSError of the block into an InputError that names the option."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written ({reason(error)}); name another file.") from None


def read_token(path: Path) -> str:
    """Read the token of --token-file."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        said = reason(error) if isinstance(error, OSError) else "it is not text"
        raise InputError(f"--token-file {path}: cannot be read ({said}); check the path.") from None
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise InputError(f"--token-file {path}: must hold at least 16 ASCII characters on one line.")
    return token


def check_url(text: str) -> str:
    """Return the address of a server without a slash at its end; raises InputError if it is none."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(f"{text}: is not an address; write it as http://127.0.0.1:8400.")
    return text.rstrip("/")
