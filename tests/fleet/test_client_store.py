"""A device's file: what was reported is never forgotten, and two processes never work on it at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tandem.errors import InputError
from tandem.federated.fleet.client_round import ClientContext
from tandem.federated.fleet.client_store import ClientHandler, load, path_of
from tandem.federated.fleet.hardware import Cpufreq, HardwareSetting, SimulatedHardware
from tandem.federated.fleet.messages import ProtocolError, to_bytes
from tandem.federated.fleet.server_plan import init_server, plan_round
from tandem.federated.fleet.spec import FleetSpec
from tandem.policy.heuristics import Threshold


def test_a_restarted_device_goes_on_where_it_was(
    problem: FleetSpec, places: list[ClientContext], tmp_path: Path
) -> None:
    first = plan_round(problem, Threshold(), init_server(problem, "test")).instructions[2]
    device = ClientHandler(places[2], tmp_path, SimulatedHardware())
    report = device.handle(to_bytes(first))
    assert (
        ClientHandler(ClientContext.init(problem, 2), tmp_path, SimulatedHardware()).handle(to_bytes(first)) == report
    )
    second = first.model_copy(update={"round": 1, "clock_s": first.clock_s + first.duration_s})
    other = ClientHandler(places[2], tmp_path / "other", SimulatedHardware())
    other.handle(to_bytes(first))
    device.handle(to_bytes(second))
    other.handle(to_bytes(second))
    one, two = (load(path_of(folder, "test", 2), places[2]) for folder in (tmp_path, tmp_path / "other"))
    assert jax.tree.all(jax.tree.map(np.array_equal, one.snapshot.client, two.snapshot.client))
    assert (one.round, one.run, one.number) == (1, "test", 2)


def test_a_damaged_memory_is_refused_with_a_fix(places: list[ClientContext], tmp_path: Path) -> None:
    path = path_of(tmp_path, "test", 0)
    path.parent.mkdir()
    path.write_bytes(b"half a fi")
    with pytest.raises(InputError, match=r"device-0\.safetensors: is damaged, .* move it away"):
        load(path, places[0])


def test_a_message_of_another_run_makes_nobody_forget(
    problem: FleetSpec, places: list[ClientContext], tmp_path: Path
) -> None:
    first = plan_round(problem, Threshold(), init_server(problem, "test")).instructions[2]
    device = ClientHandler(places[2], tmp_path, SimulatedHardware())
    report = device.handle(to_bytes(first))
    device.handle(to_bytes(first.model_copy(update={"run": "another"})))
    before = load(path_of(tmp_path, "test", 2), places[2])
    assert (before.run, before.round) == ("test", 0)
    assert device.handle(to_bytes(first)) == report


@pytest.mark.parametrize("run", ["", "../away", "a/b", "x" * 65])
def test_a_run_cannot_name_any_folder(
    problem: FleetSpec, places: list[ClientContext], tmp_path: Path, run: str
) -> None:
    first = plan_round(problem, Threshold(), init_server(problem, "test")).instructions[0]
    with pytest.raises(ProtocolError, match=r"^run: "):
        ClientHandler(places[0], tmp_path, SimulatedHardware()).handle(to_bytes(first.model_copy(update={"run": run})))
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_work_at_once(problem: FleetSpec, places: list[ClientContext], tmp_path: Path) -> None:
    first = to_bytes(plan_round(problem, Threshold(), init_server(problem, "test")).instructions[0])
    lock = path_of(tmp_path, "test", 0).with_suffix(".lock")
    lock.parent.mkdir()
    holding = (
        "import sys, time, pathlib\nfrom tandem.io.locks import file_lock\n"
        "with file_lock(pathlib.Path(sys.argv[1]), 1.0):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", holding, str(lock)], stdout=subprocess.PIPE, text=True)
    device = ClientHandler(places[0], tmp_path, SimulatedHardware(), patience_s=0.2)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):
            device.handle(first)
        assert time.monotonic() - began_s < 5
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert device.handle(first)  # the lock went with the process


def test_cpufreq_caps_the_clock(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no clock to set"):
        Cpufreq(tmp_path)
    for number, highest in enumerate((2_000_000, 1_500_000)):
        domain = tmp_path / f"policy{number}"
        domain.mkdir()
        for name, khz in {
            "cpuinfo_min_freq": 300_000,
            "cpuinfo_max_freq": highest,
            "scaling_max_freq": highest,
        }.items():
            (domain / name).write_text(f"{khz}\n")
    hardware = Cpufreq(tmp_path)
    assert hardware.apply(HardwareSetting(1.8e9, 0.5)) == HardwareSetting(1.5e9, 0.5)
    assert [int((tmp_path / f"policy{n}" / "scaling_max_freq").read_text()) for n in (0, 1)] == [1_800_000, 1_500_000]
    assert hardware.apply(HardwareSetting(1.0, 0.5)).frequency_hz == 3e8
