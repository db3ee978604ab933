"""The registry of algorithms and their presets. A new algorithm is one module and one entry here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tandem.errors import InputError, describe_error, did_you_mean, one_line
from tandem.io.yaml_reader import read_assignment
from tandem.learn.algorithm import Algorithm
from tandem.learn.cmoppo import CMOPPO
from tandem.learn.conditioned_ppo import ConditionedPPO
from tandem.learn.config import AlgorithmConfig
from tandem.learn.evolution.algorithm import MOEAD, NSGA2
from tandem.learn.pg_morl.algorithm import PGMORL
from tandem.learn.scalarised_ppo import RandomModePPO, ScalarisedPPO

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (ConditionedPPO, CMOPPO, PGMORL, ScalarisedPPO, RandomModePPO, MOEAD, NSGA2)
}

DEFAULT_ALGORITHM = "pc-ppo"
DEFAULT_PRESET = "default"


def make_config(
    algorithm: str, preset: str = DEFAULT_PRESET, changes: Sequence[str] | Mapping[str, Any] = ()
) -> AlgorithmConfig:
    """Return the hyperparameters of a preset, changed by ``"clip_eps=0.2"`` strings or by a mapping."""
    kind = get_algorithm(algorithm)
    if preset not in kind.presets:
        raise InputError(f"preset {preset}: {algorithm} has no such preset; {did_you_mean(preset, kind.presets)}.")
    return config_from_document(
        algorithm, {**kind.presets[preset], **_read_changes(changes)}, f"options of {algorithm}"
    )


def override_config(
    algorithm: str, config: AlgorithmConfig, changes: Sequence[str] | Mapping[str, Any]
) -> AlgorithmConfig:
    """Return hyperparameters with some changed, as in ``make_config``."""
    return config_from_document(
        algorithm, {**config_document(config), **_read_changes(changes)}, f"options of {algorithm}"
    )


def get_algorithm(name: str) -> type[Algorithm]:
    """Return the algorithm with a name; raises InputError if there is none."""
    if name not in ALGORITHMS:
        raise InputError(f"algorithm {name}: is not known; {did_you_mean(name, ALGORITHMS)}.")
    return ALGORITHMS[name]


def config_from_document(algorithm: str, document: Mapping[str, Any], source: str) -> AlgorithmConfig:
    """Validate hyperparameters that were read from JSON; ``source`` names them in error messages."""
    try:
        return get_algorithm(algorithm).config_type.model_validate(dict(document))
    except ValidationError as error:
        details = error.errors(include_url=False)
        place = "".join(f"[{step}]" if isinstance(step, int) else str(step) for step in details[0]["loc"])
        raise InputError(one_line(f"{source}: {place} {describe_error(details[0])}.")) from None


def config_document(config: AlgorithmConfig) -> dict[str, Any]:
    """Return hyperparameters as a JSON document, which ``config_from_document`` reads."""
    return config.model_dump(mode="json")


def _read_changes(changes: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(changes, Mapping):
        return dict(changes)
    return dict(read_assignment(text, "--train-set", "clip_eps=0.2") for text in changes)
