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
from tandem.federated.fleet.client_round import Place
from tandem.federated.fleet.client_store import Device, path_of, recall
from tandem.federated.fleet.hardware import Cpufreq, Setting, SimulatedHardware
from tandem.federated.fleet.messages import GarbledError, to_bytes
from tandem.federated.fleet.server_plan import opened, plan
from tandem.federated.fleet.spec import Problem
from tandem.policy.heuristics import Threshold


def test_a_restarted_device_goes_on_where_it_was(problem: Problem, places: list[Place], tmp_path: Path) -> None:
    first = plan(problem, Threshold(), opened(problem, "test")).instructions[2]
    device = Device(places[2], tmp_path, SimulatedHardware())
    report = device.answer(to_bytes(first))
    assert Device(Place.of(problem, 2), tmp_path, SimulatedHardware()).answer(to_bytes(first)) == report
    second = first.model_copy(update={"round": 1, "clock_s": first.clock_s + first.duration_s})
    other = Device(places[2], tmp_path / "other", SimulatedHardware())
    other.answer(to_bytes(first))
    device.answer(to_bytes(second))
    other.answer(to_bytes(second))
    one, two = (recall(path_of(folder, "test", 2), places[2]) for folder in (tmp_path, tmp_path / "other"))
    assert jax.tree.all(jax.tree.map(np.array_equal, one.counts.device, two.counts.device))
    assert (one.round, one.run, one.number) == (1, "test", 2)


def test_a_damaged_memory_is_refused_with_a_fix(places: list[Place], tmp_path: Path) -> None:
    path = path_of(tmp_path, "test", 0)
    path.parent.mkdir()
    path.write_bytes(b"half a fi")
    with pytest.raises(InputError, match=r"device-0\.safetensors: is damaged, .* move it away"):
        recall(path, places[0])


def test_a_message_of_another_run_makes_nobody_forget(problem: Problem, places: list[Place], tmp_path: Path) -> None:
    first = plan(problem, Threshold(), opened(problem, "test")).instructions[2]
    device = Device(places[2], tmp_path, SimulatedHardware())
    report = device.answer(to_bytes(first))
    device.answer(to_bytes(first.model_copy(update={"run": "another"})))
    before = recall(path_of(tmp_path, "test", 2), places[2])
    assert (before.run, before.round) == ("test", 0)
    assert device.answer(to_bytes(first)) == report


@pytest.mark.parametrize("run", ["", "../away", "a/b", "x" * 65])
def test_a_run_cannot_name_any_folder(problem: Problem, places: list[Place], tmp_path: Path, run: str) -> None:
    first = plan(problem, Threshold(), opened(problem, "test")).instructions[0]
    with pytest.raises(GarbledError, match=r"^run: "):
        Device(places[0], tmp_path, SimulatedHardware()).answer(to_bytes(first.model_copy(update={"run": run})))
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_work_at_once(problem: Problem, places: list[Place], tmp_path: Path) -> None:
    first = to_bytes(plan(problem, Threshold(), opened(problem, "test")).instructions[0])
    holding = (
        "import sys, time, pathlib\nfrom tandem.federated.fleet.client_store import alone_with\n"
        "with alone_with(pathlib.Path(sys.argv[1]), 1.0):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", holding, str(path_of(tmp_path, "test", 0))], stdout=subprocess.PIPE, text=True
    )
    device = Device(places[0], tmp_path, SimulatedHardware(), patience_s=0.2)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):
            device.answer(first)
        assert time.monotonic() - began_s < 5
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert device.answer(first)  # the lock went with the process


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
    assert hardware.apply(Setting(1.8e9, 0.5)) == Setting(1.5e9, 0.5)
    assert [int((tmp_path / f"policy{n}" / "scaling_max_freq").read_text()) for n in (0, 1)] == [1_800_000, 1_500_000]
    assert hardware.apply(Setting(1.0, 0.5)).frequency_hz == 3e8
