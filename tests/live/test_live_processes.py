"""Live devices, the service and the server as real processes, while requests arrive and processes are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from device_processes import environment, start
from servers import build_policy_file

from tandem.serving import write_policy_file

TANDEM = [sys.executable, "-c", "from tandem.cli.main import main; main()"]
SIZE = 3


@contextlib.contextmanager
def run(*arguments: object, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [*TANDEM, *map(str, arguments)]
    with (folder / f"{arguments[0]}-{time.monotonic_ns()}.err").open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, env=environment()
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.mark.slow
def test_live_fleet_serves_trains_and_outlives_kills(tmp_path: Path) -> None:
    """Requests arrive all the time; a device, the service and the server are killed and started again."""
    write_policy_file(tmp_path / "policy.safetensors", build_policy_file())
    files = tmp_path / "files"
    files.mkdir()
    for number in range(6):
        np.save(files / f"{number}.npy", np.eye(4, dtype=np.float32)[number % 3])
    (files / "labels.csv").write_text("file,label\n" + "".join(f"{n}.npy,{n % 3}\n" for n in range(6)))
    folders = [tmp_path / f"device-{n}" for n in range(SIZE)]
    for folder in folders:
        folder.mkdir()
    port = 20_000 + os.getpid() % 20_000
    serve = ["serve", "policy.safetensors", "--port", port, "--no-tune"]
    live = ["fleet", "live", *(folder / "control" for folder in folders), "--model", "linear_model:build"]
    live += ["--server", f"http://127.0.0.1:{port}", "--out", "state", "--deadline", "3"]
    live += ["--set", "limits.idle_round_s=0.3", "--set", "limits.round_floor_s=0"]

    def rounds(timeout_s: float = 60, more_than: int = 0) -> int:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError, KeyError):
                found = httpx.get(f"http://127.0.0.1:{port}/v1/rounds").json()["next_round"]
                if found > more_than:
                    return found
            time.sleep(0.2)
        raise AssertionError("no more rounds were decided")

    with contextlib.ExitStack() as stack:
        devices = [
            stack.enter_context(start(folder, "linear_model:build", "--number", str(n)))
            for n, folder in enumerate(folders)
        ]
        with run(*serve, folder=tmp_path) as service:
            assert " at http" in service.stdout.readline()
            load = ["fleet", "load", *(device.url for device in devices), "--folder", files, "--rate", 10]
            sending = stack.enter_context(
                run(*load, "--duration", 25, "--timeout", 10, "--feedback-delay", 0.2, "--json", folder=tmp_path)
            )
            with run(*live, folder=tmp_path):
                number = rounds(more_than=5)
                devices[1].kill()
                number = rounds(more_than=number + 2)  # the others go on
            with run(*live, folder=tmp_path) as again:  # the server was killed
                number = rounds(more_than=number + 2)
                service.kill()
                service.wait()
                with run(*serve, folder=tmp_path):
                    rounds(more_than=number + 2)
                    found = json.loads(sending.communicate(timeout=120)[0])
                    again.send_signal(signal.SIGINT)
                    assert again.wait(30) == 130
                    document = httpx.get(f"http://127.0.0.1:{port}/v1/rounds?limit=1000").json()
        statuses = [httpx.get(f"{devices[n].url}/status").json() for n in (0, 2)]
    for n, status in zip((0, 2), statuses, strict=True):
        seen = found["devices"][n]
        assert seen["answered"] == seen["requests"] == status["totals"]["served"] > 100
        assert seen["labelled"] == seen["requests"]
        assert status["model_round"] >= 0  # it has trained, and adopted the average
        assert seen["accuracy"] > 0.6
    recorded = [each["outcome"] for each in document["rounds"] if each["outcome"] is not None]
    assert len(recorded) > 10
    assert any("device-1" in outcome["late"] for outcome in recorded)
