"""The studies and benchmarks start."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path.relative_to(ROOT) for folder in ("studies", "benchmarks") for path in (ROOT / folder).glob("*.py")
)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_script_shows_its_help(script: Path) -> None:
    done = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"python {script}" in done.stdout  # the command that its docstring shows


@pytest.mark.slow
def test_study_of_learning_rates_runs() -> None:
    command = [sys.executable, "studies/learning_rates.py", "--rates", "0", "0.3", "--rounds", "10", "--seeds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4
