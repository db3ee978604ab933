"""The folder of a fleet's run: file names and the server's lock.

fleet-config.json   the configuration of the run
scenario.yaml       the scenario, with all overrides applied
server.safetensors  the state of the server after the last completed round
rounds/             one file for each completed round
client-store/       states of devices that run on this machine, by run and device
progress.jsonl      one line for each completed round
trace.csv           every device in every round, as in 'tandem simulate'
fleet.json          the result; written last
failure.txt         why the server stopped with an error
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tandem.errors import InputError
from tandem.io.locks import file_lock

CONFIG, SCENARIO = "fleet-config.json", "scenario.yaml"
SERVER, ROUNDS, LOCK = "server.safetensors", "rounds", "server.lock"
CLIENT_STORE = "client-store"
RESULT, PROGRESS, FAILURE = "fleet.json", "progress.jsonl", "failure.txt"
TRACES = ("trace.csv", "trace.parquet")


@contextmanager
def server_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder for the block; two servers would overwrite each other's rounds."""
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(folder / LOCK))
        except TimeoutError:
            raise InputError(f"{folder}: a server is running there; stop it first, or name another --out.") from None
        yield
