"""Measure decisions over HTTP with durable storage: a real ``tandem serve`` process and clients in this process.

    python benchmarks/serving_http.py [--database URL] [--sizes 10 30 1000 100000] [--seconds 5]

- saturated: 50 clients, each of which sends its next request when it has its answer. Latency is mostly queueing.
- paced: requests at fixed times, 100 in a second, over 50 connections. Latency counts from the time at which a request
  was due, so that a stall of the server delays all requests that were due during it.
- large fleets: one client.

Each server starts with an empty database: a SQLite file in a temporary folder (of --folder, which decides on the disk),
or the PostgreSQL database of --database, in which every measurement has a fleet of its own. The policy is a network
with random weights, since the cost of a decision does not depend on them. Server and clients share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS = 50
PACE_PER_S = 100
COLUMNS = {
    "queue": 20.0,
    "data": 100.0,
    "last_power_w": 0.5,
    "last_frequency_hz": 2e9,
    "waited_s": 30.0,
    "data_age_s": 5.0,
    "model_age_s": 50.0,
    "model_accuracy": 1.0,
    "last_gain": 1e4,
}


def write_policy(size: int, path: Path) -> None:
    """Write an export file for the paper's scenario with ``size`` devices."""
    import equinox as eqx
    import jax

    from tandem.feel import Environment, build_system
    from tandem.policy.features import extract_features
    from tandem.policy.networks import DeepSetActorCritic
    from tandem.policy.neural_policy import ObservationNormaliser
    from tandem.runs.front import Front, PolicyRecord
    from tandem.runs.run import SavedPolicies
    from tandem.scenario import load_scenario
    from tandem.serving import write_policy_file
    from tandem.serving.export import export_policies

    scenario = load_scenario("paper", {"fleet.size": size})
    system = build_system(scenario)
    environment, key = Environment(system), jax.random.key(0)
    network = DeepSetActorCritic.init(environment, key, conditioned=True)
    normaliser = ObservationNormaliser.init(extract_features(environment, environment.reset(key)))
    front = ((0.8, 3.0, 10.0), (0.7, 2.0, 8.0))
    records = tuple(
        PolicyRecord(
            index=n,
            objectives=objectives,
            half_width=(None,) * 3,
            rewards=(objectives[0], -objectives[1], -objectives[2]),
            violation_rate=0.0,
            violation_rates=(0.0,) * 8,
            discarded_share=None,
            preference=(1 - n / 2, n / 4, n / 4),
            stage="",
            improved=None,
            network=0,
        )
        for n, objectives in enumerate(front)
    )
    saved = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, SavedPolicies(network, normaliser))
    file = export_policies(
        scenario,
        system,
        saved,
        Front(records, (0.0, 8.0, 50.0), 0.01),
        sampling="deterministic",
        largest_fleet=None,
        origin={"algorithm": "none"},
        source="benchmark",
    )
    write_policy_file(path, file)


