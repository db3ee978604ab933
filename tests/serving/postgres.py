"""A real PostgreSQL server for tests, on a Unix socket in a folder of its own."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest

MISSING = "PostgreSQL is not installed (Debian: apt-get install postgresql)"


def find_programs() -> Path | None:
    """Return the folder of ``initdb`` and ``pg_ctl``; Debian keeps them out of PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    places += [Path(on_path).resolve().parent] if on_path else []
    return next((place for place in places if (place / "pg_ctl").exists()), None)


class PostgresServer:
    """A database cluster that can be stopped, killed and started again."""

    def __init__(self) -> None:
        programs = find_programs()
        if programs is None:
            pytest.skip(MISSING)
        self._programs = programs
        # PostgreSQL refuses to run as root. Its socket's path must be short, so it is not below pytest's folder.
        self._user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self.folder = Path(tempfile.mkdtemp(prefix="tandem-pg-"))
        self._data = self.folder / "data"
        if self._user:
            shutil.chown(self.folder, "postgres")
        self._run("initdb", "-D", self._data, "-A", "trust", "--no-sync", "-U", "tandem", "-E", "UTF8")
        self.start()

    def start(self) -> None:
        settings = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c max_connections=50"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", self.folder / "log", "-o", settings, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "fast", "stop")

    def kill(self) -> None:
        """Kill the server with its children, and wait until it has gone: a new one refuses to start before."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            os.kill(each, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{each}").exists() for each in (pid, *children)) and time.monotonic() < deadline:
            time.sleep(0.02)

    def create_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self._run("createdb", "-h", self.folder, "-U", "tandem", name)
        return f"postgresql://tandem@/{name}?host={self.folder}"

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it is not running
            self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self._user, str(self._programs / program), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)
