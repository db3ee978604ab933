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
from tandem.federated.fleet.client_store import alone_with, write_durably
from tandem.federated.fleet.runner import Played
from tandem.federated.fleet.server import Closed, close
from tandem.federated.fleet.server_plan import Server, opened, plan
from tandem.federated.fleet.spec import Problem
from tandem.io.tree_io import arrays_of, filled, read_arrays
from tandem.policy.base import Policy

SERVER, ROUNDS = "server.safetensors", "rounds"
KNOWN = ("belief", "accuracy", "model", "acknowledged", "settled", "heard")
HAPPENED = ("before", "outcome", "reported", "work_s")


def record(folder: Path, server: Server, played: Played) -> None:
    """Keep a round that was played, and the server after it."""
    number, closed = int(server.belief.round) - 1, played.closed
    refused = {str(device): reason for device, reason in closed.refused.items()}
    (folder / ROUNDS).mkdir(exist_ok=True)
    note = {"run": server.run, "wall_s": played.wall_s, "refused": refused}
    write_durably(_path(folder, number), arrays_of(_fields(closed, HAPPENED)), note)
    write_durably(folder / SERVER, arrays_of(_fields(server, KNOWN)), {"run": server.run})


def remembered(folder: Path, problem: Problem, policy: Policy, run: str) -> tuple[Server, list[Played]]:
    """The server as it was kept and the rounds it has played; before round 0 if nothing was kept."""
    server = opened(problem, run)
    if not (folder / SERVER).exists():
        return server, []
    _, in_silence = close(problem, server, plan(problem, policy, server), {})  # a round with every field in its place
    known, _ = _read(folder / SERVER, run, _fields(server, KNOWN))
    server = Server(run, **known)
    played = []
    for number in range(int(server.belief.round)):
        happened, note = _read(_path(folder, number), run, _fields(in_silence, HAPPENED))
        refused = {int(device): reason for device, reason in note["refused"].items()}
        played.append(Played(Closed(refused=refused, **happened), note["wall_s"]))
    return server, played


@contextmanager
def only_server(folder: Path) -> Iterator[None]:
    """Nobody else plays a run in this folder meanwhile: two servers would contradict each other."""
    with ExitStack() as stack:
        try:
            stack.enter_context(alone_with(folder / SERVER, 0.0))
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
        return {**filled(trees, arrays, path), **plain}, note
    except (InputError, KeyError) as error:
        why = f"{path}: {error} is missing" if isinstance(error, KeyError) else str(error).partition(";")[0].rstrip(".")
        raise InputError(f"{why}; the run cannot go on: begin anew without --resume.") from None