class Body:
    """Report bodies that differ in the number of the round only."""

    def __init__(self, size: int) -> None:
        rng = np.random.default_rng(0)
        columns: dict[str, Any] = {"devices": [f"device-{n}" for n in range(size)]}
        for name, largest in COLUMNS.items():
            columns[name] = np.round(rng.random(size) * largest, 4).tolist()
        columns["last_train"] = (rng.random(size) < 0.2).tolist()
        columns["last_duration_s"] = 2.5
        self._rest = json.dumps(columns)[1:].encode()

    def request(self, number: int) -> bytes:
        body = b'{"round":%d,%s' % (number, self._rest)
        return (
            b"POST /v1/decisions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )


class Connection(asyncio.Protocol):
    """A keep-alive connection with one request at a time. It does as little as possible: it shares the cores."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._left: int | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def ask(self, request: bytes) -> int:
        self._answer = asyncio.get_running_loop().create_future()
        self._parts, self._left = [], None
        self._transport.write(request)
        status: int = await self._answer
        return status

    def data_received(self, data: bytes) -> None:
        if self._left is None:
            head = b"".join([*self._parts, data])
            end = head.find(b"\r\n\r\n")
            if end < 0:
                self._parts.append(data)
                return
            lower = head[:end].lower()
            start = lower.index(b"content-length:") + 15
            length = int(lower[start:].split(b"\r\n", 1)[0])
            self._status = int(head[9:12])
            self._left = length - (len(head) - end - 4)
        else:
            self._left -= len(data)
        if self._left <= 0:
            self._answer.set_result(self._status)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(error or ConnectionError("closed"))

    def close(self) -> None:
        self._transport.close()


async def connect(port: int, count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(count)]


def describe(latencies: list[float], duration_s: float) -> dict[str, float]:
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    return {
        "decisions_per_s": round(len(latencies) / duration_s, 1),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "max_ms": round(max(latencies) * 1e3, 2),
    }


async def measure_saturated(port: int, body: Body, clients: int, seconds: float, first: int) -> dict[str, float]:
    """Every client asks again as soon as it has its answer."""
    connections = await connect(port, clients)
    latencies: list[float] = []
    number = first
    started = time.perf_counter()

    async def ask_repeatedly(connection: Connection) -> None:
        nonlocal number
        while time.perf_counter() < started + seconds:
            mine, number = number, number + 1
            request = body.request(mine)
            sent = time.perf_counter()
            status = await connection.ask(request)
            latencies.append(time.perf_counter() - sent)
            if status != 200:
                raise RuntimeError(f"status {status}")

    await asyncio.gather(*map(ask_repeatedly, connections))
    duration = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return describe(latencies, duration)


async def measure_paced(port: int, body: Body, seconds: float, first: int) -> dict[str, float]:
    """Send requests at fixed times, whatever the server does."""
    connections = await connect(port, CLIENTS)
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    latencies: list[float] = []
    started = time.perf_counter()

    async def ask_at(due: float, number: int) -> None:
        connection = await free.get()
        status = await connection.ask(body.request(number))
        latencies.append(time.perf_counter() - due)
        free.put_nowait(connection)
        if status != 200:
            raise RuntimeError(f"status {status}")

    tasks = []
    for n in range(int(seconds * PACE_PER_S)):
        due = started + n / PACE_PER_S
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(ask_at(due, first + n)))
    await asyncio.gather(*tasks)
    duration = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return describe(latencies, duration)


@contextlib.contextmanager
def serve(policy: Path, database: str) -> Iterator[int]:
    """Run a server and yield its port."""
    command = [sys.executable, "-c", "from tandem.cli.main import main; main()", "serve", str(policy), "--port", "0"]
    command += ["--database", database, "--fleet", uuid.uuid4().hex, "--max-rate", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if " at http" not in line:
            raise RuntimeError(f"the server did not start: {line}")
        yield int(line.split(" at http://", 1)[1].split(",", 1)[0].rsplit(":", 1)[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def measure(size: int, database: str | None, folder: Path, seconds: float) -> dict[str, Any]:
    """Measure one size of fleet."""
    policy = folder / f"policy-{size}.safetensors"
    if not policy.exists():
        write_policy(size, policy)
    body = Body(size)
    result: dict[str, Any] = {"devices": size, "request_bytes": len(body.request(0))}
    with serve(policy, database or str(folder / f"{uuid.uuid4().hex}.db")) as port:
        asyncio.run(measure_saturated(port, body, 1, min(1.0, seconds), 0))  # warm
        result["one_client"] = asyncio.run(measure_saturated(port, body, 1, seconds, 1_000_000))
        if size <= 1000:
            result["saturated"] = asyncio.run(measure_saturated(port, body, CLIENTS, seconds, 2_000_000))
            result["paced"] = asyncio.run(measure_paced(port, body, 2 * seconds, 3_000_000))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", help="URL of a PostgreSQL database; default: SQLite files")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 30, 1000, 100_000])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, help="where temporary files are written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for size in arguments.sizes:
            found = measure(size, arguments.database, Path(folder), arguments.seconds)
            found["load_1min"] = round(os.getloadavg()[0], 1)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
