"""Real processes over Flower: a run agrees with the simulation, and survives what happens to processes."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import pytest
from small_fleet import DATA_MAX, FLEET, SEED, SIZE

from tandem.federated.fleet.api import create_run
from tandem.federated.fleet.client import sample_counts
from tandem.federated.fleet.client_store import load_snapshot, snapshot_path
from tandem.federated.fleet.config import FleetConfig
from tandem.federated.fleet.run_dir import CLIENT_STORE, PROGRESS, RESULT
from tandem.federated.fleet.spec import ClientContext, build_spec
from tandem.feel import System
from tandem.pareto import pick
from tandem.policy import HEURISTICS
from tandem.policy.base import Policy
from tandem.runs import Run
from tandem.runs.front import selectable_points
from tandem.runs.simulation import simulate_histories
from tandem.runs.trace import trace_table, write_trace
from tandem.scenario import load_scenario

pytest.importorskip("flwr")
pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

ROUNDS = 6


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def fleet_command(*options: str) -> list[str]:
    return [sys.executable, "-m", "tandem", "fleet", "run", *options, "--json"]


def run_command(folder: Path, engine: str, *more: str) -> list[str]:
    options = ["--task", "digits", "--seed", str(SEED), "--rounds", str(ROUNDS), "--set", f"fleet.size={SIZE}"]
    options += ["--set", f"limits.data_max={DATA_MAX}"]
    return fleet_command("paper", *options, "--engine", engine, "--out", str(folder), *more)


def remaining_processes(folder: Path) -> list[str]:
    """Return the processes that have the run's folder, or a launcher's temporary folder, in their arguments."""
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if str(folder) in line or "tandem-fleet-" in line]


def tagged_processes(tag: str) -> set[int]:
    """Return the processes that have the tag in their environment."""
    pids = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if tag.encode() in (folder / "environ").read_bytes():
                pids.add(int(folder.name))
    return pids


def arguments(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.1)


def check_agrees_with_simulation(folder: Path, system: System, policy: Policy | None = None) -> None:
    names = [f"device-{n}" for n in range(SIZE)]
    ((states, outcome),) = simulate_histories(system, policy or HEURISTICS["threshold"](), [SEED])
    simulated = folder.parent / "simulated.csv"
    write_trace(simulated, [trace_table(SEED, names, states, outcome)])
    rows, expected_rows = read_rows(folder / "trace.csv"), read_rows(simulated)[: SIZE * ROUNDS]
    assert sum(row["trained"] == "1" for row in rows) >= (3 if policy is None else 1)
    for row, expected in zip(rows, expected_rows, strict=True):
        for name in ("round", "device", "train", "trained", "violated"):
            assert row[name] == expected[name]
        for name in ("queue", "data", "power_w", "frequency_hz", "duration_s", "energy_j", "accuracy"):
            assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize(
    ("engine", "node"), [("simulation", "flower"), ("deployment", "flower"), ("deployment", "tandem")]
)
def test_run_over_flower_agrees_with_the_simulation(engine: str, node: str, tmp_path: Path, system: System) -> None:
    folder = tmp_path / "run"
    command = run_command(folder, engine, "--node", node)
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["failures"] == []
    assert document["reports"] == SIZE * ROUNDS
    check_agrees_with_simulation(folder, system)
    assert remaining_processes(folder) == []


def test_server_decides_by_the_scheduler_for_a_trained_run(
    tmp_path: Path, system: System, conditioned_run: Run
) -> None:
    folder = tmp_path / "run"
    policy = ["--policy", str(conditioned_run.folder), "--prefer", "accuracy=0.5,latency=0.2,energy=0.3"]
    done = subprocess.run(run_command(folder, "simulation", *policy), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failures"] == []
    points = selectable_points(conditioned_run.front, conditioned_run.config.tolerance)
    chosen = conditioned_run.policy(pick(points, (0.5, 0.2, 0.3)).index)
    check_agrees_with_simulation(folder, system, chosen)
    assert remaining_processes(folder) == []


def test_run_resumes_after_its_server_was_killed(tmp_path: Path, system: System) -> None:
    """The server's process is killed during the run, which ends Flower's run; devices resume from their files too."""
    folder = tmp_path / "run"
    tag = {"TANDEM_TEST_FOLDER": str(tmp_path)}  # tells this run's processes from those of others
    process = subprocess.Popen(
        run_command(folder, "deployment", "--node", "tandem"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **tag},
    )
    wait_until(lambda: len(list((folder / "rounds").glob("0*"))) >= 2, 200)
    (server,) = {pid for pid in tagged_processes(str(tmp_path)) if "flwr-serverapp" in arguments(pid)}
    os.kill(server, signal.SIGKILL)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (2, b""), err
    assert b"--resume" in err
    assert not (folder / RESULT).exists()
    done = subprocess.run(fleet_command("--resume", str(folder)), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reports"] == SIZE * ROUNDS
    check_agrees_with_simulation(folder, system)
    assert remaining_processes(folder) == []


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_the_command_ends_all_processes(tmp_path: Path, sign: signal.Signals, code: int) -> None:
    folder = tmp_path / "run"

    def restore_sigint() -> None:  # a shell may ignore Ctrl-C for processes in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    engine = "deployment" if sign == signal.SIGINT else "simulation"
    process = subprocess.Popen(
        run_command(folder, engine, "--node", "tandem", "--rounds", "500"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=restore_sigint,
    )
    wait_until((folder / PROGRESS).exists, 120)
    os.kill(process.pid, sign)
    out, _ = process.communicate(timeout=90)
    assert (process.returncode, out) == (code, b"")
    assert remaining_processes(folder) == []


def test_killing_the_command_ends_all_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        run_command(folder, "deployment", "--rounds", "500"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until((folder / "flower.log").exists, 120)
    wait_until(lambda: len(remaining_processes(folder)) >= 4, 120)  # it is starting devices and nodes
    process.kill()
    process.wait()
    wait_until(lambda: not remaining_processes(folder), 120)
    assert remaining_processes(folder) == []


def answer_with_noise(address: Path) -> Callable[[], None]:
    """Listen in place of a device and answer every instruction with noise; returns a function that stops it."""
    address.unlink(missing_ok=True)
    listener = Listener(str(address), family="AF_UNIX")

    def answer() -> None:
        while True:
            try:
                with listener.accept() as connection:
                    connection.recv_bytes()
                    connection.send_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00not json")
            except OSError:
                return

    threading.Thread(target=answer, daemon=True).start()
    return listener.close


def test_deployment_survives_faults_of_its_devices(tmp_path: Path) -> None:
    """Device 0 is killed and restarted, 1 hangs and later loses its node, 2 sends noise for a while, 3 joins late."""
    from tandem.federated.flower.launcher import follow_run, local_superlink

    scenario = load_scenario("paper", {**FLEET, "rounds": 14})
    run = create_run(scenario, tmp_path, FleetConfig(seed=SEED, engine="deployment", deadline_s=15, wait_s=45))
    with local_superlink(run.folder, False, run) as deployment:
        devices = {n: deployment.start_device(n) for n in range(3)}
        nodes = {n: deployment.start_node(n) for n in range(3)}
        stop_noise: list[Callable[[], None]] = []

        def cause_fault(line: dict[str, Any]) -> None:
            done = line["done"]
            if done == 1:
                os.killpg(devices[0].pid, signal.SIGKILL)
                deployment.start_device(3)
                deployment.start_node(3)
            if done == 2:
                devices[0] = deployment.start_device(0)
                os.killpg(devices[1].pid, signal.SIGSTOP)
            if done == 3:
                os.killpg(devices[1].pid, signal.SIGCONT)
                os.killpg(devices[2].pid, signal.SIGKILL)
                stop_noise.append(answer_with_noise(deployment.address(2)))
            if done == 5:
                stop_noise.pop()()
                devices[2] = deployment.start_device(2)
            if done == 7:
                os.killpg(nodes[1].pid, signal.SIGKILL)
            if done == 8:
                deployment.start_node(1)  # another node number, with the same device behind it

        document = follow_run(run, deployment.submit(simulation=False), cause_fault)
    assert document["rounds"] == 14
    failed = {(failure["round"], failure["device"]) for failure in document["failures"]}
    assert {(1, "device-0"), (2, "device-1"), (4, "device-2"), (0, "device-3"), (7, "device-1")} <= failed
    assert not {one for one in failed if one[0] >= 12}  # all are back
    spec = build_spec(scenario, SEED)
    trained = [row for row in read_rows(tmp_path / "trace.csv") if row["trained"] == "1"]
    for n in range(SIZE):
        path = snapshot_path(tmp_path / CLIENT_STORE, run.config.run, n)
        snapshot = load_snapshot(path, ClientContext.init(spec, n))
        assert snapshot is not None
        counts = sample_counts(snapshot)
        assert counts["samples"] == counts["discarded"] + counts["trained"] + counts["buffered"]
        assert counts["requests"] == counts["served"] + counts["unkept_requests"] + counts["waiting"]
        assert (counts["lost"], snapshot.round) == (0, 13)
        own = [float(row["data"]) for row in trained if row["device"] == f"device-{n}" and row["round"] != "13"]
        assert counts["trained"] == pytest.approx(sum(own), abs=2 * len(own) + 1)
