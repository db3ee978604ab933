"""A device serves, trains and reports; whatever is lost on the way, no sample is lost or aggregated twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from linear_model import LinearModel

from tandem.device import AgentConfig, DeviceAgent, DeviceStore, LiveInstruction, LiveReport, ProtocolError
from tandem.device.messages import from_bytes, to_bytes
from tandem.device.meters import EstimatedEnergy
from tandem.device.store import QueueFullError, RequestConflictError, Status, UnknownRequestError
from tandem.errors import InputError

INPUTS = np.eye(4, dtype=np.float32)
LABELS = np.array([0, 1, 2, 0])


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "the condition did not hold in time"
        time.sleep(0.01)


class Device:
    """An agent with its store, which can be closed and opened again."""

    def __init__(self, folder: Path, model: LinearModel | None = None, **options) -> None:
        self.folder, self.options = folder, options
        self.model = model or LinearModel()
        self.round = -1
        self.open()

    def open(self) -> None:
        self.store = DeviceStore(self.folder, self.model.input_shape, max_queue=8, max_samples=100)
        self.agent = DeviceAgent(self.model, self.store, AgentConfig(max_batch=4), **self.options)
        self.agent.start()

    def close(self) -> None:
        self.agent.stop()
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.model = LinearModel()
        self.open()

    def ask(self, request_id: str, inputs=INPUTS, deadline_s=None):
        return self.agent.submit(request_id, request_id.encode(), inputs, deadline_s)

    def served(self, request_id: str):
        wait_until(lambda: self.store.read_request(request_id).status == Status.SERVED)
        return self.store.read_request(request_id)

    def instruct(self, **fields) -> LiveReport:
        self.round = fields.pop("round", self.round + 1)
        given = {"run": "a", "device": 0, "round": self.round, "train": False, "duration_s": 0.0, **fields}
        return from_bytes(LiveReport, self.agent.handle(to_bytes(LiveInstruction(**given))))


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    opened = Device(tmp_path / "store")
    yield opened
    opened.close()


def test_request_is_served_and_becomes_a_sample_when_its_label_arrives(device: Device) -> None:
    device.ask("one")
    answer = device.served("one")
    assert answer.scores.shape == (4, 3)
    assert device.store.samples == 0
    device.agent.label("one", LABELS)
    inputs, labels, _ = device.store.read_samples()
    np.testing.assert_array_equal(inputs, INPUTS)
    np.testing.assert_array_equal(labels, LABELS)


def test_label_that_arrives_while_the_request_waits_is_used_when_it_is_served(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.agent.stop()  # nothing is served
    device.ask("one")
    device.agent.label("one", LABELS)
    assert device.store.samples == 0
    device.reopen()
    device.served("one")
    wait_until(lambda: device.store.samples == 4)
    device.close()


def test_report_counts_what_happened_since_the_last_one(device: Device) -> None:
    device.ask("one")
    device.served("one")
    device.agent.label("one", LABELS)
    report = device.instruct()
    assert (report.arrived, report.served, report.labelled, report.data, report.queue) == (4, 4, 4, 4, 0)
    assert report.correct == 2  # the initial weights are 0, so class 0 is predicted
    assert report.latency_s > 0
    assert report.data_age_s > 0
    assert report.energy_j is None
    assert report.frequency_hz is None
    later = device.instruct()
    assert (later.arrived, later.served, later.labelled, later.data) == (0, 0, 0, 4)


def test_samples_are_kept_until_their_update_is_acknowledged(device: Device) -> None:
    device.ask("one")
    device.served("one")
    device.agent.label("one", LABELS)
    weights = device.model.get_weights()
    first = device.instruct(train=True, weights=weights, iterations=3)
    assert first.trained
    assert first.samples == 4
    expected = LinearModel()
    expected.train(INPUTS, LABELS, 3)
    np.testing.assert_allclose(first.weights["weight"], expected.weight, atol=1e-6)
    assert not device.model.weight.any()  # it serves the old model until the server has aggregated the update

    again = device.instruct(train=True, weights=weights)  # the first update was not acknowledged
    assert again.samples == 4
    after = device.instruct(acknowledged=again.round, weights=again.weights)
    assert (after.data, after.settled, after.model_age_s < first.model_age_s + 60) == (0, again.round, True)
    np.testing.assert_array_equal(device.model.weight, again.weights["weight"])
    empty = device.instruct(train=True, weights=again.weights, acknowledged=again.round)
    assert (empty.trained, empty.samples) == (False, 0)


def test_sample_that_arrives_during_training_stays_for_the_next_one(device: Device) -> None:
    device.ask("one")
    device.served("one")
    device.agent.label("one", LABELS)
    report = device.instruct(train=True, weights=device.model.get_weights())
    device.ask("two")
    device.served("two")
    device.agent.label("two", LABELS)
    after = device.instruct(acknowledged=report.round, weights=report.weights)
    assert after.data == 4


def test_repeated_instruction_gives_the_same_report_and_an_older_one_is_refused(device: Device) -> None:
    first = to_bytes(LiveInstruction(run="a", device=0, round=3, train=False, duration_s=0.0))
    assert device.agent.handle(first) == device.agent.handle(first)
    device.instruct(round=4)
    with pytest.raises(ProtocolError, match="3 is not after 4"):
        device.agent.handle(first)


def test_state_survives_a_restart(device: Device) -> None:
    device.ask("one")
    device.served("one")
    device.agent.label("one", LABELS)
    report = device.instruct(train=True, weights=device.model.get_weights())
    device.reopen()
    assert device.store.samples == 4
    repeated = device.instruct(round=report.round, train=True)
    np.testing.assert_array_equal(repeated.weights["weight"], report.weights["weight"])
    device.instruct(acknowledged=report.round, weights=report.weights)
    device.reopen()
    assert device.store.samples == 0
    np.testing.assert_array_equal(device.model.weight, report.weights["weight"])
    assert device.served("one").model_round == -1


def test_device_that_trains_does_not_serve(tmp_path: Path) -> None:
    release = threading.Event()

    class Slow(LinearModel):
        def train(self, inputs, labels, iterations):
            release.wait(20)

    device = Device(tmp_path, Slow())
    device.ask("one")
    device.served("one")
    device.agent.label("one", LABELS)
    training = threading.Thread(target=device.instruct, kwargs={"train": True, "weights": device.model.get_weights()})
    training.start()
    wait_until(lambda: device.agent.mode == "train")
    device.ask("two")
    time.sleep(0.3)
    assert device.store.read_request("two").status == Status.WAITING
    release.set()
    training.join()
    device.served("two")
    device.close()


def test_model_that_cannot_train_loses_no_sample(tmp_path: Path) -> None:
    class Broken(LinearModel):
        def train(self, inputs, labels, iterations):
            self.weight = self.weight * np.nan

    device = Device(tmp_path, Broken())
    device.ask("one")
    device.served("one")
    device.agent.label("one", LABELS)
    with pytest.raises(ProtocolError, match="not finite"):
        device.instruct(train=True, weights=device.model.get_weights())
    assert device.store.samples == 4
    assert np.isfinite(device.model.weight).all()
    device.ask("two")
    device.served("two")
    device.close()


def test_request_that_the_model_cannot_answer_does_not_block_the_others(tmp_path: Path) -> None:
    device = Device(tmp_path, LinearModel(poison=13.0))
    device.agent.stop()
    device.ask("good", INPUTS[:1])
    device.ask("bad", np.full((1, 4), 13.0, np.float32))
    device.ask("fine", INPUTS[1:2])
    device.store.close()
    device.open()
    device.served("good")
    device.served("fine")
    wait_until(lambda: device.store.read_request("bad").status == Status.FAILED)
    assert device.store.waiting == 0
    device.close()


def test_full_queue_and_full_buffer_refuse(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.agent.stop()
    device.ask("one")
    device.ask("two")
    with pytest.raises(QueueFullError, match="8 of at most 8"):
        device.ask("three", INPUTS[:1])
    assert device.agent.totals.rejected == 1
    with pytest.raises(UnknownRequestError):
        device.store.read_request("three")
    device.store.close()


def test_deadline_expires_a_request(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.agent.stop()
    device.ask("one", deadline_s=0.01)
    time.sleep(0.05)
    assert device.store.expire_requests() == ["one"]
    assert device.store.waiting == 0
    with pytest.raises(RequestConflictError, match="expired"):
        device.agent.label("one", LABELS)
    device.store.close()


def test_old_requests_are_pruned_but_not_those_that_wait(device: Device) -> None:
    device.ask("one")
    device.served("one")
    assert device.store.prune(0.0) == 1
    with pytest.raises(UnknownRequestError):
        device.agent.label("one", LABELS)
    device.agent.stop()
    device.ask("two")
    assert device.store.prune(0.0) == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"device": 1}, "for device 1, this is 0"),
        ({"weights": {"weight": np.zeros((4, 3), np.float32)}}, "bias is missing"),
        ({"weights": {"weight": np.zeros((4, 4), np.float32), "bias": np.zeros(3, np.float32)}}, "instead of"),
        ({"weights": {"weight": np.full((4, 3), np.nan, np.float32), "bias": np.zeros(3, np.float32)}}, "not finite"),
    ],
)
def test_instruction_that_does_not_fit_changes_nothing(device: Device, fields: dict, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        device.instruct(**fields)
    assert device.instruct(round=0).round == 0


@pytest.mark.parametrize(
    "data", [b"", b"garbage", to_bytes(LiveInstruction(run="a", device=0, round=0, train=False, duration_s=0.0))[:-3]]
)
def test_garbage_is_refused(device: Device, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        device.agent.handle(data)


def test_estimate_of_energy_is_that_of_the_paper_and_is_marked(tmp_path: Path) -> None:
    device = Device(tmp_path, meter=EstimatedEnergy(1e-28, 2e9))
    device.ask("one")
    device.served("one")
    report = device.instruct()
    assert report.energy_source == "estimate"
    np.testing.assert_allclose(report.energy_j, 1e-28 * (2e9) ** 3 * report.compute_s, rtol=1e-6)
    device.close()


def test_folder_is_used_by_one_device_and_for_one_shape(device: Device) -> None:
    with pytest.raises(InputError, match="another device uses it"):
        DeviceStore(device.folder, (4,))
    device.close()
    with pytest.raises(InputError, match=r"holds inputs of the shape \[4\]"):
        DeviceStore(device.folder, (5,))
    device.open()
