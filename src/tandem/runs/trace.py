"""The trace of a simulation: a row for each seed, round and device, as CSV or Parquet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError, unknown_name
from tandem.feel.constraints import CONSTRAINTS, Violations
from tandem.feel.state import FleetState, RoundOutcome
from tandem.io.tables import Table, write_csv, write_parquet

FORMATS = ("csv", "parquet")


def trace_table(seed: int, names: Sequence[str], states: FleetState, outcome: RoundOutcome) -> dict[str, NDArray[Any]]:
    """Return the history of one seed as columns of equal length, with a row for each round and device."""
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
        "violated": describe_violations(outcome.violations),
    }


def _estimated(outcome: RoundOutcome) -> dict[str, NDArray[Any]]:
    """Return the column of the mapping's estimate, if accuracy is measured."""
    estimate = outcome.estimated_accuracy
    return {} if estimate is None else {"estimated_accuracy": np.asarray(estimate).reshape(-1)}


def describe_violations(violations: Violations) -> NDArray[Any]:
    """Return the constraints that each device violated, such as 'C1 C5'; empty if none."""
    text = np.full(np.size(violations.c1), "", dtype=object)
    for name in CONSTRAINTS:
        violated = np.asarray(getattr(violations, name.lower())).reshape(-1)
        text[violated] = [f"{before} {name}".strip() for before in text[violated]]
    return text


def write_trace(path: Path, tables: Iterable[Table]) -> None:
    """Write tables of the same columns one after the other, as CSV or Parquet by the ending of the path."""
    if path.suffix == ".parquet":
        write_parquet(path, tables)
        return
    remaining = iter(tables)
    first = next(remaining, {})
    columns = ([_printable(column) for column in table.values()] for table in itertools.chain([first], remaining))
    write_csv(path, first, itertools.chain.from_iterable(zip(*table, strict=True) for table in columns))


def _printable(column: NDArray[Any]) -> list[Any]:
    """Convert a column for a CSV file; floats have six significant digits, about as many as single precision."""
    if column.dtype == bool:
        return [int(value) for value in column]
    return [f"{value:.6g}" for value in column] if column.dtype.kind == "f" else column.tolist()


def check_format(kind: str) -> None:
    """Raise InputError for a format that is unknown, or whose package is not installed."""
    if kind not in FORMATS:
        raise InputError(f"--trace: {unknown_name('format', kind, (*FORMATS, 'none'))}")
    if kind == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise InputError(
                "--trace parquet: needs pyarrow; install it with 'pip install \"tandem[parquet]\"', or use --trace csv."
            ) from None
