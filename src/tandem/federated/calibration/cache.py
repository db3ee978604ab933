"""Cells of a measurement, written down as they come: one that was killed goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.io.atomic import atomic_write

Values = NDArray[np.float64]


class MeasurementCache:
    """What was measured so far, in a file if there is a path. One of something else, by its title, is begun anew."""

    def __init__(self, path: Path | None = None, title: str = "") -> None:
        self._path, self._title = path, title
        written = _read(path) if path is not None else {}
        self._cells: dict[str, list[float]] = written["cells"] if written.get("title") == title else {}

    def get(self, cell: tuple[float, ...]) -> Values | None:
        """What was measured in a cell, if it was."""
        values = self._cells.get(str(cell))
        return None if values is None else np.asarray(values, np.float64)

    def add(self, cell: tuple[float, ...], values: Values) -> None:
        """Keep what was measured in a cell."""
        self._cells[str(cell)] = values.tolist()
        if self._path is not None:
            with atomic_write(self._path) as temporary:
                temporary.write_text(json.dumps({"title": self._title, "cells": self._cells}), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    """Nothing if there is none, or it is not what ``add`` writes: then it is measured once more."""
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}
