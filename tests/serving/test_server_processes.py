"""Real server processes: restarts, kills, a database that goes away, several servers, TLS, and the command line."""

import json
import random
import re
import threading
import time
from pathlib import Path

import httpx
import pytest
from certificates import Authority
from load import Load
from postgres import PostgresServer
from servers import build_policy_file, free_port, post, report_document, run_tandem, serving, start_server

from tandem.runs import Run
from tandem.serving import OperatingPoint, write_policy_file
from tandem.serving.bodies import DecisionRequest, OutcomeRequest, parse
from tandem.serving.client import Client, ServiceError
from tandem.serving.export import export_run
from tandem.serving.storage import Store

KILLS = [2, pytest.param(100, marks=pytest.mark.soak)]


def report(number: int):  # type: ignore[no-untyped-def]
    return parse(DecisionRequest, json.dumps(report_document(number)).encode()).report()


def test_a_restarted_server_goes_on_where_it_was(service_policy: Path, tmp_path: Path) -> None:
    database = str(tmp_path / "tandem.db")
    other = tmp_path / "other.safetensors"
    write_policy_file(other, build_policy_file(seed=1))
    with serving(service_policy, database) as server, Client(server.url) as client:
        point = OperatingPoint(preference=(1.0, 0.0, 0.0), max_latency_s=2.5)
        client.set_operating_point(point)
        first = client.decide(report(7))
        client.record_outcome(OutcomeRequest(round=7, duration_s=2.0, energy_j=5.0))
        assert server.terminate() == 0
    with serving(other, database, "--activate") as server, Client(server.url) as client:
        second = build_policy_file(seed=1).version
        assert client.versions().active == second
        server.kill()
    with serving(None, database) as server, Client(server.url) as client:  # the file is not needed again
        assert client.next_round() == 8
        assert client.operating_point().operating_point.model_dump() == point.document()
        assert client.operating_point().version == second
        assert client.decide(report(7)) == first
        assert client.rounds().rounds[0].outcome == {"duration_s": 2.0, "energy_j": 5.0, "accuracy": None, "late": []}
        assert client.roll_back().active == first.version


def test_a_server_ends_in_order_while_events_are_followed(service_policy: Path, tmp_path: Path) -> None:
    with serving(service_policy, str(tmp_path / "tandem.db")) as server, Client(server.url) as client:
        seen: list[dict[str, object]] = []
        connected = threading.Event()

        def follow() -> None:
            with Client(server.url) as own:
                for event in own.events(after="0.0.0", timeout_s=30):
                    seen.append(event)
                    connected.set()

        reader = threading.Thread(target=follow)
        reader.start()
        assert connected.wait(20)  # the version's publication
        client.decide(report(0))
        client.record_outcome(OutcomeRequest(round=0, duration_s=2.0, energy_j=5.0))
        deadline = time.monotonic() + 20
        while not any(event["kind"] == "outcome" for event in seen) and time.monotonic() < deadline:
            time.sleep(0.05)
        started = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - started < 10
        reader.join(10)
        kinds = [event["kind"] for event in seen]
        assert kinds == ["version-published", "version-activated", "decision", "outcome"]


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.timeout(3600)
def test_kills_lose_and_change_nothing(kills: int, database: str, service_policy: Path) -> None:
    """kill -9 under load: what was acknowledged is stored, and a round is never answered differently."""
    rng = random.Random(kills)
    options = ("--port", free_port(), "--max-rate", 0)
    server = start_server(service_policy, database, *options)
    store = Store.open(database)
    try:
        with Load([server.url]) as load:
            for _ in range(kills):
                load.wait_for_more(rng.randrange(1, 20))
                time.sleep(rng.random() * 0.05)
                server.kill()
                server = start_server(service_policy, database, *options)
            load.wait_for_more(5)
        load.check(store)
        assert load.failures > 0
    finally:
        server.kill()
        store.close()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.timeout(1800)
