"""Real processes over Flower: the run agrees with the simulation, and survives what happens to processes."""

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
from small_fleet import FLEET, SEED, SIZE

from tandem.federated.fleet.client import sample_counts
from tandem.federated.fleet.client_round import ClientContext
from tandem.federated.fleet.client_store import load, path_of
from tandem.federated.fleet.config import DEVICES, FleetConfig, write_config
from tandem.federated.fleet.spec import build_spec
from tandem.feel import System
from tandem.policy import HEURISTICS
from tandem.runs.simulation import simulate_histories
from tandem.runs.trace import trace_table, write_trace
from tandem.scenario import load_scenario

pytest.importorskip("flwr")
pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

ROUNDS = 6


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def command(folder: Path, engine: str, *more: str) -> list[str]:
    said = ["--task", "digits", "--seed", str(SEED), "--rounds", str(ROUNDS), "--engine", engine, "--out", str(folder)]
    return [
        sys.executable,
        "-m",
        "tandem",
        "fleet",
        "run",
        "paper",
        *said,
        "--set",
        f"fleet.size={SIZE}",
        "--json",
        *more,
    ]


def left_over(folder: Path) -> list[str]:
    """Processes that still know of this run."""
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if str(folder) in line or "tandem-fleet-" in line]


def started_with(mark: str) -> set[int]:
    """Processes that have the mark in their environment."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (place / "environ").read_bytes():
                found.add(int(place.name))
    return found


def arguments(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def check_simulated(folder: Path, system: System) -> None:
    """The run's trace is that of the simulator."""
    names = [f"device-{n}" for n in range(SIZE)]
    ((states, outcome),) = simulate_histories(system, HEURISTICS["threshold"](), [SEED])
    simulated = folder.parent / "simulated.csv"
    write_trace(simulated, [trace_table(SEED, names, states, outcome)])
    found, expected = rows(folder / "trace.csv"), rows(simulated)[: SIZE * ROUNDS]
    assert sum(row["trained"] == "1" for row in found) >= 3
    for one, other in zip(found, expected, strict=True):
        for name in ("round", "device", "train", "trained", "violated"):
            assert one[name] == other[name]
        for name in ("queue", "data", "power_w", "frequency_hz", "duration_s", "energy_j", "accuracy"):
            assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("engine", ["simulation", "deployment"])
