"""Measure decisions over HTTP with durable storage: a real ``tandem serve`` process and clients in this process.

    python benchmarks/serving_http.py [RUN] [--database URL] [--sizes 10 30 1000 100000] [--seconds 5]

RUN is as in benchmarks/serving.py, and so are the fleets and the states that are reported.

- saturated: 50 clients, each of which sends its next request when it has its answer. Latency is mostly queueing.
- paced: requests at fixed times, 100 in a second, over 50 connections. Latency counts from the time at which a request
  was due, so that a stall of the server delays all requests that were due during it.
- one client: it sends its next request when it has its answer.

- network alone: 50 clients as in ``saturated`` that ask ``benchmarks/onnx_service.py`` in the same run: onnxruntime
  behind FastAPI, without checks, shield, explanation and storage.
- while tuning (--tune): as ``paced``, while 'tandem tune' trains on the rounds recorded so far.

Each server starts with an empty database: a SQLite file in a temporary folder (of --folder, which decides on the disk),
or the PostgreSQL database of --database, in which every measurement has a fleet of its own. Server, clients and
database share the cores. ``processor_ms`` is the server's time of the processor for a decision, which depends less on
other jobs than the other figures do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tandem
from serving import reached_states, report_of, scheduler_for
from tandem.serving import write_policy_file
from tandem.serving.client import encode_report
from tandem.serving.onnx_export import write_onnx

CLIENTS = 50
PACE_PER_S = 100
STATES = 5


class Body:
    """Report bodies of a fleet, which differ in the number of the round and in the state."""

    def __init__(self, reports: list[Any]) -> None:
        self._rests = []
        for report in reports:
            document = json.loads(encode_report(report))
            del document["round"]
            self._rests.append(json.dumps(document)[1:].encode())

    def request(self, number: int) -> bytes:
        body = b'{"round":%d,%s' % (number, self._rests[number % len(self._rests)])
        return (
            b"POST /v1/decisions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )


def prepare(run: Any, size: int, folder: Path) -> tuple[Path, Body]:
    """Write an export file for a fleet of ``size`` devices, and return it with reports of states that it reaches."""
    scheduler, system, policy = scheduler_for(run, size)
    path = folder / f"policy-{size}.safetensors"
    write_policy_file(path, scheduler.policy_file)
    states = reached_states(system, policy, STATES)
    return path, Body([report_of(scheduler.fleet.names, system, state) for state in states])


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
        "decisions": len(latencies),
        "decisions_per_s": round(len(latencies) / duration_s, 1),
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
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
def serve(policy: Path, database: str, fleet: str) -> Iterator[tuple[int, int]]:
    """Run a server and yield its port and its process id."""
    command = [sys.executable, "-c", "from tandem.cli.main import main; main()", "serve", str(policy), "--port", "0"]
    command += ["--database", database, "--fleet", fleet, "--max-rate", "0", "--no-tune"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if " at http" not in line:
            raise RuntimeError(f"the server did not start: {line}")
        yield int(line.split(" at http://", 1)[1].split(",", 1)[0].rsplit(":", 1)[1]), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def processor_s(pid: int) -> float:
    """Return the time of the processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serve_network(run: Any, size: int, folder: Path) -> Iterator[int]:
    """Run the service of the network alone, and yield its port."""
    scheduler, _, _ = scheduler_for(run, size)
    model, constants = folder / f"{size}.onnx", folder / f"{size}.npy"
    write_onnx(model, scheduler.policy_file, scheduler.policy.network)
    np.save(constants, scheduler.policy_file.arrays["observation.constants"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("onnx_service.py")
    process = subprocess.Popen([sys.executable, script, model, constants, str(port)])
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def tuning(database: str, fleet: str) -> Iterator[None]:
    """Tune in the background; the block begins when the training has begun."""
    command = [sys.executable, "-m", "tandem", "tune", "--once", "--dry-run", "--budget", "100000000"]
    command += ["--database", database, "--fleet", fleet]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("training:"):
                break
        else:
            raise RuntimeError("the tuner did not train")
        yield
        if process.poll() is not None:
            raise RuntimeError("the tuner ended during the measurement")
    finally:
        process.kill()
        process.wait(60)


def measure(
    run: Any, size: int, database: str | None, folder: Path, seconds: float, tune: bool = False
) -> dict[str, Any]:
    """Measure one size of fleet."""
    policy, body = prepare(run, size, folder)
    result: dict[str, Any] = {"devices": size, "request_bytes": len(body.request(0))}
    fleet, place = uuid.uuid4().hex, database or str(folder / f"{uuid.uuid4().hex}.db")
    with serve(policy, place, fleet) as (port, pid):
        asyncio.run(measure_saturated(port, body, 1, min(1.0, seconds), 0))  # warm
        kinds: dict[str, Any] = {"one_client": lambda: measure_saturated(port, body, 1, seconds, 1_000_000)}
        if size <= 1000:
            kinds["saturated"] = lambda: measure_saturated(port, body, CLIENTS, seconds, 2_000_000)
            kinds["paced"] = lambda: measure_paced(port, body, 2 * seconds, 3_000_000)
        for kind, measurement in kinds.items():
            before = processor_s(pid)
            found = asyncio.run(measurement())
            found["processor_ms"] = round((processor_s(pid) - before) * 1e3 / found.pop("decisions"), 2)
            result[kind] = found
        if tune and size <= 1000:
            with tuning(place, fleet):
                result["while_tuning"] = asyncio.run(measure_paced(port, body, 2 * seconds, 4_000_000))
            ratio = result["while_tuning"]["p99_ms"] / result["paced"]["p99_ms"]
            result["while_tuning"]["p99_to_paced"] = round(ratio, 2)
    if size <= 1000:
        with serve_network(run, size, folder) as port:
            asyncio.run(measure_saturated(port, body, 1, min(1.0, seconds), 0))  # warm
            result["network_alone"] = asyncio.run(measure_saturated(port, body, CLIENTS, seconds, 0))
        ratio = result["saturated"]["decisions_per_s"] / result["network_alone"]["decisions_per_s"]
        result["saturated"]["to_network_alone"] = round(ratio, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="folder of a run; default: the preset quick is trained")
    parser.add_argument("--database", help="URL of a PostgreSQL database; default: SQLite files")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 30, 1000, 100_000])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tune", action="store_true", help="measure while the policy is tuned, too")
    parser.add_argument("--folder", type=Path, help="where temporary files are written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.run is None:
            run = tandem.train("paper", preset="quick", out=Path(folder) / "run")
        else:
            run = tandem.open_run(arguments.run)
        for size in arguments.sizes:
            found = measure(run, size, arguments.database, Path(folder), arguments.seconds, arguments.tune)
            found["load_1min"] = round(os.getloadavg()[0], 1)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
