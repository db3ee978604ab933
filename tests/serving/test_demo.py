"""The demo as real processes: a service, a simulated fleet that uses it over HTTP, and an end without leftovers."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from servers import free_port, serving

from tandem.cli.main import main
from tandem.serving.access import Role, create_token
from tandem.serving.client import Client
from tandem.serving.storage import Store

COMMAND = [sys.executable, "-m", "tandem"]
ROUND = re.compile(r"^round (\d+), version (\w{8}), trainers (\d)/3, duration [\d.]+ s, accuracy ", re.MULTILINE)


def start(*arguments: object, **options: object) -> "subprocess.Popen[str]":
    # In a group of its own, so that the test can send Ctrl-C as a terminal does: to the whole group.
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, text=True, process_group=0, **options)  # type: ignore[call-overload, no-any-return]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def fleet_of(pid: int) -> int:
    """The child that is the simulated fleet, beside the tuner."""
    (fleet,) = (child for child in children_of(pid) if b"demo-fleet" in Path(f"/proc/{child}/cmdline").read_bytes())
    return fleet


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_demo_plays_rounds_and_ctrl_c_ends_everything(service_policy: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TANDEM_DATABASE": str(tmp_path / "not-used.db")}
    policy = Path(shutil.copy(service_policy, tmp_path))
    demo = start(
        *("serve", policy, "--demo", "--port", 0, "--demo-pace", 0),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    assert demo.stdout is not None
    lines: list[str] = []
    for line in demo.stdout:
        lines.append(line)
        if line.startswith("round 20,"):
            break
    # The service does not import JAX.
    assert "jaxlib" not in Path(f"/proc/{demo.pid}/maps").read_text()
    child = fleet_of(demo.pid)
    every = children_of(demo.pid)
    assert len(every) == 2
    assert "jaxlib" in Path(f"/proc/{child}/maps").read_text()
    os.killpg(demo.pid, signal.SIGINT)
    rest = demo.stdout.read()  # to the end: no process has the pipe open any more
    text = "".join(lines) + rest
    assert demo.wait(30) == 0, text
    assert not any(map(is_running, every))
    assert "Traceback" not in text
    assert text.endswith("Stopped.\n")
    played = [int(number) for number, _, _ in ROUND.findall(text)]
    assert played == list(range(len(played)))
    assert f"{len(played)} rounds, 0 rounds in violation of a constraint." in rest
    assert not (tmp_path / "not-used.db").exists()
    store = Store.open(str(tmp_path / "policy-demo.db"))
    try:
        stored = store.list_rounds(None, 1000)
        assert len(stored) - len(played) in (0, 1)  # the last one may have been interrupted
        assert all(one.outcome is not None for one in stored[1:])
    finally:
        store.close()


def test_fleet_goes_on_after_a_restart_of_the_service(service_policy: Path, tmp_path: Path) -> None:
    database, port = str(tmp_path / "tandem.db"), free_port()
    with serving(service_policy, database, "--port", port) as server:
        fleet = start("demo-fleet", service_policy, "--url", server.url, "--pace", 0, stdout=subprocess.PIPE)
        assert fleet.stdout is not None
        while not fleet.stdout.readline().startswith("round 5,"):
            assert fleet.poll() is None
        server.kill()
        killed_at = time.monotonic()
    with serving(service_policy, database, "--port", port) as server, Client(server.url) as client:
        reached = client.next_round()
        while not fleet.stdout.readline().startswith(f"round {reached + 5},"):
            assert fleet.poll() is None
            assert time.monotonic() - killed_at < 60
        fleet.send_signal(signal.SIGINT)
        fleet.stdout.read()
        assert fleet.wait(30) == 0
        fleet.stdout.close()
        rounds = client.rounds(limit=500).rounds
        assert [one.round for one in rounds] == list(range(len(rounds)))[::-1]  # none is missing


@pytest.mark.slow
def test_demo_ends_if_its_fleet_ends(service_policy: Path, tmp_path: Path) -> None:
    database = str(tmp_path / "tandem.db")
    demo = start("serve", service_policy, "--demo", "--port", 0, "--database", database, stdout=subprocess.PIPE)
    assert demo.stdout is not None
    while not demo.stdout.readline().startswith("round 1,"):
        assert demo.poll() is None
    child = fleet_of(demo.pid)
    os.kill(child, signal.SIGKILL)
    assert demo.stdout.read().endswith("Stopped.\n")
    assert demo.wait(30) == 1
    demo.stdout.close()


OWN_TERMINAL = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.slow
def test_demo_shows_a_table_on_a_terminal(service_policy: Path, tmp_path: Path) -> None:
    """Ctrl-C is a character of the terminal here, which signals the foreground group alone."""
    command = ["serve", str(service_policy), "--demo", "--port", "0", "--database", str(tmp_path / "tandem.db")]
    terminal, side = pty.openpty()
    demo = subprocess.Popen(
        [*(sys.executable, "-c", OWN_TERMINAL), *COMMAND, *command],
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,  # its leader opens the terminal, which thereby controls it
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(side)
    seen = b""
    killer = threading.Timer(60, demo.kill)
    killer.start()
    try:
        interrupted = False
        while True:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # no process has the terminal open any more
                break
            seen += chunk
            if not interrupted and b"decisions/s" in seen:
                os.write(terminal, b"\x03")
                interrupted = True
    finally:
        killer.cancel()
    os.close(terminal)
    text = seen.decode()
    assert demo.wait(30) == 0, text
    for words in ("Serving fleet", "trainers", "Operating point: knee of the front", "Ctrl-C ends", "Stopped."):
        assert words in text
    assert "Traceback" not in text


def test_demo_refuses_what_its_fleet_does_not_have(
    service_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    database = str(tmp_path / "tandem.db")
    command = ["tandem", "serve", str(service_policy), "--demo", "--port", "0", "--database", database]
    store = Store.open(database)
    create_token(store, Role.DEVICE)
    store.close()
    for options, problem in ((["--tls-cert", "cert.pem"], "no certificate"), ([], "no token")):
        monkeypatch.setattr("sys.argv", command + options)
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert capsys.readouterr().err.startswith(f"tandem: --demo: its fleet has {problem}")


@pytest.mark.soak
def test_demo_trains_resumes_and_reuses_a_run(tmp_path: Path) -> None:
    def play(until: str, code: int = 0) -> str:
        demo = start(*("serve", "--demo", "--port", 0), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path)
        assert demo.stdout is not None
        killer = threading.Timer(600, demo.kill)
        killer.start()
        text = ""
        for line in demo.stdout:
            text += line
            if until in line and not text.count(until) > 1:
                os.killpg(demo.pid, signal.SIGINT)
        killer.cancel()
        demo.stdout.close()
        assert demo.wait(60) == code, text
        return text

    assert "the run is saved" in play(" rounds/s, hypervolume", code=130)
    trained = play("round 3,")
    assert "continuing after" in trained
    again = play("round 9,")
    assert "Training" not in again
    first = re.search(r"^round (\d+),", again, re.MULTILINE)
    assert first is not None
    assert int(first[1]) > 3  # the database goes on
    assert {"demo.db", "demo.safetensors"} <= {path.name for path in (tmp_path / "runs/demo").iterdir()}


def test_a_killed_demo_leaves_no_fleet(service_policy: Path, tmp_path: Path) -> None:
    with (
        serving(service_policy, str(tmp_path / "tandem.db"), "--demo") as server,
        httpx.Client(base_url=server.url) as http,
    ):
        deadline = time.monotonic() + 60
        while not http.get("/v1/rounds").json()["rounds"] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert http.get("/v1/rounds").json()["rounds"]
        child = children_of(server.process.pid)
        server.kill()
        while any(map(is_running, child)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(map(is_running, child))
