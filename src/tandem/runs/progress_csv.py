"""progress.csv: a row for each chunk of training steps, appended when the chunk is done."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from types import TracebackType

from tandem.errors import InputError
from tandem.io.tables import write_text
from tandem.learn.train_loop import ChunkProgress

METRICS = tuple(field.name for field in dataclasses.fields(ChunkProgress) if field.name != "points")
COLUMNS = (*METRICS, "wall_s")


class ProgressTable:
    """The table of a run that continues after ``chunks`` chunks; rows of chunks that will run again are removed."""

    def __init__(self, path: Path, chunks: int) -> None:
        write_text(path, "".join(_lines(path, chunks)))
        self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def add(self, progress: ChunkProgress, wall_s: float) -> None:
        """Append a row and pass it to the operating system."""
        self._writer.writerow((*(getattr(progress, name) for name in METRICS), round(wall_s, 3)))
        self._file.flush()

    def __enter__(self) -> ProgressTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _lines(path: Path, chunks: int) -> list[str]:
    """Return the header and the rows to keep."""
    header = ",".join(COLUMNS) + "\n"
    if chunks == 0 or not path.exists():
        return [header]
    try:
        lines = path.read_text("utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        lines = []
    complete = [line for line in lines if line.endswith("\n")]
    if complete[:1] != [header] or len(complete) <= chunks:
        raise InputError(
            f"{path}: is cut short: {chunks} chunks are done, and it has {max(len(complete) - 1, 0)} rows; restore it, "
            "or delete it to continue without its beginning."
        )
    return complete[: chunks + 1]
