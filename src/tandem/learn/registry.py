"""The algorithms by name. One more is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from tandem.errors import InputError, did_you_mean, one_line, said_of
from tandem.io.yaml_reader import read_yaml
from tandem.learn.algorithm import Algorithm
from tandem.learn.cmoppo import CMOPPO
from tandem.learn.conditioned_ppo import Conditioned
from tandem.learn.config import Options
from tandem.learn.evolution.algorithm import MOEAD, NSGA2
from tandem.learn.pg_morl.algorithm import PredictionGuided
from tandem.learn.scalarised_ppo import RandomModePPO, ScalarisedPPO

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (Conditioned, CMOPPO, PredictionGuided, ScalarisedPPO, RandomModePPO, MOEAD, NSGA2)
}

DEFAULT_ALGORITHM = "tandem"
DEFAULT_PRESET = "default"


def choose_options(
    algorithm: str, preset: str = DEFAULT_PRESET, changes: Sequence[str] | Mapping[str, Any] = ()
) -> Options:
    """The options of a preset with some changed, by ``"clip=0.2"`` strings or by a mapping of names to values."""
    kind = algorithm_named(algorithm)
    if preset not in kind.presets:
        raise InputError(f"preset {preset}: {algorithm} has no such preset; {did_you_mean(preset, kind.presets)}.")
    pairs = changes.items() if isinstance(changes, Mapping) else [_split(text) for text in changes]
    return options_from(algorithm, {**kind.presets[preset], **dict(pairs)}, f"options of {algorithm}")


def changed_options(algorithm: str, options: Options, changes: Sequence[str] | Mapping[str, Any]) -> Options:
    """The same options with some changed, in the same ways."""
    pairs = changes.items() if isinstance(changes, Mapping) else [_split(text) for text in changes]
    return options_from(algorithm, {**options_document(options), **dict(pairs)}, f"options of {algorithm}")


def algorithm_named(name: str) -> type[Algorithm]:
    """The algorithm of that name."""
    if name not in ALGORITHMS:
        raise InputError(f"algorithm {name}: is not known; {did_you_mean(name, ALGORITHMS)}.")
    return ALGORITHMS[name]


def options_from(algorithm: str, document: Mapping[str, Any], source: str) -> Options:
    """Validate options, such as were read from JSON; ``source`` is what to call them in a message."""
    try:
        return algorithm_named(algorithm).options_type.model_validate(dict(document))
    except ValidationError as error:
        details = error.errors(include_url=False)
        place = "".join(f"[{step}]" if isinstance(step, int) else str(step) for step in details[0]["loc"])
        raise InputError(one_line(f"{source}: {place} {said_of(details[0])}.")) from None


def options_document(options: Options) -> dict[str, Any]:
    """Options as JSON; ``options_from`` reads them back."""
    return options.model_dump(mode="json")


def _split(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"--train-set {text}: is not name=value; write one such as --train-set clip=0.2.")
    try:
        return name.strip(), read_yaml(value)
    except yaml.YAMLError:
        raise InputError(f"--train-set {text}: has a value that cannot be read; mend its quotes or brackets.") from None
