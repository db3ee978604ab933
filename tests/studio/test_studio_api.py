"""The studio's answers are those of the commands, and it refuses other sites, other folders and wrong input."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tandem.runs import Run, simulate
from tandem.runs.simulation import simulate_histories
from tandem.scenario import load_scenario
from tandem.serving import read_policy_file

SEED = 2_000_000


def test_every_run_is_listed_and_a_damaged_one_has_a_sentence(page: TestClient) -> None:
    runs = {Path(run["name"]).name: run for run in page.get("/api/session").json()["runs"]}
    assert {name: run["status"] for name, run in runs.items()} == {
        "a": "finished", "b": "finished", "broken": "broken", "stopped": "unfinished"
    }  # fmt: skip
    assert "cut short" in runs["broken"]["problem"]
    again = {Path(run["name"]).name: run["id"] for run in page.get("/api/session").json()["runs"]}
    assert again == {name: run["id"] for name, run in runs.items()}


def test_a_front_has_every_policy_in_the_units_of_the_user(
    page: TestClient, ids: dict[str, str], conditioned_run: Run, population_run: Run
) -> None:
    for name, run in (("a", conditioned_run), ("b", population_run)):
        front = page.get(f"/api/runs/{ids[name]}/front").json()
        policies = front["policies"]
        columns = np.stack([policies["accuracy"], policies["latency_s"], policies["energy_j"]], axis=1)
        assert np.array_equal(columns, run.front.objectives)
        assert policies["within_tolerance"] == run.front.counted.tolist()
        assert (front["hypervolume"], front["conditioned"]) == (run.front.hypervolume, run.conditioned)
        assert policies["violation_rates"]["C3"] == [policy.violation_rates[2] for policy in run.front.policies]


@pytest.mark.parametrize(("name", "status", "says"), [("stopped", 409, "not finished"), ("broken", 422, "cut short")])
def test_a_run_without_a_front_is_refused_with_a_sentence(
    page: TestClient, ids: dict[str, str], name: str, status: int, says: str
) -> None:
    answer = page.get(f"/api/runs/{ids[name]}/front")
    assert answer.status_code == status
    assert says in answer.json()["detail"]


def test_the_command_on_the_screen_picks_the_policy_on_the_screen(
    page: TestClient, ids: dict[str, str], conditioned_run: Run
) -> None:
    slowest = float(conditioned_run.front.objectives[:, 1].max())
    body = {"preference": [1 / 3, 2 / 7, 8 / 21], "max_latency_s": slowest + 1e-9}
    answer = page.post(f"/api/runs/{ids['a']}/pick", json=body).json()
    program, *arguments = shlex.split(answer["command"])
    assert program == "tandem"
    command = [sys.executable, "-m", "tandem", *arguments, "--json"]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)
    assert printed["policy"]["index"] == answer["index"]
    assert printed["reason"] == answer["reason"]


def test_limits_that_no_policy_meets_are_explained(page: TestClient, ids: dict[str, str]) -> None:
    answer = page.post(f"/api/runs/{ids['a']}/pick", json={"max_latency_s": 0.001})
    assert answer.status_code == 422
    assert "the best attainable is" in answer.json()["detail"]


def test_a_preference_is_evaluated_on_the_spot(page: TestClient, ids: dict[str, str], conditioned_run: Run) -> None:
    weights = (0.6, 0.3, 0.1)
    answer = page.post(f"/api/runs/{ids['a']}/evaluate", json={"preference": weights}).json()
    simulated = simulate(conditioned_run.system(), conditioned_run.policy_for(weights), range(SEED, SEED + 8))
    assert answer["objectives"] == pytest.approx(simulated.objectives.mean(axis=0).tolist())
    assert answer["seeds"] == 8
    refused = page.post(f"/api/runs/{ids['b']}/evaluate", json={"preference": weights})
    assert (refused.status_code, "take no preference" in refused.json()["detail"]) == (409, True)


def test_an_episode_has_every_round_and_what_the_shield_changed(
    page: TestClient, ids: dict[str, str], conditioned_run: Run
) -> None:
    episode = page.get(f"/api/runs/{ids['a']}/episode", params={"policy": 0, "seed": 5}).json()
    [(state, outcome)] = simulate_histories(conditioned_run.system(), conditioned_run.policy(0), [5])
    assert np.array_equal(episode["train"], outcome.executed.train)
    assert np.array(episode["queue"]) == pytest.approx(state.queue, rel=1e-5)
    assert np.array(episode["energy_j"]) == pytest.approx(outcome.energy_j, rel=1e-5)
    assert episode["duration_s"] == pytest.approx(outcome.duration_s.tolist(), rel=1e-5)
    assert len(episode["devices"]) == 3
    assert np.shape(episode["changed"]) == np.shape(outcome.executed.train)
    assert episode["latency_quantiles"]["latency_s"][-1] == pytest.approx(
        float(outcome.latency_s[outcome.served > 0].max())
    )


def test_progress_of_a_training_ignores_a_row_that_is_being_written(
    page: TestClient, ids: dict[str, str], library_folder: Path
) -> None:
    path = library_folder / "stopped" / "progress.csv"
    whole = path.read_text()
    path.write_text(whole + "training,0,2,1")
    training = page.get(f"/api/runs/{ids['stopped']}/training").json()
    path.write_text(whole)
    assert training["status"] == "unfinished"
    assert len(training["rounds"]) == len(whole.splitlines()) - 1
    assert not training["own"]


def test_the_scenario_form_says_what_the_command_line_says(page: TestClient) -> None:
    form = page.get("/api/scenario").json()
    assert form["values"]["paper"]["fleet.size"] == str(load_scenario("paper").fleet.size)
    changes = {field["path"]: form["values"]["paper"][field["path"]] for field in form["fields"]}
    assert page.post("/api/scenario/check", json={"preset": "paper", "changes": changes}).json()["valid"]
    for changes in ({"fleet.size": "0"}, {"channel.bandwidth_hz": "0.2 MHz"}, {"rounds": "many"}):
        answer = page.post("/api/scenario/check", json={"preset": "paper", "changes": changes}).json()
        [(path, value)] = changes.items()
        command = [sys.executable, "-m", "tandem", "scenario", "check", "paper", "--set", f"{path}={value}"]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert printed.returncode == 2
        assert printed.stderr.strip() == f"tandem: {answer['problem']}"


def test_downloads_are_the_files_of_the_commands(
    page: TestClient, ids: dict[str, str], library_folder: Path, tmp_path: Path
) -> None:
    run = ids["a"]
    assert page.get(f"/api/runs/{run}/scenario.yaml").text == (library_folder / "a" / "scenario.yaml").read_text()
    rows = page.get(f"/api/runs/{run}/front.csv").text.splitlines()
    front = page.get(f"/api/runs/{run}/front").json()
    assert len(rows) == 1 + len(front["policies"]["index"])
    path = tmp_path / "policy.safetensors"
    path.write_bytes(page.get(f"/api/runs/{run}/policy.safetensors").content)
    assert len(read_policy_file(path).arrays["front.objectives"]) == len(front["policies"]["index"])


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "studio.example:8322"},
        {"Origin": "http://studio.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_other_sites_and_other_names_are_refused(page: TestClient, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/"), ("GET", "/api/session"), ("POST", "/api/trainings")):
        assert page.request(method, path, headers=headers).status_code == 403


def test_the_page_loads_nothing_from_elsewhere(page: TestClient) -> None:
    answer = page.get("/")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "Plotly" in page.get("/plotly.min.js").text
    assert "http://" not in answer.text
    assert "https://" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/runs/999/front", None, 404),
        ("GET", "/api/runs/..%2F..%2Fetc/front", None, 404),
        ("GET", "/static/../app.py", None, 404),
        ("GET", "/api/runs/0/episode", None, 422),
        ("GET", "/api/runs/0/episode?policy=100000", None, 422),
        ("GET", "/api/runs/0/episode?policy=x", None, 422),
        ("GET", "/api/runs/0/episode?policy=0&seed=-1", None, 422),
        ("POST", "/api/runs/0/pick", {"preference": [1, 2]}, 422),
        ("POST", "/api/runs/0/pick", {"preference": [1, -2, 1]}, 422),
        ("POST", "/api/runs/0/pick", {"preference": [0, 0, 0]}, 422),
        ("POST", "/api/runs/0/pick", {"colour": "blue"}, 422),
        ("POST", "/api/scenario/check", {"preset": "paper", "changes": {"name": "x" * 300}}, 422),
        ("POST", "/api/trainings", {"name": "x", "preset": "../paper"}, 422),
        ("POST", "/api/trainings", {"name": "x", "algorithm": "none"}, 422),
        ("POST", "/api/trainings", {"name": "x", "changes": {"extends": "/etc/passwd"}}, 422),
        ("POST", "/api/trainings", {"name": "..."}, 422),
        ("POST", "/api/trainings", {"name": "x", "seed": -1}, 422),
        ("DELETE", "/api/trainings/0", None, 404),
        ("GET", "/api/server", None, 404),
        ("PUT", "/api/server/operating-point", {"preference": [1, 1, 1]}, 404),
    ],
)
def test_wrong_requests_are_refused_with_a_sentence(
    page: TestClient, ids: dict[str, str], method: str, path: str, body: object, status: int
) -> None:
    answer = page.request(method, path, json=body)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_a_body_that_is_too_large_is_refused(page: TestClient, ids: dict[str, str]) -> None:
    answer = page.post("/api/runs/0/pick", content=b" " * (2**20 + 1), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