def test_a_run_over_flower_is_the_simulated_one(engine: str, tmp_path: Path, system: System) -> None:
    folder = tmp_path / "run"
    done = subprocess.run(command(folder, engine), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["failures"] == []
    assert document["reports"] == SIZE * ROUNDS
    check_simulated(folder, system)
    assert left_over(folder) == []


def test_a_server_that_is_killed_goes_on(tmp_path: Path, system: System) -> None:
    """The server's process is killed in mid-run, and with it Flower's run; devices go on from their own files too."""
    folder = tmp_path / "run"
    mark = {"TANDEM_TEST_OF": str(tmp_path)}  # what tells this run's processes from others'
    began = subprocess.Popen(
        command(folder, "deployment"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **mark}
    )
    until_s = time.monotonic() + 200
    while len(list((folder / "rounds").glob("0*"))) < 2 and time.monotonic() < until_s:
        time.sleep(0.1)
    (server,) = {pid for pid in started_with(str(tmp_path)) if "flwr-serverapp" in arguments(pid)}
    os.kill(server, signal.SIGKILL)
    out, said = began.communicate(timeout=200)
    assert (began.returncode, out) == (2, b""), said
    assert b"--resume" in said
    assert not (folder / "fleet.json").exists()
    again = [sys.executable, "-m", "tandem", "fleet", "run", "--resume", str(folder), "--json"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reports"] == SIZE * ROUNDS
    check_simulated(folder, system)
    assert left_over(folder) == []


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_is_stopped_ends_everything(tmp_path: Path, sign: signal.Signals, code: int) -> None:
    folder = tmp_path / "run"

    def heed() -> None:  # a shell may have told tests in the background not to heed Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    engine = "deployment" if sign == signal.SIGINT else "simulation"
    process = subprocess.Popen(
        command(folder, engine, "--rounds", "500"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed
    )
    until_s = time.monotonic() + 120
    while not (folder / "progress.jsonl").exists() and time.monotonic() < until_s:
        time.sleep(0.2)
    os.kill(process.pid, sign)
    out, _ = process.communicate(timeout=90)
    assert (process.returncode, out) == (code, b"")
    assert left_over(folder) == []


def test_who_is_killed_leaves_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder, "deployment", "--rounds", "500"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until_s = time.monotonic() + 120
    while not (folder / "flower.log").exists() and time.monotonic() < until_s:
        time.sleep(0.2)
    while len(left_over(folder)) < 4 and time.monotonic() < until_s:  # it is starting devices and nodes
        time.sleep(0.2)
    process.kill()
    process.wait()
    while left_over(folder) and time.monotonic() < until_s:
        time.sleep(0.2)
    assert left_over(folder) == []


def lie(address: Path) -> Callable[[], None]:
    """A device that answers every instruction with noise; returns what ends it."""
    address.unlink(missing_ok=True)
    listener = Listener(str(address), family="AF_UNIX")

    def answer() -> None:
        while True:
            try:
                with listener.accept() as caller:
                    caller.recv_bytes()
                    caller.send_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00not json")
            except OSError:
                return

    threading.Thread(target=answer, daemon=True).start()
    return listener.close


def test_a_deployment_survives_its_devices(tmp_path: Path) -> None:
    """Device 0 is killed and comes back, 1 hangs and later loses its node, 2 lies for a while, 3 joins late."""
    from tandem.federated.flower.launcher import LaunchConfig, follow_run, local_superlink

    scenario = load_scenario("paper", FLEET)
    settings = FleetConfig(run="faults", policy="threshold", seed=SEED, rounds=14, deadline_s=15, patience_s=45)
    write_config(tmp_path, settings, scenario)
    launch = LaunchConfig(tmp_path, settings, SIZE)
    with local_superlink(launch, simulation=False) as machines:
        devices = {n: machines.start_device(n) for n in range(3)}
        nodes = {n: machines.start_node(n) for n in range(3)}
        honest: list[Callable[[], None]] = []

        def happens(line: dict[str, Any]) -> None:
            done = line["done"]
            if done == 1:
                os.killpg(devices[0].pid, signal.SIGKILL)
                machines.start_device(3)
                machines.start_node(3)
            if done == 2:
                devices[0] = machines.start_device(0)
                os.killpg(devices[1].pid, signal.SIGSTOP)
            if done == 3:
                os.killpg(devices[1].pid, signal.SIGCONT)
                os.killpg(devices[2].pid, signal.SIGKILL)
                honest.append(lie(machines.address(2)))
            if done == 5:
                honest.pop()()
                devices[2] = machines.start_device(2)
            if done == 7:
                os.killpg(nodes[1].pid, signal.SIGKILL)
            if done == 8:
                machines.start_node(1)  # under another number, with the same device behind it

        document = follow_run(launch, machines.submit(simulation=False), happens)
    assert document["rounds"] == 14
    failed = {(one["round"], one["device"]) for one in document["failures"]}
    assert (1, "device-0") in failed
    assert (2, "device-1") in failed
    assert (4, "device-2") in failed
    assert (0, "device-3") in failed
    assert (7, "device-1") in failed
    assert not {one for one in failed if one[0] >= 12}  # all are back
    problem = build_spec(scenario, SEED)
    trained = [row for row in rows(tmp_path / "trace.csv") if row["trained"] == "1"]
    for n in range(SIZE):
        station = load(path_of(tmp_path / DEVICES, "faults", n), ClientContext.init(problem, n))
        held = sample_counts(station)
        assert held["samples"] == held["discarded"] + held["trained"] + held["buffered"]
        assert held["requests"] == held["served"] + held["unkept_requests"] + held["waiting"]
        assert (held["lost"], station.round) == (0, 13)
        mine = [float(row["data"]) for row in trained if row["device"] == f"device-{n}" and row["round"] != "13"]
        assert held["trained"] == pytest.approx(sum(mine), abs=2 * len(mine) + 1)
