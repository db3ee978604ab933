"""Live rounds over Flower, all processes: SuperLink, nodes, service, devices and requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from device_processes import environment
from servers import build_policy_file

from tandem.serving import write_policy_file

pytest.importorskip("flwr")
pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

DEMO = [sys.executable, "-m", "tandem", "fleet", "demo", "policy.safetensors", "--devices", "2", "--rate", "5"]


def remaining_processes() -> list[str]:
    """Return the processes of a demo that still run."""
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if "tandem-fleet-" in line or "tandem node" in line or "tandem device" in line]


def test_demo_serves_trains_and_leaves_no_process(tmp_path: Path) -> None:
    write_policy_file(tmp_path / "policy.safetensors", build_policy_file())
    command = [*DEMO, "--duration", "25", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, env=environment())
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["rounds"] >= 3
    assert summary["failures"] == 0
    clients = summary["clients"]
    assert clients["requests"] > 100
    assert clients["answered"] >= clients["requests"] - 20  # the last ones are asked when the devices end
    assert clients["refused"] == clients["expired"] == clients["rejected"] == 0
    assert clients["accuracy"] > 0.7
    lines = [json.loads(line) for line in (tmp_path / "fleets/demo/progress.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line.get("round") is not None] == list(range(summary["rounds"]))
    assert not remaining_processes()


def test_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    write_policy_file(tmp_path / "policy.safetensors", build_policy_file())
    with subprocess.Popen(
        DEMO, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    ) as demo:
        until = time.monotonic() + 200
        while not (tmp_path / "fleets/demo/progress.jsonl").exists():
            assert time.monotonic() < until
            assert demo.poll() is None
            time.sleep(0.2)
        assert remaining_processes()
        os.kill(demo.pid, signal.SIGKILL)
    until = time.monotonic() + 60
    while remaining_processes():
        assert time.monotonic() < until, remaining_processes()
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fleet", "live"], "name the sockets of the devices"),
        (["fleet", "live", "--superlink", "local"], "--devices: is missing"),
        (["fleet", "live", "a.sock", "--superlink", "local"], "name the sockets of the devices"),
        (["node", "127.0.0.1:1", "--number", "0", "--address", "a", "--node-key", "nothing"], "--node-key nothing"),
        (
            ["node", "127.0.0.1:1", "--number", "0", "--address", "a", "--root-certificates", "no"],
            "there is no such file",
        ),
    ],
)
def test_mistake_is_one_sentence(tmp_path: Path, arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "tandem", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
