"""A cache of finished grid cells, so that an interrupted measurement continues where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.io.atomic import atomic_write

Values = NDArray[np.float64]


class MeasurementCache:
    """The accuracies of finished cells, in a file if a path is given.

    The file of another measurement, which has another title, is ignored and overwritten.
    """

    def __init__(self, path: Path | None = None, title: str = "") -> None:
        self._path, self._title = path, title
        stored = _read(path) if path is not None else {}
        self._cells: dict[str, list[float]] = stored["cells"] if stored.get("title") == title else {}

    def get(self, cell: tuple[float, ...]) -> Values | None:
        """Return the accuracies of a cell, or None if it was not measured yet."""
        values = self._cells.get(str(cell))
        return None if values is None else np.asarray(values, np.float64)

    def add(self, cell: tuple[float, ...], values: Values) -> None:
        """Store the accuracies of a cell."""
        self._cells[str(cell)] = values.tolist()
        if self._path is not None:
            with atomic_write(self._path) as temporary:
                temporary.write_text(json.dumps({"title": self._title, "cells": self._cells}), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    """Read the file of a cache; returns an empty dict if it is missing or damaged, so that all cells are measured."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}
