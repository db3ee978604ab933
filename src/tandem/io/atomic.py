"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.errors import InputError


@contextmanager
def atomic_write(path: Path, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces ``path`` when the block ends without an error.

    With ``durable`` the file and its directory entry are flushed to disk, so that the file survives a power cut.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        if durable:
            _flush(temporary)  # before it is moved: otherwise a power cut could leave an empty file in its place
        temporary.replace(path)
        if durable:
            _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def results_folder(folder: Path, *markers: str) -> Path:
    """Create a folder for results, or take one that an earlier run of the same kind (with a marker in it) made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = any(folder.iterdir()) and not any((folder / marker).exists() for marker in markers)
    except OSError as error:
        raise InputError(f"{folder}: cannot hold results ({error.strerror}); name another folder with --out.") from None
    if foreign:
        raise InputError(f"{folder}: holds files of something else; name an empty or a new folder with --out.")
    return folder
