"""JSON, CSV and Parquet files, written atomically."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tandem.io.atomic import atomic_write

Table = Mapping[str, NDArray[Any]]  # columns of equal length, by name


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document. Raises ValueError for NaN and infinity, which JSON does not have."""
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file; lines end in a line feed."""
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_parquet(path: Path, tables: Iterable[Table]) -> None:
    """Write tables of the same columns one after the other to a Parquet file; needs the package pyarrow."""
    import pyarrow
    import pyarrow.parquet

    with atomic_write(path) as temporary:
        writer = None
        try:
            for table in tables:
                batch = pyarrow.table(dict(table))
                writer = writer or pyarrow.parquet.ParquetWriter(temporary, batch.schema)
                writer.write_table(batch)
        finally:
            if writer is not None:
                writer.close()