def test_a_database_that_is_killed_means_503_until_it_returns(
    kills: int, postgres: PostgresServer, service_policy: Path
) -> None:
    database = postgres.create_database()
    with serving(service_policy, database, "--max-rate", 0) as server:
        with Load([server.url]) as load:
            for _ in range(kills):
                load.wait_for_more(5)
                postgres.kill()
                time.sleep(0.5)
                ready = httpx.get(f"{server.url}/readyz", timeout=20)
                assert (ready.status_code, ready.json()["database"]) == (503, "cannot be reached")
                assert httpx.get(f"{server.url}/healthz", timeout=20).status_code == 200
                postgres.start()
                load.wait_for_more(5, timeout_s=60)
        store = Store.open(database)
        load.check(store)
        store.close()
        assert load.statuses[503] > 0
        assert load.failures == 0  # the server itself always answered


def test_two_servers_share_a_database_and_one_takes_over(postgres: PostgresServer, service_policy: Path) -> None:
    database = postgres.create_database()
    with serving(service_policy, database) as first, serving(service_policy, database) as second:
        with Load([first.url, second.url]) as load:
            load.wait_for_more(30)
            decided = []
            for server in (first, second):
                text = httpx.get(f"{server.url}/metrics").text
                found = re.search(r"^tandem_decisions_total (.*)$", text, flags=re.MULTILINE)
                decided.append(float(found[1]) if found else 0)
            assert min(decided) > 0  # both take part
            with Client(first.url) as client, Client(second.url) as other:
                point = OperatingPoint(max_latency_s=1.5)
                client.set_operating_point(point)
                number = other.next_round() + 100
                assert other.decide(report(number)).operating_point.model_dump() == point.document()
            first.kill()
            load.wait_for_more(30)
        store = Store.open(database)
        load.check(store)
        store.close()


