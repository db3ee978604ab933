"""progress.csv: a row for each chunk of training steps, written as it comes."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from types import TracebackType

from tandem.errors import InputError
from tandem.io.atomic import atomic_write
from tandem.learn.train_loop import Progress

COLUMNS = (*(field.name for field in dataclasses.fields(Progress)), "wall_s")


class ProgressTable:
    """The table of a run that goes on after ``chunks`` chunks; rows of chunks that will be run again are dropped."""

    def __init__(self, path: Path, chunks: int) -> None:
        lines = _lines(path, chunks)
        with atomic_write(path) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
        self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def add(self, progress: Progress, wall_s: float) -> None:
        """A row more, on its way to the disk when this returns."""
        self._writer.writerow((*dataclasses.astuple(progress), round(wall_s, 3)))
        self._file.flush()

    def __enter__(self) -> ProgressTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _lines(path: Path, chunks: int) -> list[str]:
    """The header and the rows to keep."""
    header = ",".join(COLUMNS) + "\n"
    if chunks == 0 or not path.exists():
        return [header]
    try:
        lines = path.read_text("utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        lines = []
    whole = [line for line in lines if line.endswith("\n")]
    if whole[:1] != [header] or len(whole) <= chunks:
        raise InputError(
            f"{path}: is cut short, for training stands {chunks} chunks after its start and it has "
            f"{max(len(whole) - 1, 0)} rows; restore it, or delete it to go on without its beginning."
        )
    return whole[: chunks + 1]
