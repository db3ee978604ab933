"""``tandem reproduce`` as a real process: killed with its workers, interrupted, and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem.experiments.trial import RESULT

COMMAND = [sys.executable, "-m", "tandem", "reproduce", "top3", "--scale", "smoke", "--out", "out"]
ENVIRONMENT = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compilation dominates


@pytest.mark.slow
def test_killed_command_continues_where_it_stopped(tmp_path: Path) -> None:
    command = [*COMMAND, "--json", "--algorithm", "s-ppo"]
    process = subprocess.Popen(
        [*command, "--workers", "2", "--seeds-per-job", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=ENVIRONMENT,
    )
    deadline = time.monotonic() + 600
    while not (finished := sorted(tmp_path.glob(f"out/trials/*/{RESULT}"))):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    while True:  # its workers end with it
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    finished = sorted(tmp_path.glob(f"out/trials/*/{RESULT}"))
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in finished}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert f"2 trials, {len(finished)} of them already finished" in done.stderr
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in finished} == before
    document = json.loads(done.stdout)
    assert document["verdicts"].keys() == {"agrees", "disagrees", "open"}
    assert {"experiment", "stated", "found", "verdict"} <= document["statements"][0].keys()
    assert (tmp_path / "out" / "report.md").exists()


@pytest.mark.slow
def test_interrupted_command_reports_what_is_finished(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--algorithm", "s-ppo"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    while "2 trials, 0 of them already finished" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "0 of 2 trials are finished; the same command continues" in err
