"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.errors import InputError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which takes the place of ``path`` when the block ends well."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
