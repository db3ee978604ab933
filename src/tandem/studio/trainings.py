"""Trainings that the page starts: `tandem train` in a process of its own, one at a time."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tandem.errors import InputError
from tandem.io.atomic import folder_name
from tandem.io.child_process import ChildProcess
from tandem.learn.registry import get_algorithm
from tandem.runs.run_dir import RECORD, continue_with
from tandem.studio.problems import NotFoundError, NotReadyError
from tandem.studio.scenarios import load_feasible, overrides

PRESET = "quick"


class Trainings:
    """The training that the page has started, if any, and the last messages of those before."""

    def __init__(self, out: Path) -> None:
        """Write runs below ``out``."""
        self.out = out
        self._child: ChildProcess | None = None
        self._folder: Path | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._messages: dict[Path, str] = {}

    def start(self, preset: str, changes: Mapping[str, str], algorithm: str, seed: int, name: str) -> tuple[Path, str]:
        """Start a training; return its folder and the command that does the same."""
        if self.running:
            raise NotReadyError(f"{self._folder}: is still being trained; wait for its end, or cancel it.")
        sets = overrides(preset, changes)
        load_feasible(preset, changes)
        get_algorithm(algorithm)
        folder = self.out / folder_name(name).strip(".-")
        if folder == self.out:
            raise InputError("name: is empty; write a name of letters, digits, '.', '_' and '-'.")
        if folder.exists():
            raise InputError(f"{folder}: exists already; choose another name.")
        arguments = ["train", preset, *(part for one in sets for part in ("--set", one))]
        arguments += ["--algorithm", algorithm, "--preset", PRESET, "--seed", str(seed), "--out", str(folder)]
        self._log.close()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._child, self._folder = ChildProcess(arguments, stdout=self._log, stderr=self._log), folder
        return folder, shlex.join(["tandem", *arguments])

    @property
    def running(self) -> bool:
        """Whether a training of this page runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def folder(self) -> Path | None:
        """The folder of the training that runs; None if none does."""
        return self._folder if self.running else None

    def owns(self, folder: Path) -> bool:
        """Return whether this page is training into the folder now."""
        return folder == self.folder

    def message(self, folder: Path) -> str | None:
        """Return why a training of this page ended early; None if it did not."""
        if self._child is not None and folder == self._folder and self._child.poll() not in (None, 0):
            self._messages.setdefault(folder, self._last_line())
        return self._messages.get(folder)

    def cancel(self, folder: Path) -> str:
        """End a training in order; what is done is kept."""
        if self._child is None or not self.owns(folder):
            raise NotFoundError(f"{folder}: is not being trained by this page.")
        self._child.close()
        kept = (folder / RECORD).exists()
        said = f"Cancelled; {continue_with(folder)}." if kept else "Cancelled before the training began."
        self._messages[folder] = said
        return said

    def close(self) -> None:
        """End the training that runs, if any."""
        if self._child is not None:
            self._child.close()
        self._log.close()

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].removeprefix("tandem: ") if lines else "The training ended early, without a message."
