"""Arrays in a safetensors file, by name, with a note of metadata. This module does not import JAX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tandem.errors import InputError
from tandem.io.atomic import atomic_write, reason

Arrays = dict[str, NDArray[Any]]
# A single entry: safetensors writes several in an order that differs between processes.
NOTE = "tandem"
_FIX = "restore it from a copy, or train again into another folder"


def write_arrays(path: Path, arrays: Arrays, note: Mapping[str, Any], durable: bool = False) -> None:
    """Write arrays and a note; ``durable`` as in ``atomic_write``. Equal arrays give equal bytes."""
    with atomic_write(path, durable) as temporary:
        # Not by save_file, which reports a full disk with its own type of exception.
        temporary.write_bytes(save(arrays, metadata={NOTE: json.dumps(note)}))


def read_arrays(path: Path, fix: str = _FIX) -> tuple[Arrays, dict[str, Any]]:
    """Read the arrays and the note of a file. An error says what to do: ``fix``."""
    try:
        with safe_open(path, framework="numpy") as file:
            note = json.loads((file.metadata() or {})[NOTE])
            return {name: file.get_tensor(name) for name in file.keys()}, note  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"{path}: is missing; {fix}.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)}); check its permissions.") from None
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: is cut short or damaged; {fix}.") from None
