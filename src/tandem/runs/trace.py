"""The trace of a simulation: a row for each seed, round and device, as CSV or Parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.feel.constraints import CONSTRAINTS, Violations
from tandem.feel.state import FleetState, RoundOutcome
from tandem.io.atomic import atomic_write

Table = dict[str, NDArray[Any]]
FORMATS = ("csv", "parquet")


def trace_table(seed: int, names: Sequence[str], states: FleetState, outcome: RoundOutcome) -> Table:
    """One seed's history as columns of equal length, rounds outermost."""
    rounds, size = np.shape(states.queue)

    def by_round(values: Any) -> NDArray[Any]:
        return np.repeat(np.asarray(values), size)

    def by_device(values: Any) -> NDArray[Any]:
        return np.asarray(values).reshape(-1)

    return {
        "seed": np.full(rounds * size, seed),
        "round": by_round(states.round),
        "device": np.tile(np.asarray(names, dtype=object), rounds),
        "time_s": by_round(states.clock_s),
        "duration_s": by_round(outcome.duration_s),
        "train": by_device(outcome.executed.train),
        "trained": by_device(outcome.trained),
        "power_w": by_device(outcome.power_w),
        "frequency_hz": by_device(outcome.frequency_hz),
        "gain_db": 10 * np.log10(by_device(outcome.gain)),
        "queue": by_device(states.queue),
        "data": by_device(states.data),
        "data_age_s": by_device(states.data_age_s),
        "model_age_s": by_device(states.model_age_s),
        "accuracy": by_device(outcome.accuracy),
        **_estimated(outcome),
        "waiting_s": by_device(outcome.waiting_s),
        "inference_s": by_device(outcome.inference_s),
        "latency_s": by_device(outcome.latency_s),
        "compute_s": by_device(outcome.compute_s),
        "upload_s": by_device(outcome.upload_s),
        "energy_j": by_device(outcome.energy_j),
        "arrived": by_device(outcome.arrived),
        "served": by_device(outcome.served),
        "dropped": by_device(outcome.dropped),
        "converted": by_device(outcome.converted),
        "discarded": by_device(outcome.discarded),
        "violated": _broken(outcome.violations),
    }


def _estimated(outcome: RoundOutcome) -> Table:
    """The mapping's estimate, where accuracy is measured."""
    estimate = outcome.estimated_accuracy
    return {} if estimate is None else {"estimated_accuracy": np.asarray(estimate).reshape(-1)}


def _broken(violations: Violations) -> NDArray[Any]:
    """The constraints each device broke, such as 'C1 C5'; empty if none."""
    text = np.full(np.size(violations.c1), "", dtype=object)
    for name in CONSTRAINTS:
        broken = np.asarray(getattr(violations, name.lower())).reshape(-1)
        text[broken] = [f"{before} {name}".strip() for before in text[broken]]
    return text


def write_trace(path: Path, tables: Iterable[Table]) -> None:
    """Write tables one after the other; the ending of the path (.csv or .parquet) says how."""
    with atomic_write(path) as temporary:
        (_write_parquet if path.suffix == ".parquet" else _write_csv)(temporary, tables)


def _write_csv(path: Path, tables: Iterable[Table]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number, table in enumerate(tables):
            if number == 0:
                writer.writerow(table)
            writer.writerows(zip(*(_printable(column) for column in table.values()), strict=True))


def _printable(column: NDArray[Any]) -> list[Any]:
    """Six significant digits are what single precision holds."""
    if column.dtype == bool:
        return [int(value) for value in column]
    return [f"{value:.6g}" for value in column] if column.dtype.kind == "f" else column.tolist()


def _write_parquet(path: Path, tables: Iterable[Table]) -> None:
    check_format("parquet")
    import pyarrow
    import pyarrow.parquet

    writer = None
    try:
        for table in tables:
            batch = pyarrow.table(table)
            writer = writer or pyarrow.parquet.ParquetWriter(path, batch.schema)
            writer.write_table(batch)
    finally:
        if writer is not None:
            writer.close()


def check_format(kind: str) -> None:
    """Refuse a format that cannot be written here, before anything is simulated."""
    if kind not in FORMATS:
        raise InputError(f"--trace {kind}: is not a format; use one of {', '.join(FORMATS)}, or none.")
    if kind == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise InputError(
                "--trace parquet: needs pyarrow; install it with pip install 'tandem[parquet]' or use --trace csv."
            ) from None
