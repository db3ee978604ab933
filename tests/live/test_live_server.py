"""Rounds of live devices: what the service is told, what devices are told, and what survives kills and silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Listener
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from linear_model import LinearModel

from tandem.device import AgentConfig, DeviceAgent, DeviceStore, LiveInstruction
from tandem.device.messages import ProtocolError, to_bytes
from tandem.errors import InputError
from tandem.live import LiveConfig, LiveServer, SocketTransport
from tandem.live.flower_app import round_document
from tandem.live.server import average_weights
from tandem.scenario import load_scenario

SIZE = 3
INPUTS = np.eye(4, dtype=np.float32)[:3]


class Service:
    """Decides that some devices train, and remembers what it was told."""

    def __init__(self) -> None:
        self.trainers: set[str] = set()
        self.reports: list = []
        self.outcomes: list = []

    def next_round(self) -> int:
        return 100 + len(self.reports)

    def decide(self, report):
        self.reports.append(report)
        names = list(report.names)
        return SimpleNamespace(
            devices=names,
            mode=["train" if name in self.trainers else "serve" for name in names],
            power_w=[0.1] * len(names),
            frequency_hz=[1e9] * len(names),
        )

    def record_outcome(self, outcome):
        self.outcomes.append(outcome)


class Fleet:
    """Devices in this process, a service and a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents = []
        for n in range(SIZE):
            store = DeviceStore(folder / f"device-{n}", (4,))
            self.agents.append(DeviceAgent(LinearModel(), store, AgentConfig(device=n)))
            self.agents[-1].start()
        self.silent: set[int] = set()
        self.sent: list[LiveInstruction] = []
        self.service = Service()
        scenario = load_scenario("paper", {"fleet.size": SIZE, "limits.idle_round_s": 0.2})
        self.config = LiveConfig.from_scenario(scenario)
        self.server = self.open()

    def open(self) -> LiveServer:
        folder = self.folder / "server"
        return LiveServer(self.config, LinearModel().get_weights(), self.service, self.deliver, folder)

    def deliver(self, instructions: Sequence[LiveInstruction]) -> Mapping[int, bytes | str]:
        self.sent = list(instructions)
        answers: dict[int, bytes | str] = {}
        for each in instructions:
            try:
                silent = each.device in self.silent
                answers[each.device] = "no answer" if silent else self.agents[each.device].handle(to_bytes(each))
            except ProtocolError as error:
                answers[each.device] = str(error)
        return answers

    def label(self, device: int, name: str, count: int = 3) -> None:
        """Let a device answer some requests, and tell it the labels."""
        agent = self.agents[device]
        agent.submit(name, name.encode(), INPUTS[:count], None)
        wait_until(lambda: agent.store.read_request(name).status == "served")
        agent.label(name, np.arange(count))

    def close(self) -> None:
        for agent in self.agents:
            agent.stop()
            agent.store.close()


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    opened = Fleet(tmp_path)
    yield opened
    opened.close()


def test_first_exchange_asks_for_reports_and_later_ones_follow_decisions(fleet: Fleet) -> None:
    assert fleet.server.run_round().decision is None
    assert not fleet.service.reports
    fleet.label(1, "a")
    done = fleet.server.run_round()
    assert done.number == 100
    assert [view.present for view in fleet.server.views] == [True] * SIZE
    assert done.accuracy == pytest.approx(1 / 3)  # weights of 0 predict class 0
    outcome = fleet.service.outcomes[0]
    assert outcome.requests_arrived == [0, 3, 0]
    assert outcome.samples_arrived == [0, 3, 0]
    assert outcome.energy_is_estimated
    assert outcome.duration_s >= fleet.config.idle_round_s
    fleet.server.run_round()
    assert list(fleet.service.reports[1].data) == [0, 3, 0]


def test_updates_are_averaged_by_samples_and_acknowledged_once(fleet: Fleet) -> None:
    fleet.server.run_round()
    fleet.label(0, "a", 3)
    fleet.label(1, "b", 1)
    fleet.server.run_round()  # the service sees the samples
    fleet.service.trainers = {fleet.config.names[0], fleet.config.names[1]}
    done = fleet.server.run_round()
    assert done.trained == (0, 1)
    updates = [done.reports[n].weights for n in (0, 1)]
    expected = {name: (3 * updates[0][name] + updates[1][name]) / 4 for name in updates[0]}
    for name, array in fleet.server.weights.items():
        np.testing.assert_allclose(array, expected[name], atol=1e-6)
    fleet.service.trainers = set()
    fleet.server.run_round()
    assert [each.weights is not None for each in fleet.sent] == [True, True, False]
    assert [agent.store.samples for agent in fleet.agents] == [0, 0, 0]
    np.testing.assert_array_equal(fleet.agents[0].model.weight, fleet.server.weights["weight"])
    assert not fleet.agents[2].model.weight.any()  # a device that has not trained keeps its model
    fleet.server.run_round()
    assert all(each.weights is None for each in fleet.sent)