def test_tls_and_client_certificates(service_policy: Path, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    certificate, key = authority.issue("server")
    options = ("--tls-cert", certificate, "--tls-key", key)
    with serving(service_policy, str(tmp_path / "a.db"), *options) as server:
        assert server.url.startswith("https://127.0.0.1:")
        with Client(server.url, ca=authority.path) as client:
            assert client.decide(report(0)).round == 0
        with (
            Client(server.url, ca=stranger.path, repeats=0) as client,
            pytest.raises(ServiceError, match="certificate"),
        ):
            client.decide(report(1))
    with serving(None, str(tmp_path / "a.db"), *options, "--tls-client-ca", authority.path) as server:
        with Client(server.url, ca=authority.path, certificate=authority.issue("device")) as client:
            assert client.decide(report(1)).round == 1
        for wrong in (None, stranger.issue("intruder")):
            with Client(server.url, ca=authority.path, certificate=wrong, repeats=0) as client:
                with pytest.raises(ServiceError) as refused:
                    client.decide(report(2))
                assert refused.value.status is None


def test_tokens_on_the_command_line(service_policy: Path, tmp_path: Path) -> None:
    database = str(tmp_path / "tandem.db")
    refused = run_tandem("serve", service_policy, "--host", "0.0.0.0", "--database", database)
    assert refused.returncode == 2
    assert "other machines could use the service without a token" in refused.stderr
    wrong = run_tandem("token", "create", "--role", "admin", "--database", database)
    assert (wrong.returncode, "unknown role" in wrong.stderr) == (2, True)
    with serving(service_policy, database) as server:
        assert httpx.get(f"{server.url}/v1/front").status_code == 200
        created = run_tandem("token", "create", "--role", "operator", "--label", "night shift", "--database", database)
        token = created.stdout.strip()
        time.sleep(2)  # within which a running server knows it
        assert httpx.get(f"{server.url}/v1/front").status_code == 401
        with Client(server.url, token) as client:
            assert len(client.front().policies) == 3
            token_id = token.split(".")[0]
            listed = json.loads(run_tandem("token", "list", "--json", "--database", database).stdout)
            assert [(each["id"], each["role"], each["label"]) for each in listed] == [
                (token_id, "operator", "night shift")
            ]
            assert token.split(".")[1] not in json.dumps(listed)
            assert run_tandem("token", "revoke", token_id, "--database", database).returncode == 0
            time.sleep(2)
            with pytest.raises(ServiceError) as refusal:
                client.front()
            assert refusal.value.status == 401


UNUSABLE = [
    pytest.param(["--max-latency", "0.5"], "the best attainable is 1 s"),
    pytest.param(["--database", "postgresql://nobody@127.0.0.1:9/none"], "--database: cannot be used"),
    pytest.param(["--tls-cert", "a.pem"], "--tls-cert and --tls-key: give both", marks=pytest.mark.slow),
    pytest.param(["--tls-client-ca", "a.pem"], "--tls-client-ca: needs", marks=pytest.mark.slow),
    pytest.param(["--tls-cert", "a.pem", "--tls-key", "b.pem"], "cannot be read", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("options", "said"), UNUSABLE)
def test_options_that_cannot_be_used_are_refused(
    options: list[str], said: str, service_policy: Path, tmp_path: Path
) -> None:
    database = [] if "--database" in options else ["--database", str(tmp_path / "tandem.db")]
    result = run_tandem("serve", service_policy, *database, *options)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_refused(service_policy: Path, tmp_path: Path) -> None:
    with serving(service_policy, str(tmp_path / "a.db")) as server:
        port = server.url.rsplit(":", 1)[1]
        result = run_tandem("serve", service_policy, "--database", str(tmp_path / "b.db"), "--port", port)
        assert result.returncode == 2
        assert "choose another port" in result.stderr


def test_a_large_body_is_refused_without_being_held(service_policy: Path, tmp_path: Path) -> None:
    with serving(service_policy, str(tmp_path / "tandem.db")) as server, httpx.Client(base_url=server.url) as client:
        post(client, "/v1/decisions", report_document(0))
        before = _memory_mib(server.process.pid)
        response = post(client, "/v1/decisions", b'{"round": 1, "queue": [' + b"1," * 30_000_000 + b"1]}", timeout=60)
        assert response.status_code == 413
        assert _memory_mib(server.process.pid) < before + 30
        assert post(client, "/v1/decisions", report_document(1)).status_code == 200


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_memory_is_flat_over_ten_thousand_rounds(service_policy: Path, tmp_path: Path) -> None:
    database = str(tmp_path / "tandem.db")
    server = start_server(service_policy, database, "--max-rate", 0, "--keep-rounds", 2000)
    with httpx.Client(base_url=server.url) as client:
        used = []
        for number in range(10_000):
            assert post(client, "/v1/decisions", report_document(number)).status_code == 200
            outcome = {"round": number, "duration_s": 2.0, "energy_j": 5.0, "late": ["device-1"]}
            assert post(client, "/v1/outcomes", outcome).status_code == 200
            if number % 1000 == 999:
                used.append(_memory_mib(server.process.pid))
    server.kill()
    print("MiB after each thousand rounds:", used)
    assert used[-1] < used[1] + 5
    store = Store.open(database)
    assert len(store.list_rounds(limit=100_000)) < 4000
    store.close()


def _memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def test_a_run_is_served_without_jax_in_the_process(conditioned_run: Run, tmp_path: Path) -> None:
    with (
        serving(conditioned_run.folder, str(tmp_path / "tandem.db"), wait_s=60) as server,
        Client(server.url) as client,
    ):
        assert client.versions().active == export_run(conditioned_run).version
        assert "jaxlib" not in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_a_wrong_path_leaves_no_database(tmp_path: Path) -> None:
    database = tmp_path / "tandem.db"
    result = run_tandem("serve", tmp_path / "nothing.safetensors", "--database", database)
    assert result.returncode == 2
    assert "nothing.safetensors: is missing" in result.stderr
    assert list(tmp_path.iterdir()) == []
