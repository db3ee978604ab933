"""The load: what clients see agrees with what devices count, and requests of a task are those of the simulator."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from device_processes import environment, start

LOAD = [sys.executable, "-c", "from tandem.cli.main import main; main()", "fleet", "load"]


def write_folder(folder: Path) -> Path:
    """Write inputs of three classes: the class is the place of the largest feature."""
    folder.mkdir()
    lines = ["file,label"]
    for number in range(9):
        np.save(folder / f"{number}.npy", np.eye(4, dtype=np.float32)[number % 3])
        lines.append(f"{number}.npy,{number % 3}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOAD, *arguments], capture_output=True, text=True, env=environment(), cwd=folder, timeout=120
    )


def test_clients_see_what_devices_count(tmp_path: Path) -> None:
    files = write_folder(tmp_path / "files")
    with start(tmp_path) as device:
        options = ["--folder", str(files), "--rate", "20", "--duration", "2", "--feedback-delay", "0.1", "--json"]
        done = run(tmp_path, device.url, *options, "--out", "requests.csv")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        totals = httpx.get(f"{device.url}/status").json()["totals"]
        report = device.instruct(round=0)
    assert found["requests"] == found["answered"] == totals["served"] == report.served > 20
    assert found["labelled"] == totals["labels"] == report.labelled == found["requests"]
    assert found["accuracy"] == pytest.approx(report.correct / report.labelled)
    with (tmp_path / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == found["requests"]
    assert found["latency_s"] == pytest.approx(np.mean([float(row["latency_s"]) for row in rows]), abs=1e-5)
    due = [float(row["due_s"]) for row in rows]
    assert due == sorted(due)
    assert 0 < due[0] < due[-1] < 2


def test_device_that_is_not_there_and_wrong_inputs_are_counted(tmp_path: Path) -> None:
    files = write_folder(tmp_path / "files")
    np.save(files / "0.npy", np.zeros(5, np.float32))
    for number in range(1, 9):
        (files / f"{number}.npy").write_bytes((files / "0.npy").read_bytes())
    with start(tmp_path) as device:
        options = ["--folder", str(files), "--rate", "10", "--duration", "0.5", "--json"]
        found = json.loads(run(tmp_path, device.url, "http://127.0.0.1:9", *options).stdout)
    assert [each["refused"] > 0 for each in found["devices"]] == [True, False]
    assert [each["without_answer"] > 0 for each in found["devices"]] == [False, True]
    assert found["accuracy"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--task", "digits"], "is not an address"),
        (["http://127.0.0.1:9"], "name one of them"),
        (["http://127.0.0.1:9", "--folder", "files", "--task", "digits"], "name one of them"),
        (["http://127.0.0.1:9", "--folder", "nothing"], "labels.csv cannot be read"),
        (["http://127.0.0.1:9", "--folder", "bad"], "needs the columns file and label"),
        (["http://127.0.0.1:9", "--folder", "files", "--out", "no/where.csv"], "--out no/where.csv"),
    ],
)
def test_mistake_is_one_sentence(tmp_path: Path, arguments: list[str], said: str) -> None:
    write_folder(tmp_path / "files")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/labels.csv").write_text("name,class\na,1\n")
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("cache")
def test_requests_of_a_task_are_those_of_the_simulator() -> None:
    import jax
    import jax.numpy as jnp

    from tandem.federated import init_device_drift, sample_requests
    from tandem.federated.fleet.spec import build_spec
    from tandem.federated.task_requests import TaskRequests
    from tandem.scenario import load_scenario

    scenario = load_scenario("paper", {"accuracy.task": "digits", "fleet.size": 2})
    spec = build_spec(scenario, 3)
    requests = TaskRequests(scenario.accuracy.task, 2, 3)
    drift = init_device_drift(spec.drift_key, jnp.asarray(1), 10)
    sample = jax.jit(sample_requests)
    expected = sample(spec.task.pool, spec.task.drift, drift, jnp.arange(5), jnp.asarray(40.0))
    for number in range(5):
        pixels, label = requests.draw(1, number, 40.0)
        assert label == int(expected.labels[number])
        np.testing.assert_allclose(pixels * 255, expected.images[number], atol=1e-3)
