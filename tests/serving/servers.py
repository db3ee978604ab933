"""Policy files, reports, and real server processes for tests of the service."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from exports import make_case

from tandem.serving import PolicyFile
from tandem.serving.policy_file import check_policy_file, fingerprint

# Objectives of the policies of the front: accuracy, latency in s, energy in J.
FRONT = ((0.8, 3.0, 10.0), (0.7, 2.0, 8.0), (0.6, 1.0, 9.0))
SIZE = 3


@cache
def build_policy_file(network: str = "conditioned", seed: int = 0) -> PolicyFile:
    """A file with a network of random weights and a front of three policies."""
    file = make_case("discard", SIZE, network, seed=seed).file
    arrays = dict(file.arrays)
    count = len(FRONT)
    for name in [name for name in arrays if name.startswith("front.")]:
        arrays[name] = np.repeat(arrays[name], count, axis=0)
    arrays["front.objectives"] = np.array(FRONT)
    arrays["front.rewards"] = np.array(FRONT) * [1, -1, -1]
    arrays["front.preferences"] = np.eye(3)
    metadata = {**file.metadata, "run": {"seed": seed}}
    metadata["fingerprint"] = fingerprint(arrays, metadata)
    return check_policy_file(arrays, metadata, f"policy {seed}")


def report_document(number: int, size: int = SIZE, **changes: Any) -> dict[str, Any]:
    """The body of a report, different in every round."""
    rng = np.random.default_rng(number)

    def column(largest: float) -> list[float]:
        return [round(value, 3) for value in (rng.random(size) * largest).tolist()]

    document = {
        "round": number,
        "devices": [f"device-{n}" for n in range(size)],
        "queue": column(10),
        "data": column(50),
        "last_duration_s": 2.5,
        "last_train": [False] * size,
        "last_power_w": column(0.3),
        "last_frequency_hz": column(1e9),
        "waited_s": column(10),
        "data_age_s": column(5),
        "model_age_s": column(50),
        "model_accuracy": column(1),
        "last_gain": column(1e4),
    }
    return document | changes


def body_of(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


JSON = {"Content-Type": "application/json"}


@dataclass
class RunningServer:
    """A process of ``tandem serve``."""

    process: subprocess.Popen[str]
    url: str
    lines: "queue.SimpleQueue[str | None]"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def run_tandem(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(_command(*arguments), capture_output=True, text=True, timeout=60, env=_environment())


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from tandem.cli.main import main; main()", *map(str, arguments)]


def _environment() -> dict[str, str]:
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1"}


@contextlib.contextmanager
def serving(policy: Path | None, database: str, *options: object, wait_s: float = 30) -> Iterator[RunningServer]:
    """Start a server on a free port, wait until it listens, and end it."""
    server = start_server(policy, database, *options, wait_s=wait_s)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def start_server(policy: Path | None, database: str, *options: object, wait_s: float = 30) -> RunningServer:
    given = [] if policy is None else [policy]
    if "--port" not in options:
        options = ("--port", 0, *options)
    if "--tune" not in options:
        options = ("--no-tune", *options)
    process = subprocess.Popen(
        _command("serve", *given, "--database", database, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(),
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    seen: list[str] = []
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            line = lines.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            break
        if line is None:
            break
        seen.append(line)
        if line.startswith("Serving fleet"):
            return RunningServer(process, line.split(" at ")[1].split(",")[0], lines)
    process.kill()
    process.wait(10)
    raise AssertionError("the server did not start:\n" + "".join(seen))


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def post(client: httpx.Client, path: str, document: dict[str, Any] | bytes, **more: Any) -> httpx.Response:
    content = document if isinstance(document, bytes) else body_of(document)
    return client.post(path, content=content, headers=JSON | more.pop("headers", {}), **more)
