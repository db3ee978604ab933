"""Devices as real processes: kills, full disks, garbage on their sockets, and bad options."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from device_processes import COMMAND, environment, start
from linear_model import LinearModel

from tandem.device import LiveReport

COUNT = 16  # requests


def test_nothing_accepted_is_lost_when_the_device_is_killed(tmp_path: Path) -> None:
    """Requests and feedback arrive while the device is killed again and again; they are repeated until accepted."""
    rng = np.random.default_rng(0)
    inputs = rng.random((COUNT, 4)).astype(np.float32)
    url: list[str] = []
    accepted: set[int] = set()
    labelled: set[int] = set()
    done = threading.Event()

    def send() -> None:
        for number, values in enumerate(inputs):
            for path, body, kept in (
                ("/predict", {"id": f"r{number}", "input": values.tolist()}, accepted),
                ("/feedback", {"id": f"r{number}", "label": number % 3}, labelled),
            ):
                while not done.is_set():
                    with contextlib.suppress(httpx.HTTPError, IndexError):
                        if httpx.post(url[-1] + path, json=body, timeout=5).status_code == 200:
                            kept.add(number)
                            break
                    time.sleep(0.02)

    sender = threading.Thread(target=send)
    weights, aggregated = LinearModel().get_weights(), 0
    pending: LiveReport | None = None
    rounds = -1
    kills = 0
    try:
        while not done.is_set():
            with start(tmp_path) as device:
                url.append(device.url)
                if not sender.is_alive() and not labelled:
                    sender.start()
                time.sleep(0.2)
                rounds += 1
                # The server has aggregated the last update, whatever happened to the device since.
                acknowledged = -1 if pending is None else pending.round
                train = kills % 2 == 0
                report = device.instruct(round=rounds, train=train, weights=weights, acknowledged=acknowledged)
                if report.trained:
                    aggregated += report.samples
                    pending, weights = report, report.weights
                time.sleep(float(rng.random()) * 0.2)
                finished = not sender.is_alive()
                device.kill()
                kills += 1
                if finished and kills >= 4:
                    break
                assert kills < 40
        with start(tmp_path) as device:
            rounds += 1
            last = device.instruct(round=rounds, train=False, weights=weights, acknowledged=pending.round)
            status = httpx.get(f"{device.url}/status").json()
            for number in accepted:
                assert httpx.get(f"{device.url}/predictions/r{number}").json()["status"] == "served"
    finally:
        done.set()
        sender.join()
    assert accepted == labelled == set(range(COUNT))
    assert aggregated + last.data == COUNT  # every sample is in one update that was aggregated, or still there
    assert status["samples"] == last.data


def test_full_disk_refuses_new_requests_and_keeps_the_old_ones(tmp_path: Path) -> None:
    with start(tmp_path) as device:
        kept = httpx.post(f"{device.url}/predict", json={"id": "kept", "input": [1, 0, 0, 0]}).json()
    with start(tmp_path, "linear_model:build", "--wait", "0.5", limit=200_000) as device:
        body = {"inputs": [[0.5, 0, 0, 0]] * 500}
        statuses = [httpx.post(f"{device.url}/predict", json=body, timeout=20).status_code for _ in range(12)]
        assert statuses[0] == 200
        assert 507 in statuses  # 202: it is stored, but its answer is not, until there is room
        assert set(statuses) <= {200, 202, 507}
        assert httpx.get(f"{device.url}/predictions/kept").json() == kept
        assert httpx.get(f"{device.url}/healthz").status_code == 200
    with start(tmp_path) as device:  # there is room again
        assert httpx.post(f"{device.url}/predict", json={"input": [1, 0, 0, 0]}).status_code == 200
        assert httpx.get(f"{device.url}/predictions/kept").json() == kept


def test_garbage_on_its_sockets_does_not_stop_a_device(tmp_path: Path) -> None:
    with start(tmp_path) as device:
        host, port = device.url.removeprefix("http://").split(":")
        for garbage in (b"", b"\0" * 5000, b"GET / HTTP/9.9\r\n\r\n", os.urandom(20_000)):
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5) as web:
                web.sendall(garbage)
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as control:
                control.connect(str(device.address))
                control.sendall(garbage)
        assert device.instruct(round=0).round == 0
        assert httpx.post(f"{device.url}/predict", json={"input": [1, 0, 0, 0]}).status_code == 200


def test_interrupt_ends_a_device_in_order(tmp_path: Path) -> None:
    with start(tmp_path) as device:
        device.process.send_signal(signal.SIGTERM)
        assert device.process.wait(20) == 0


@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        ("linear_model", (), "package.module:factory"),
        ("nowhere:build", (), "there is no module nowhere"),
        ("linear_model:nothing", (), "has no function nothing"),
        ("linear_model:raises", (), "RuntimeError: no weights here"),
        ("linear_model:incomplete", (), "has no input_shape"),
        ("linear_model:WrongShape", (), "predict returned the shape"),
        ("linear_model:build", ("--host", "0.0.0.0"), "--token-file"),
        ("linear_model:build", ("--energy", "rope"), "--energy rope"),
        ("linear_model:build", ("--hardware", "rope"), "--hardware rope"),
        ("linear_model:build", ("--store", "/dev/null/x"), "--store"),
    ],
)
def test_mistake_is_one_sentence(tmp_path: Path, factory: str, options: tuple[str, ...], said: str) -> None:
    command = [*COMMAND, factory, "--store", str(tmp_path / "store"), "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_device_does_not_import_jax() -> None:
    code = "import sys, tandem.device, tandem.device.http, tandem.cli.commands.device; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.strip() == "False"
