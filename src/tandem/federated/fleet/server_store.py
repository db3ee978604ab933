"""Durable state of the server: one file for each completed round, and one for the server after the last of them.

A round's file is written first, then the server's. The round is complete when the server's file is in place. A server
that stops before that repeats the round when it is started again: it makes the same decisions, and devices that have
already followed their instructions send the same reports.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tandem.errors import InputError
from tandem.federated.fleet.decider import Decider
from tandem.federated.fleet.run_dir import ROUNDS, SERVER
from tandem.federated.fleet.server import RoundRecord, ServerState, aggregate_round, init_server, plan_round
from tandem.federated.fleet.spec import FleetSpec
from tandem.io.array_file import read_arrays, write_arrays
from tandem.io.tree_io import flatten_arrays, restore_arrays

SERVER_FIELDS = ("estimate", "accuracy", "model", "algorithm_state", "acknowledged", "settled", "responded")
ROUND_FIELDS = ("before", "outcome", "reported", "work_s")


def save_round(folder: Path, server: ServerState, record: RoundRecord) -> None:
    """Write a completed round, and the server after it."""
    number = int(server.estimate.round) - 1
    refused = {str(device): reason for device, reason in record.refused.items()}
    note = {"run": server.run, "wall_s": record.wall_s, "refused": refused}
    (folder / ROUNDS).mkdir(exist_ok=True)
    write_arrays(_round_path(folder, number), flatten_arrays(_fields(record, ROUND_FIELDS)), note, durable=True)
    write_arrays(folder / SERVER, flatten_arrays(_fields(server, SERVER_FIELDS)), {"run": server.run}, durable=True)


def load_server(folder: Path, spec: FleetSpec, decide: Decider, run: str) -> tuple[ServerState, list[RoundRecord]]:
    """Read the server and its completed rounds; returns a new server if nothing was written."""
    server = init_server(spec, run)
    if not (folder / SERVER).exists():
        return server, []
    # A round without any answer has the types and shapes of every field.
    _, template = aggregate_round(spec, server, plan_round(spec, decide, server), {})
    fields, _ = _read(folder / SERVER, run, _fields(server, SERVER_FIELDS))
    server = ServerState(run, **fields)
    records = []
    for number in range(int(server.estimate.round)):
        fields, note = _read(_round_path(folder, number), run, _fields(template, ROUND_FIELDS))
        refused = {int(device): reason for device, reason in note["refused"].items()}
        records.append(RoundRecord(refused=refused, wall_s=note["wall_s"], **fields))
    return server, records


def _round_path(folder: Path, number: int) -> Path:
    return folder / ROUNDS / f"{number:06}.safetensors"


def _fields(source: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _read(path: Path, run: str, template: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the fields of a file, each as in ``template`` (a NumPy array or a pytree of JAX arrays), and its note."""
    try:
        arrays, note = read_arrays(path)
        if note.get("run") != run:
            raise InputError(f"{path}: is of another run.")
        plain = {name: arrays.pop(name) for name, value in template.items() if isinstance(value, np.ndarray)}
        trees = {name: value for name, value in template.items() if name not in plain}
        return {**restore_arrays(trees, arrays, path), **plain}, note
    except (InputError, KeyError) as error:
        reason = f"{path}: {error} is missing" if isinstance(error, KeyError) else str(error).partition(";")[0]
        raise InputError(f"{reason.rstrip('.')}; the run cannot be resumed: start it again without --resume.") from None
