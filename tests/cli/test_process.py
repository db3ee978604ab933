"""The command line as a real process: streams, exit codes, and an interruption in the middle."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "tandem"]


def test_json_alone_on_stdout(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "simulate", "paper", "--policy", "threshold", "--seeds", "3", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["policy"] == "threshold"
    assert "Simulating" in done.stderr  # progress, where it does not disturb


def test_a_mistake_is_no_stack_trace(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "simulate", "nowhere.yaml"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("tandem: nowhere.yaml: ")
    assert done.stderr.count("\n") == 1


def test_interrupted_leaves_no_half_written_file(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "simulate", "--seeds", "2000", "--out", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    while "writing the trace" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.5)
    for _ in range(5):  # Python loses an interruption that falls into a callback of the garbage collector
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            break
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err or "Exception ignored in" in err
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left <= {"simulation.json", "scenario.yaml", "trace.csv", "figure.png"}  # whole: they are moved into place
    again = subprocess.run([*COMMAND, "simulate", "--seeds", "1", "--out", "run"], cwd=tmp_path, timeout=120)
    assert again.returncode == 0  # what was interrupted can be run again, in the same folder


def test_help_needs_no_jax() -> None:
    probe = "import sys; sys.argv = ['tandem', '--help']\nfrom tandem.cli.main import app\n"
    probe += "try: app()\nexcept SystemExit: pass\nassert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "simulate" in done.stdout


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_output_to_a_full_disk_is_one_sentence(more: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*COMMAND, "scenario", "list", *more]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("tandem: the output: cannot be read or written (No space left on device); make room")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", ["PYTHONIOENCODING=ascii {}", "{} >&-", "{} 2>&-"])
def test_output_in_another_encoding_or_closed(shell: str) -> None:
    command = shell.format(" ".join([*COMMAND, "scenario", "show", "paper", "--devices"]))
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("device-9" in done.stdout) is (">&-" not in shell or "2>&-" in shell)
