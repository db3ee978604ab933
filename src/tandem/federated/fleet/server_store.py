"""The server's memory: what it knows between two rounds, and the rounds it has played.

A round is written first, then the server that knows of it; with the second file in its place the round has happened. A
server that ends before that plays the round again when it is started anew: it decides as before, and a device that has
obeyed already gives the same report.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tandem.errors import InputError
from tandem.federated.fleet.server import RoundRecord, TimedRound, aggregate_round
from tandem.federated.fleet.server_plan import ServerState, init_server, plan_round
from tandem.federated.fleet.spec import FleetSpec
from tandem.io.locks import file_lock
from tandem.io.tree_io import flatten_arrays, read_arrays, restore_arrays, write_arrays
from tandem.policy.base import Policy

SERVER, ROUNDS = "server.safetensors", "rounds"
SERVER_FIELDS = ("estimate", "accuracy", "model", "algorithm_state", "acknowledged", "settled", "heard")
ROUND_FIELDS = ("before", "outcome", "reported", "work_s")


def save_round(folder: Path, server: ServerState, played: TimedRound) -> None:
    """Keep a round that was played, and the server after it."""
    number, closed = int(server.estimate.round) - 1, played.record
    refused = {str(device): reason for device, reason in closed.refused.items()}
    (folder / ROUNDS).mkdir(exist_ok=True)
    note = {"run": server.run, "wall_s": played.wall_s, "refused": refused}
    write_arrays(_path(folder, number), flatten_arrays(_fields(closed, ROUND_FIELDS)), note, durable=True)
    write_arrays(folder / SERVER, flatten_arrays(_fields(server, SERVER_FIELDS)), {"run": server.run}, durable=True)


def load_run(folder: Path, problem: FleetSpec, policy: Policy, run: str) -> tuple[ServerState, list[TimedRound]]:
    """The server as it was kept and the rounds it has played; before round 0 if nothing was kept."""
    server = init_server(problem, run)
    if not (folder / SERVER).exists():
        return server, []
    _, in_silence = aggregate_round(
        problem, server, plan_round(problem, policy, server), {}
    )  # a round with every field in its place
    known, _ = _read(folder / SERVER, run, _fields(server, SERVER_FIELDS))
    server = ServerState(run, **known)
    played = []
    for number in range(int(server.estimate.round)):
        happened, note = _read(_path(folder, number), run, _fields(in_silence, ROUND_FIELDS))
        refused = {int(device): reason for device, reason in note["refused"].items()}
        played.append(TimedRound(RoundRecord(refused=refused, **happened), note["wall_s"]))
    return server, played


@contextmanager
def server_lock(folder: Path) -> Iterator[None]:
    """Nobody else plays a run in this folder meanwhile: two servers would contradict each other."""
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock((folder / SERVER).with_suffix(".lock")))
        except TimeoutError:
            raise InputError(f"{folder}: a server is at work there; stop it first, or name another --out.") from None
        yield


def _path(folder: Path, number: int) -> Path:
    return folder / ROUNDS / f"{number:06}.safetensors"


def _fields(whole: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(whole, name) for name in names}


def _read(path: Path, run: str, like: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a file as they are in ``like``, trees of JAX or plain NumPy, and its note."""
    try:
        arrays, note = read_arrays(path)
        if note.get("run") != run:
            raise InputError(f"{path}: is of another run.")
        plain = {name: arrays.pop(name) for name, value in like.items() if isinstance(value, np.ndarray)}
        trees = {name: value for name, value in like.items() if name not in plain}
        return {**restore_arrays(trees, arrays, path), **plain}, note
    except (InputError, KeyError) as error:
        why = f"{path}: {error} is missing" if isinstance(error, KeyError) else str(error).partition(";")[0].rstrip(".")
        raise InputError(f"{why}; the run cannot go on: begin anew without --resume.") from None
