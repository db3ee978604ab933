"""What the HTTP service promises, with the application in this process and a SQLite file."""

import json
import logging
import re
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from servers import FRONT, JSON, SIZE, body_of, build_policy_file, post, report_document

from tandem.serving import Scheduler
from tandem.serving.access import Role, create_token
from tandem.serving.bodies import DecisionRequest, parse
from tandem.serving.client import encode_report
from tandem.serving.http import create_app
from tandem.serving.http.guard import Limits
from tandem.serving.service import Service, ServiceConfig, publish
from tandem.serving.storage import Store


def refused(response: Any, status: int, field: str) -> str:
    """Check that a problem document names a field, and return its sentence."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == status
    assert field in [error["field"] for error in document["errors"]], document
    return str(document["detail"])


def test_decisions_are_those_of_the_scheduler(http: TestClient) -> None:
    scheduler = Scheduler(build_policy_file())
    for number in range(5):
        document = report_document(number)
        answer = post(http, "/v1/decisions", document).json()
        expected = scheduler.decide(parse(DecisionRequest, body_of(document)).report()).document()
        assert answer == json.loads(json.dumps({"fleet": "default", **expected}))


def test_a_repeated_request_gets_the_same_bytes(http: TestClient, store: Store) -> None:
    first = post(http, "/v1/decisions", report_document(3))
    http.put("/v1/operating-point", json={"preference": {"energy": 1}})
    again = post(http, "/v1/decisions", report_document(3))
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.content == again.content
    assert store.read_round(3).decision == first.content


def test_a_round_with_another_body_is_refused_and_changes_nothing(http: TestClient, store: Store) -> None:
    first = post(http, "/v1/decisions", report_document(3))
    said = refused(post(http, "/v1/decisions", report_document(3, last_duration_s=9.0)), 409, "round")
    assert "was decided for another request" in said
    assert [stored.decision for stored in store.read_rounds()] == [first.content]


def test_a_stale_round_is_refused(http: TestClient, store: Store) -> None:
    post(http, "/v1/decisions", report_document(100))
    assert "round 100 was decided" in refused(post(http, "/v1/decisions", report_document(90)), 409, "round")
    assert post(http, "/v1/decisions", report_document(91)).status_code == 200  # late, but within the limit


def test_absent_and_late_devices_serve_and_the_answer_says_so(http: TestClient) -> None:
    some = report_document(0, size=2)
    answer = post(http, "/v1/decisions", some).json()
    assert (answer["devices"], answer["absent"], answer["late"]) == (["device-0", "device-1"], ["device-2"], [])
    late = report_document(1, present=[True, False, True])
    answer = post(http, "/v1/decisions", late).json()
    assert (answer["mode"][1], answer["late"]) == ("serve", ["device-1"])
    [rules] = [change["rules"] for change in answer["changes"] if change["device"] == "device-1"]
    assert "not-present" in rules


def test_a_new_device_is_served_with_a_profile_and_refused_without(http: TestClient) -> None:
    four = report_document(0, size=4)
    refused(post(http, "/v1/decisions", four), 422, "devices")
    answer = post(http, "/v1/decisions", four | {"new_devices": [{"name": "device-3", "like": "device-0"}]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["devices"][3] == "device-3"


def test_a_network_of_fixed_size_refuses_another_fleet_with_409(tmp_path: Any) -> None:
    store = Store.open(str(tmp_path / "mlp.db"))
    publish(store, build_policy_file("mlp"), activate=True, by="test")
    with TestClient(create_app(Service(store)), base_url="http://127.0.0.1") as http:
        four = report_document(0, size=4, new_devices=[{"name": "device-3", "like": "device-0"}])
        response = post(http, "/v1/decisions", four)
        assert response.status_code == 409
        assert "device" in response.json()["detail"]
        assert post(http, "/v1/decisions", report_document(0)).status_code == 200
    store.close()


def changed(**changes: Any) -> bytes:
    return body_of(report_document(0, **changes))


def written(field: str, text: str) -> bytes:
    """A report with a field written in JSON as given."""
    document = report_document(0)
    document[field] = "HERE"
    return body_of(document).replace(b'"HERE"', text.encode("utf-8", "surrogatepass"))


BAD = {
    "NaN": (written("queue", "[NaN, 1, 1]"), "queue[0]"),
    "infinity": (written("data", "[1, Infinity, 1]"), "data[1]"),
    "overflow": (written("data", "[1, 1, 1e400]"), "data[2]"),
    "too large": (written("data", "[1, 1, 1e300]"), "data[2]"),
    "negative": (changed(queue=[1, -1, 1]), "queue[1]"),
    "text": (changed(queue=["1", 1, 1]), "queue[0]"),
    "boolean": (changed(queue=[True, 1, 1]), "queue[0]"),
    "null": (changed(queue=None), "queue"),
    "too short": (changed(waited_s=[1.0]), "waited_s"),
    "too long": (changed(present=[True] * 4), "present"),
    "twice": (changed(devices=["device-0", "device-0", "device-1"]), "devices"),
    "unknown device": (changed(devices=["device-0", "device-1", "camera"]), "devices"),
    "no devices": (changed(devices=[], queue=[], data=[]), "devices"),
    "unknown field": (changed(colour="red"), "colour"),
    "accuracy": (changed(model_accuracy=[0.5, 1.5, 0.5]), "model_accuracy[1]"),
    "no round": (body_of({k: v for k, v in report_document(0).items() if k != "round"}), "round"),
    "negative round": (changed(round=-1), "round"),
    "large round": (changed(round=2**31), "round"),
    "huge round": (written("round", "9" * 400), "round"),
    "endless round": (written("round", "9" * 5000), ""),
    "fraction": (changed(round=1.5), "round"),
    "surrogate": (written("devices", '["\\ud800", "a", "b"]'), ""),
    "surrogate bytes": (written("devices", '["\ud800", "a", "b"]'), ""),
    "empty name": (changed(devices=["", "device-1", "device-2"]), "devices[0]"),
    "long name": (changed(devices=["x" * 101, "device-1", "device-2"]), "devices[0]"),
    "not JSON": (b"{", ""),
    "empty": (b"", ""),
    "list": (b"[]", ""),
    "bad UTF-8": (b'{"round": "\xff"}', ""),
    "deep": (b"[" * 100_000, ""),
    "deep field": (written("queue", "[" * 5000 + "]" * 5000), ""),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_reports_name_the_field_and_change_nothing(name: str, http: TestClient, store: Store) -> None:
    body, field = BAD[name]
    before = store.read_state()
    response = post(http, "/v1/decisions", body)
    refused(response, 422, field) if field else None
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["detail"]
    assert len(response.content) < 2000  # the input is not repeated
    assert store.list_rounds() == []
    assert store.read_state() == before


def test_a_wrong_body_of_many_devices_has_one_error_for_each_column(http: TestClient) -> None:
    many = 20_000
    body = body_of({"round": 0, "devices": ["d"] * many, "queue": [-1] * many, "data": ["x"] * many})
    response = post(http, "/v1/decisions", body)
    assert response.status_code == 422
    assert [error["field"] for error in response.json()["errors"]] == ["queue[0]", "data[0]"]


def test_limits_on_size_devices_and_type(store: Store) -> None:
    service = Service(store, ServiceConfig(max_devices=2))
    with TestClient(create_app(service, Limits(max_body_bytes=5000)), base_url="http://127.0.0.1") as http:
        refused(post(http, "/v1/decisions", report_document(0)), 422, "devices")
        refused(post(http, "/v1/decisions", b" " * 5001), 413, "body")

        def parts() -> Any:  # without a Content-Length
            for _ in range(6):
                yield b" " * 1000

        refused(http.post("/v1/decisions", content=parts(), headers=JSON), 413, "body")
        response = http.post("/v1/decisions", content=b"{}", headers={"Content-Type": "text/plain"})
        refused(response, 415, "Content-Type")
    assert store.list_rounds() == []


def test_requests_over_the_rate_are_refused(store: Store) -> None:
    app = create_app(Service(store), Limits(requests_per_s=2))
    with TestClient(app, base_url="http://127.0.0.1") as http:
        statuses = [http.get("/v1/front").status_code for _ in range(6)]
        assert statuses == [200] * 4 + [429] * 2
        assert int(http.get("/v1/front").headers["Retry-After"]) >= 1


def test_outcomes_are_recorded_once_for_decided_rounds(http: TestClient, store: Store) -> None:
    post(http, "/v1/decisions", report_document(0))
    outcome = {"round": 0, "duration_s": 2.5, "energy_j": 8.0, "accuracy": 0.8, "late": ["device-1"]}
    outcome |= {"devices": ["device-0", "device-2"], "compute_s": [0.5, 0.6], "requests_arrived": [3, 4]}
    assert post(http, "/v1/outcomes", outcome).json() == {"fleet": "default", "round": 0, "recorded": True}
    assert post(http, "/v1/outcomes", outcome).status_code == 200
    assert json.loads(store.read_round(0).outcome or b"") == outcome
    refused(post(http, "/v1/outcomes", outcome | {"energy_j": 9.0}), 409, "round")
    refused(post(http, "/v1/outcomes", outcome | {"round": 1}), 404, "round")
    refused(post(http, "/v1/outcomes", {"round": 1, "duration_s": 1, "energy_j": 1}), 404, "round")
    refused(post(http, "/v1/outcomes", outcome | {"late": ["camera"]}), 422, "late[0]")
    refused(post(http, "/v1/outcomes", outcome | {"energy_j": -1}), 422, "energy_j")
    assert post(http, "/v1/outcomes", outcome | {"compute_s": [0.5]}).status_code == 422
    assert json.loads(store.read_round(0).outcome or b"") == outcome


def test_the_operating_point_selects_the_policy_of_later_decisions(http: TestClient, store: Store) -> None:
    assert http.get("/v1/operating-point").json()["operating_point"]["preference"] is None
    point = {"preference": {"accuracy": 1}, "max_latency_s": 2.5, "max_energy_j": 10}
    answer = http.put("/v1/operating-point", json=point).json()
    assert answer["policy"]["index"] == 1  # the most accurate one within the limits
    assert http.get("/v1/operating-point").json() == answer
    decision = post(http, "/v1/decisions", report_document(0)).json()
    assert decision["policy"]["index"] == 1
    assert decision["operating_point"] == answer["operating_point"]
    said = refused(http.put("/v1/operating-point", json={"max_latency_s": 0.5}), 409, "operating_point")
    assert "the best attainable is 1 s" in said
    refused(http.put("/v1/operating-point", json={"min_accuracy": 2}), 422, "min_accuracy")
    refused(http.put("/v1/operating-point", json={"preference": {"accuracy": 0}}), 422, "preference")
    assert http.get("/v1/operating-point").json() == answer
    assert [entry["operating_point"]["max_energy_j"] for entry in store.operating_point_history()] == [10]


def test_the_front_has_the_measured_objectives(http: TestClient) -> None:
    front = http.get("/v1/front").json()
    assert [tuple(policy["objectives"].values()) for policy in front["policies"]] == list(FRONT)
    assert front["active"] == http.get("/v1/operating-point").json()["policy"]["index"]


def test_versions_can_be_activated_and_rolled_back(http: TestClient, store: Store) -> None:
    old, new = build_policy_file().version, build_policy_file(seed=1).version
    publish(store, build_policy_file(seed=1), {"gain": 0.1}, by="tuner")
    listed = http.get("/v1/versions").json()
    assert (listed["active"], [each["version"] for each in listed["versions"]]) == (old, [new, old])
    assert listed["versions"][0]["note"] == {"gain": 0.1}
    assert http.post(f"/v1/versions/{new}/activate").json()["active"] == new
    assert post(http, "/v1/decisions", report_document(0)).json()["version"] == new
    assert http.post("/v1/versions/roll-back").json()["active"] == old
    assert post(http, "/v1/decisions", report_document(1)).json()["version"] == old
    refused(http.post("/v1/versions/0000/activate"), 404, "version")


def test_a_first_version_cannot_be_rolled_back(http: TestClient) -> None:
    refused(http.post("/v1/versions/roll-back"), 409, "version")


def test_a_change_by_another_process_is_used_by_the_next_decision(http: TestClient, store: Store) -> None:
    """Not a second later: the database refuses a decision that was made with the old operating point."""
    post(http, "/v1/decisions", report_document(0))
    point = {"preference": None, "min_accuracy": None, "max_latency_s": 1.5, "max_energy_j": None}
    store.set_operating_point(point, "another process")
    assert post(http, "/v1/decisions", report_document(1)).json()["operating_point"] == point
    publish(store, build_policy_file(seed=1), activate=True, by="another process")
    assert post(http, "/v1/decisions", report_document(2)).json()["version"] == build_policy_file(seed=1).version


def test_rounds_are_paged_newest_first(http: TestClient) -> None:
    for number in range(5):
        post(http, "/v1/decisions", report_document(number))
    page = http.get("/v1/rounds", params={"limit": 2}).json()
    assert ([each["round"] for each in page["rounds"]], page["next_round"], page["before"]) == ([4, 3], 5, 3)
    page = http.get("/v1/rounds", params={"limit": 4, "before": 3}).json()
    assert ([each["round"] for each in page["rounds"]], page["before"]) == ([2, 1, 0], None)
    one = http.get("/v1/rounds/2").json()
    assert (one["report"], one["decision"]["round"]) == (report_document(2), 2)
    refused(http.get("/v1/rounds/7"), 404, "round")
    refused(http.get("/v1/rounds", params={"limit": 0}), 422, "limit")
    refused(http.get("/v1/rounds", params={"before": "x"}), 422, "before")


def test_metrics_have_no_labels_for_devices_rounds_or_tokens(http: TestClient) -> None:
    for number in range(3):
        post(http, "/v1/decisions", report_document(number))
        http.get(f"/v1/rounds/{number}")
        http.get(f"/made/up/{number}")
    text = http.get("/metrics").text
    assert "tandem_decisions_total 3.0" in text
    assert 'tandem_http_requests_total{method="GET",path="/v1/rounds/{round}",status="200"} 3.0' in text
    labels = set(re.findall(r"[{,](\w+)=", text))
    assert labels <= {"method", "path", "status", "le", "mode", "rule"}
    assert "device-0" not in text
    assert "/made/up" not in text
    total = sum(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith("tandem_device_decisions_total")
    )
    assert total == 3 * SIZE


def test_health_and_readiness(http: TestClient, tmp_path: Any) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ready", "database": "ok", "policy": "ok"}
    empty = Store.open(str(tmp_path / "empty.db"))
    with TestClient(create_app(Service(empty)), base_url="http://127.0.0.1") as other:
        assert other.get("/healthz").status_code == 200
        assert other.get("/readyz").status_code == 503
        assert other.get("/readyz").json()["policy"] == "is missing: no version was published"
        assert post(other, "/v1/decisions", report_document(0)).status_code == 503
    empty.close()


def test_a_mistake_in_the_program_is_answered_without_details(
    http: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(Scheduler, "decide", fail)
    with caplog.at_level(logging.ERROR):
        response = post(http, "/v1/decisions", report_document(0))
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert "secret detail" in caplog.text


def test_without_tokens_web_pages_cannot_use_the_service(http: TestClient) -> None:
    refused(http.get("/v1/front", headers={"Host": "evil.example"}), 403, "Host")
    refused(http.post("/v1/versions/roll-back", headers={"Origin": "https://evil.example"}), 403, "Origin")
    assert http.get("/v1/front", headers={"Host": "localhost:8321"}).status_code == 200


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_tokens_have_roles_and_can_be_revoked(store: Store) -> None:
    device, operator = create_token(store, Role.DEVICE), create_token(store, Role.OPERATOR)
    service = Service(store)
    with TestClient(create_app(service), base_url="http://192.0.2.1") as http:
        wrong = [
            "",
            "x",
            f"{device.split('.')[0]}.wrong",
            f"{device[:-1]}",
            f"{operator.split('.')[0]}.{device.split('.')[1]}",
        ]
        for token in wrong:
            response = post(http, "/v1/decisions", report_document(0), headers=bearer(token))
            refused(response, 401, "Authorization")
            assert response.headers["WWW-Authenticate"] == "Bearer"
        refused(http.get("/v1/front"), 401, "Authorization")
        assert store.list_rounds() == []
        assert post(http, "/v1/decisions", report_document(0), headers=bearer(device)).status_code == 200
        refused(http.get("/v1/front", headers=bearer(device)), 403, "Authorization")
        refused(http.put("/v1/operating-point", json={}, headers=bearer(device)), 403, "Authorization")
        refused(http.post("/v1/versions/roll-back", headers=bearer(device)), 403, "Authorization")
        assert http.put("/v1/operating-point", json={}, headers=bearer(operator)).status_code == 200
        assert store.operating_point_history()[0]["changed_by"] == operator.split(".")[0]
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
        store.revoke_token(device.split(".")[0])
        http.put("/v1/operating-point", json={}, headers=bearer(operator))  # reads the tokens again
        refused(post(http, "/v1/decisions", report_document(1), headers=bearer(device)), 401, "Authorization")
        store.revoke_token(operator.split(".")[0])
        http.portal.call(service.refresh)  # type: ignore[union-attr]
        refused(http.get("/v1/front"), 401, "Authorization")  # without valid tokens nobody may ask


def test_a_token_expires(store: Store) -> None:
    token = create_token(store, Role.DEVICE, days=-1.0)
    with TestClient(create_app(Service(store)), base_url="http://127.0.0.1") as http:
        refused(post(http, "/v1/decisions", report_document(0), headers=bearer(token)), 401, "Authorization")


def test_secrets_are_not_stored(store: Store, tmp_path: Any) -> None:
    token = create_token(store, Role.DEVICE)
    store.close()
    content = b"".join(path.read_bytes() for path in tmp_path.glob("tandem.db*"))
    assert token.split(".")[0].encode() in content
    assert token.split(".")[1].encode() not in content


def test_a_report_encoded_by_the_client_is_read_as_it_was() -> None:
    report = parse(DecisionRequest, body_of(report_document(0, present=[True, False, True]))).report()
    again = parse(DecisionRequest, encode_report(report)).report()
    assert again.names == report.names
    for name in ("queue", "data", "last_train", "last_gain", "present", "model_accuracy"):
        np.testing.assert_array_equal(getattr(again, name), getattr(report, name))


def test_the_description_has_examples_that_are_accepted(http: TestClient) -> None:
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    for name in ("DecisionRequest", "OutcomeRequest", "OperatingPointRequest"):
        assert schemas[name]["examples"]
    example = schemas["DecisionRequest"]["examples"][0]
    parse(DecisionRequest, body_of(example))
