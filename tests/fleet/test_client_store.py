"""A device's stored state: a reported round is never forgotten, and two processes never use the state at once."""

from pathlib import Path

import jax
import numpy as np
import pytest

from tandem.device.hardware import Cpufreq, HardwareSetting, SimulatedHardware
from tandem.errors import InputError
from tandem.federated.fleet.client_store import ClientHandler, load_snapshot, snapshot_path
from tandem.federated.fleet.decider import PolicyDecider
from tandem.federated.fleet.messages import Instruction, ProtocolError, to_bytes
from tandem.federated.fleet.server import init_server, plan_round
from tandem.federated.fleet.spec import ClientContext, FleetSpec
from tandem.io.locks import file_lock
from tandem.policy.heuristics import Threshold

DEVICE = 2


@pytest.fixture(scope="module")
def context(contexts: list[ClientContext]) -> ClientContext:
    return contexts[DEVICE]


@pytest.fixture(scope="module")
def first(spec: FleetSpec) -> Instruction:
    """The instruction of round 0."""
    return plan_round(spec, PolicyDecider(spec.system, Threshold()), init_server(spec, "test")).instructions[DEVICE]


@pytest.fixture
def handler(context: ClientContext, tmp_path: Path) -> ClientHandler:
    return ClientHandler(context, tmp_path, SimulatedHardware(), lock_timeout_s=0.2)


def test_restarted_device_continues_where_it_was(
    spec: FleetSpec, context: ClientContext, handler: ClientHandler, first: Instruction, tmp_path: Path
) -> None:
    report = handler.handle(to_bytes(first))
    restarted = ClientHandler(ClientContext.init(spec, DEVICE), tmp_path, SimulatedHardware())
    assert restarted.handle(to_bytes(first)) == report
    second = first.model_copy(update={"round": 1, "clock_s": first.clock_s + first.duration_s})
    uninterrupted = ClientHandler(context, tmp_path / "other", SimulatedHardware())
    for instruction in (first, second):
        uninterrupted.handle(to_bytes(instruction))
    restarted.handle(to_bytes(second))
    one, other = (load_snapshot(snapshot_path(h.store, "test", DEVICE), context) for h in (restarted, uninterrupted))
    assert one is not None
    assert other is not None
    assert jax.tree.all(jax.tree.map(np.array_equal, one.client, other.client))
    assert (one.round, one.run, one.device) == (1, "test", DEVICE)


def test_damaged_state_is_refused_with_a_fix(context: ClientContext, tmp_path: Path) -> None:
    path = snapshot_path(tmp_path, "test", DEVICE)
    path.parent.mkdir()
    path.write_bytes(b"half a fi")
    with pytest.raises(InputError, match=r"device-2\.safetensors: .* move it away"):
        load_snapshot(path, context)


def test_message_of_another_run_does_not_change_this_one(
    context: ClientContext, handler: ClientHandler, first: Instruction
) -> None:
    report = handler.handle(to_bytes(first))
    handler.handle(to_bytes(first.model_copy(update={"run": "another"})))
    snapshot = load_snapshot(snapshot_path(handler.store, "test", DEVICE), context)
    assert snapshot is not None
    assert (snapshot.run, snapshot.round) == ("test", 0)
    assert handler.handle(to_bytes(first)) == report


@pytest.mark.parametrize("run", ["", "../away", "a/b", "x" * 65])
def test_run_name_cannot_lead_out_of_the_store(handler: ClientHandler, first: Instruction, run: str) -> None:
    with pytest.raises(ProtocolError, match=r"^run: "):
        handler.handle(to_bytes(first.model_copy(update={"run": run})))
    assert list(handler.store.iterdir()) == []


def test_state_is_used_by_one_process_at_a_time(handler: ClientHandler, first: Instruction) -> None:
    lock = snapshot_path(handler.store, "test", DEVICE).with_suffix(".lock")
    lock.parent.mkdir()
    with file_lock(lock), pytest.raises(TimeoutError):  # a second handle on the file, as another process has it
        handler.handle(to_bytes(first))
    assert handler.handle(to_bytes(first))


def test_cpufreq_caps_the_clock(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--hardware cpufreq"):
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
