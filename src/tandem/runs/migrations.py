"""Run folders of older formats, which are converted when they are read; their files do not change.

A run of an older format can be opened if it is finished. Training continues only in the present format: arrays of a
checkpoint have the names of the program that wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import InputError

FORMAT = 3
Document = dict[str, Any]


@dataclass(frozen=True)
class Migration:
    """The conversion from one format to the next."""

    record: Callable[[Document], Document]  # of run.json
    scenario: Callable[[Mapping[str, Any]], list[str]]  # overrides of scenario.yaml, from its fields


def migrate_record(document: Document, path: Path) -> Document:
    """Convert the document of a run.json to the present format; its number stays that of the folder."""
    number = _format(document, path)
    for step in range(number, FORMAT):
        document = MIGRATIONS[step].record(document)
    return {**document, "format": number}


def migrate_scenario(document: Document, path: Path, fields: Mapping[str, Any]) -> list[str]:
    """Return the overrides that convert a scenario.yaml to the present format, given its run.json and its fields."""
    return [text for step in range(_format(document, path), FORMAT) for text in MIGRATIONS[step].scenario(fields)]


def _format(document: Document, path: Path) -> int:
    number = document.get("format")
    if not isinstance(number, int) or isinstance(number, bool):
        raise InputError(f"{path}: has no format number, so it does not belong to a run; restore it from a copy.")
    if number > FORMAT:
        raise InputError(
            f"{path}: has format {number}, which a newer Tandem has written; this one reads formats up to {FORMAT}: "
            "upgrade it with 'pip install --upgrade tandem'."
        )
    if any(step not in MIGRATIONS for step in range(number, FORMAT)):
        raise InputError(
            f"{path}: has format {number}, which this Tandem cannot read any more; train again, or read it with "
            f"Tandem {document.get('tandem', 'of its time')}."
        )
    return number


# Format 1 had other names for hyperparameters, for the algorithm pc-ppo, and for everything that was called 'paper',
# except the preset of a scenario.
HYPERPARAMETERS_1 = {
    "rounds": "budget",
    "anneal": "anneal_lr",
    "discount": "gamma",
    "trace": "gae_lambda",
    "clip": "clip_eps",
    "ratio": "ratio_scope",
    "credit": "shared_credit",
    "entropy": "ent_coef",
    "episodes": "num_envs",
    "epochs": "update_epochs",
    "minibatches": "num_minibatches",
    "reference": "reference_point",
    "concentration": "dirichlet_alpha",
    "divisions": "preference_divisions",
    "preferences": "num_preferences",
    "lowest_weight": "min_weight",
    "archive": "archive_size",
    "extended": "num_extended",
    "tasks": "num_tasks",
    "weights": "num_weights",
    "neighbours": "num_neighbours",
    "history": "history_size",
    "population": "population_size",
    "judged_by": "episodes_per_eval",
    "mutation": "mutation_scale",
    "mutated": "mutation_rate",
    "nearby": "neighbour_prob",
    "replaced": "max_replaced",
}
ALGORITHMS_1 = {"tandem": "pc-ppo"}
PRESETS_1 = {"paper": "literal"}
NETWORKS_1 = {"paper": "mlp", "fleet": "deep-set"}
OBSERVATIONS_1 = {"paper": "minimal"}


def _record_1(document: Document) -> Document:
    """Convert a run.json of format 1."""
    document = dict(document)
    options = document.pop("options", None)
    if isinstance(options, dict):
        config = {HYPERPARAMETERS_1.get(name, name): value for name, value in options.items()}
        if "network" in config:
            config["network"] = NETWORKS_1.get(config["network"], config["network"])
        document["config"] = config
    for field, names in (("algorithm", ALGORITHMS_1), ("preset", PRESETS_1)):
        if field in document:
            document[field] = names.get(document[field], document[field])
    return document


def _scenario_1(fields: Mapping[str, Any]) -> list[str]:
    """Convert a scenario.yaml of format 1, in which the shield always discarded samples that did not fit."""
    observation = fields.get("observation")
    renamed = [f"observation={OBSERVATIONS_1[observation]}"] if observation in OBSERVATIONS_1 else []
    return [*renamed, "limits.overflow=discard"]


# Format 2 had no choice of these hyperparameters; all runs behaved as follows.
HYPERPARAMETERS_2 = {"violation_credit": "fleet"}
CMOPPO_2 = {"selection_episodes": 0, "return_range": "front"}


def _record_2(document: Document) -> Document:
    """Convert a run.json of format 2."""
    config = document.get("config")
    if not isinstance(config, dict):
        return document
    implied = HYPERPARAMETERS_2 | (CMOPPO_2 if document.get("algorithm") == "c-moppo" else {})
    return {**document, "config": {**implied, **config}}


def _scenario_2(fields: Mapping[str, Any]) -> list[str]:
    """Convert a scenario.yaml of format 2, which has the same fields."""
    return []


MIGRATIONS: dict[int, Migration] = {1: Migration(_record_1, _scenario_1), 2: Migration(_record_2, _scenario_2)}
