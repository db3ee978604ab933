"""The HTTP interface of a device: answers, feedback, limits, and refusals that name the field and change nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from linear_model import LinearModel
from starlette.testclient import TestClient

from tandem.device import DeviceAgent, DeviceStore
from tandem.device.http import HttpConfig, create_app

INPUT = [1.0, 0.0, 0.0, 0.0]


def open_client(folder: Path, model: LinearModel | None = None, max_queue: int = 8, **config) -> TestClient:
    model = model or LinearModel()
    agent = DeviceAgent(model, DeviceStore(folder, model.input_shape, max_queue=max_queue, max_samples=6))
    app = create_app(agent, HttpConfig(max_body_bytes=10_000, **config))
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with open_client(tmp_path) as opened:
        yield opened


def test_prediction_and_feedback(client: TestClient) -> None:
    answer = client.post("/predict", json={"inputs": [INPUT, INPUT]}).json()
    assert answer["predictions"] == [0, 0]
    assert [len(scores) for scores in answer["scores"]] == [3, 3]
    assert answer["latency_s"] > 0
    assert client.get(f"/predictions/{answer['id']}").json() == answer
    assert client.post("/feedback", json={"id": answer["id"], "labels": [0, 2]}).json()["labels"] == 2
    status = client.get("/status").json()
    assert (status["samples"], status["mode"], status["queue"]) == (2, "serve", 0)
    assert "tandem_device_served_total 2.0" in client.get("/metrics").text
    assert client.get("/healthz").json() == {"status": "ok"}


def test_repeated_request_has_the_same_answer_and_is_served_once(client: TestClient) -> None:
    body = {"id": "mine", "input": INPUT}
    first = client.post("/predict", json=body)
    assert client.post("/predict", json=body).json() == first.json()
    assert client.get("/status").json()["totals"]["served"] == 1
    assert client.post("/predict", json={"id": "mine", "input": [0.0, 1.0, 0.0, 0.0]}).status_code == 409


def test_feedback_counts_once_and_may_be_repeated(client: TestClient) -> None:
    client.post("/predict", json={"id": "mine", "input": INPUT})
    for _ in range(2):
        assert client.post("/feedback", json={"id": "mine", "label": 1}).status_code == 200
    assert client.get("/status").json()["samples"] == 1
    assert client.post("/feedback", json={"id": "mine", "label": 2}).status_code == 409
    assert client.post("/feedback", json={"id": "other", "label": 2}).status_code == 404


def test_full_buffer_refuses_feedback(client: TestClient) -> None:
    client.post("/predict", json={"id": "many", "inputs": [INPUT] * 6})
    client.post("/predict", json={"id": "more", "input": INPUT})
    assert client.post("/feedback", json={"id": "many", "labels": [0] * 6}).status_code == 200
    refused = client.post("/feedback", json={"id": "more", "label": 0})
    assert refused.status_code == 429
    assert "6 of at most 6" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/predict", {"input": [1.0, 2.0]}, "input"),
        ("/predict", {"input": [[1.0] * 4]}, "input"),
        ("/predict", {"inputs": []}, "inputs"),
        ("/predict", {"inputs": [[1.0] * 4, [1.0] * 3]}, "inputs"),
        ("/predict", {"input": ["1", "2", "3", "4"]}, "input"),
        ("/predict", {"input": [True, False, True, False]}, "input"),
        ("/predict", {"input": [1e300, 0, 0, 0]}, "input"),
        ("/predict", {"input": {"a": 1}}, "input"),
        ("/predict", {"input": None}, "input"),
        ("/predict", {}, "inputs"),
        ("/predict", {"input": INPUT, "inputs": [INPUT]}, "inputs"),
        ("/predict", {"input": INPUT, "deadline_s": -1}, "deadline_s"),
        ("/predict", {"input": INPUT, "deadline_s": True}, "deadline_s"),
        ("/predict", {"input": INPUT, "id": ""}, "id"),
        ("/predict", {"input": INPUT, "id": 7}, "id"),
        ("/predict", {"input": INPUT, "id": "a\nb"}, "id"),
        ("/predict", {"input": INPUT, "mode": 1}, "'mode'"),
        ("/predict", [1], "body"),
        ("/feedback", {"label": 1}, "id"),
        ("/feedback", {"id": "known", "label": 3}, "label"),
        ("/feedback", {"id": "known", "label": -1}, "label"),
        ("/feedback", {"id": "known", "label": 1.5}, "label"),
        ("/feedback", {"id": "known", "label": [1]}, "label"),
        ("/feedback", {"id": "known", "labels": []}, "labels"),
        ("/feedback", {"id": "known"}, "labels"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(client: TestClient, path: str, body: object, field: str) -> None:
    client.post("/predict", json={"id": "known", "input": INPUT})
    before = client.get("/status").json()
    answer = client.post(path, json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field
    assert client.get("/status").json() == before


@pytest.mark.parametrize("body", [b"", b"{", b'{"input": [NaN, 1, 1, 1]}', b"\xff\xfe", b"[" * 9000])
def test_body_that_is_not_json_is_refused(client: TestClient, body: bytes) -> None:
    assert client.post("/predict", content=body).status_code == 422


def test_wrong_number_of_labels_is_refused(client: TestClient) -> None:
    client.post("/predict", json={"id": "two", "inputs": [INPUT] * 2})
    assert client.post("/feedback", json={"id": "two", "label": 1}).status_code == 409
    assert client.post("/feedback", json={"id": "two", "labels": [1, 2]}).status_code == 200


def test_oversized_body_unknown_path_and_method_are_refused(client: TestClient) -> None:
    assert client.post("/predict", content=b"x" * 20_000).status_code == 413
    assert client.get("/nothing").status_code == 404
    assert client.get("/predict").status_code == 405
    assert client.get("/predictions/nothing").status_code == 404


def test_requests_from_other_sites_are_refused(client: TestClient) -> None:
    assert client.get("/status", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/status", headers={"Origin": "http://evil.example"}).status_code == 403


def test_token_is_needed_if_there_is_one(tmp_path: Path) -> None:
    with open_client(tmp_path, token="a-secret-of-the-device") as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/status").status_code == 401
        assert client.get("/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
        right = {"Authorization": "Bearer a-secret-of-the-device"}
        assert client.get("/status", headers=right).status_code == 200


class Held(LinearModel):
    """A model that answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def predict(self, inputs):
        self.go.wait(20)
        return super().predict(inputs)


def test_full_queue_gets_429_and_a_long_wait_gets_202(tmp_path: Path) -> None:
    model = Held()
    with open_client(tmp_path, model, max_queue=2, wait_s=0.1) as client:
        waiting = client.post("/predict", json={"id": "a", "inputs": [INPUT] * 2})
        assert waiting.status_code == 202
        assert waiting.json() == {"id": "a", "status": "waiting"}
        full = client.post("/predict", json={"input": INPUT})
        assert full.status_code == 429
        assert full.headers["Retry-After"] == "1"
        assert client.get("/status").json()["totals"]["rejected"] == 1
        model.go.set()
        assert client.post("/predict", json={"id": "a", "inputs": [INPUT] * 2}).status_code in (200, 202)


def test_expired_request_gets_504(tmp_path: Path) -> None:
    model = Held()
    with open_client(tmp_path, model, wait_s=20) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/predict", json={"input": INPUT})
        while client.get("/status").json()["queue"] == 0:
            time.sleep(0.01)
        time.sleep(0.2)  # until the model has the first request
        late = pool.submit(client.post, "/predict", json={"input": INPUT, "deadline_s": 0.05})
        time.sleep(0.3)
        model.go.set()
        assert first.result().status_code == 200
        assert late.result().status_code == 504