def test_a_device_with_more_samples_than_allowed_is_reported_at_the_limit_and_violates_c3(
    fleet: Fleet,
) -> None:
    fleet.config = replace(fleet.config, data_max=2.0)
    fleet.server = fleet.open()
    fleet.server.run_round()
    fleet.label(0, "a", 3)
    fleet.label(1, "b", 1)
    fleet.server.run_round()
    done = fleet.server.run_round()
    assert list(fleet.service.reports[1].data) == [2, 1, 0]
    assert fleet.agents[0].store.samples == 3
    devices = round_document(done, fleet.server)["devices"]
    assert [each["violated"] for each in devices] == [["C3"], [], []]
    assert devices[0]["samples"] == 3


def test_silent_device_is_late_and_the_others_go_on(fleet: Fleet) -> None:
    fleet.server.run_round()
    fleet.silent = {2}
    done = fleet.server.run_round()
    assert done.failures == {2: "no answer"}
    assert fleet.service.outcomes[-1].late == [fleet.config.names[2]]
    fleet.server.run_round()
    assert list(fleet.service.reports[-1].present) == [True, True, False]
    fleet.silent = set()
    fleet.server.run_round()
    assert [view.present for view in fleet.server.views] == [True] * SIZE


def test_server_that_was_killed_goes_on_and_no_sample_counts_twice(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.server.run_round()
    fleet.label(0, "a")
    fleet.server.run_round()
    fleet.service.trainers = {fleet.config.names[0]}
    with monkeypatch.context() as patch:
        patch.setattr(fleet.server, "_save", lambda: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):  # after the update has arrived, before it is stored
            fleet.server.run_round()
    fleet.server = fleet.open()
    assert not fleet.server.weights["weight"].any()
    averaged = 0
    for _ in range(3):
        done = fleet.server.run_round()
        averaged += sum(done.reports[n].samples for n in done.trained)
        fleet.server = fleet.open()  # killed between two rounds
    assert averaged == 3
    assert fleet.agents[0].store.samples == 0
    np.testing.assert_array_equal(fleet.agents[0].model.weight, fleet.server.weights["weight"])


def test_report_that_does_not_fit_is_a_failure_of_one_device(fleet: Fleet) -> None:
    fleet.server.run_round()
    deliver = fleet.server._transport
    fleet.server._transport = lambda instructions: {**deliver(instructions), 1: b"garbage"}
    done = fleet.server.run_round()
    assert set(done.failures) == {1}
    assert set(done.reports) == {0, 2}


def test_device_that_hangs_does_not_stop_the_rounds(tmp_path: Path) -> None:
    instruction = LiveInstruction(run="a", device=0, round=0, train=False, duration_s=0.0)
    with Listener(str(tmp_path / "socket"), family="AF_UNIX"):  # nobody accepts
        transport = SocketTransport([tmp_path / "socket"], 0.2)
        for _ in range(4):  # the queue of connections is full after two
            began_s = time.monotonic()
            assert "has not answered within 0.2 s" in transport([instruction])[0]
            assert time.monotonic() - began_s < 2
        transport.close()
    assert "no device listens" in SocketTransport([tmp_path / "nothing"], 0.2)([instruction])[0]


def test_update_that_took_longer_than_the_longest_round_is_not_used(fleet: Fleet) -> None:
    fleet.server.run_round()
    fleet.label(0, "a")
    fleet.server.run_round()
    fleet.service.trainers = {fleet.config.names[0]}
    fleet.server.config = replace(fleet.config, round_max_s=1e-9)
    done = fleet.server.run_round()
    assert done.trained == ()
    assert fleet.service.outcomes[-1].late == [fleet.config.names[0]]
    assert not fleet.server.weights["weight"].any()
    fleet.service.trainers = set()
    fleet.server.run_round()
    assert fleet.agents[0].store.samples == 3


def test_folder_with_files_of_something_else_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="holds files of something else"):
        LiveServer(fleet.config, LinearModel().get_weights(), fleet.service, fleet.deliver, other)
    assert (other / "thesis.tex").read_text() == "precious"


def test_folder_of_another_model_or_fleet_is_refused(fleet: Fleet) -> None:
    fleet.server.run_round()
    folder = fleet.folder / "server"
    with pytest.raises(InputError, match="does not fit the model"):
        LiveServer(fleet.config, LinearModel(5).get_weights(), fleet.service, fleet.deliver, folder)
    (folder / "server.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match="damaged"):
        fleet.open()


def test_average_keeps_types_and_takes_the_largest_count() -> None:
    updates = [{"w": np.float32([1, 3]), "batches": np.int64(n)} for n in (4, 9)]
    updates[1]["w"] = np.float32([5, 7])
    found = average_weights(updates, [1, 3])
    np.testing.assert_allclose(found["w"], [4, 6])
    assert found["w"].dtype == np.float32
    assert found["batches"] == 9
