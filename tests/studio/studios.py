"""A real studio process and a real browser for tests."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# As root in a container there is no sandbox, and no graphics card; nothing is looked up outside of this machine.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def find_browser() -> str:
    """Return the path of a browser, or skip the test; where one is required, the test fails instead."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is not None:
        return found
    reason = "there is no Chromium; install one (Debian: apt-get install chromium) to test the studio in a browser"
    if os.environ.get("TANDEM_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class RunningStudio:
    """A process of ``tandem studio``."""

    process: subprocess.Popen[str]
    url: str


@contextlib.contextmanager
def studio(*arguments: object, folder: Path, token: str | None = None) -> Iterator[RunningStudio]:
    """Start a studio on a free port in a folder, wait until it answers, and end it as Ctrl-C does."""
    environment = {**os.environ} | ({} if token is None else {"TANDEM_TOKEN": token})
    process = subprocess.Popen(
        [sys.executable, "-m", "tandem", "studio", *map(str, arguments), "--port", "0", "--no-open"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "The studio is at " in line
        yield RunningStudio(process, line.split(" at ")[1].split(" ")[0])
    finally:
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait(10)
