"""Atomic writes: a file is written under a temporary name in the same folder, then moved to its final name."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.errors import InputError

STAGING = ".new."  # prefix of the folder in which a set of results is written before it is moved into place
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def atomic_write(path: Path, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces ``path`` when the block ends without an error.

    A symbolic link is followed: the file it points to is replaced, and the link stays. Raises InputError for a folder,
    a device, a pipe or a socket. With ``durable`` the file and its directory entry are flushed to disk, so that the
    file survives a power cut.
    """
    check_replaceable(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        if durable:
            _flush(temporary)  # before it is moved: otherwise a power cut could leave an empty file
        temporary.replace(target)
        if durable:
            _flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_replaceable(path: Path) -> None:
    """Raise InputError for a path that exists and is not a regular file, or that this process prints to."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: is {_kind(found.st_mode)}; name a regular file or a new one.")
    for stream in (1, 2):  # /dev/stdout, where the output is redirected to a file
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.fstat(stream)):
                raise InputError(f"{path}: is the file that this command prints to; name another file.")


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


@contextmanager
def explain_write_errors(place: Path, fix: str | None = None, *, then: str | None = None) -> Iterator[None]:
    """Convert an OSError of the block into an InputError that says what cannot be written, why, and what to do.

    The fix is derived from the error if none is given. ``then`` says how to continue in the same place.
    """
    try:
        yield
    except BrokenPipeError:  # of the terminal, not of a file
        raise
    except OSError as error:
        fix = fix or (_fix(error) if then is None else f"{_repair(error)}, then {then}")
        raise InputError(f"{place}: cannot be written ({reason(error)}); {fix}.") from None


def reason(error: OSError) -> str:
    """Return the system's message for an error, such as 'No space left on device'."""
    return os.strerror(error.errno) if error.errno else " ".join(str(error).split())


def _fix(error: OSError) -> str:
    if error.errno in NO_SPACE:
        return "make room on the disk and try again"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "create its folder first, or choose another"
    return "choose another folder"


def _repair(error: OSError) -> str:
    if error.errno in NO_SPACE:
        return "make room on the disk"
    return "allow larger files there" if error.errno == errno.EFBIG else "make the folder writable"


def check_writable_folder(folder: Path) -> None:
    """Raise the OSError, such as that of a read-only disk, that a new file in the folder would raise."""
    with tempfile.TemporaryFile(dir=folder):  # a superuser may write anywhere but on a read-only disk
        pass


def check_folder(folder: Path) -> None:
    """Refuse a path that exists and is not a folder, and a link to nothing."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise InputError(f"{folder}: is not a folder; choose another name with --out.")


def folder_name(text: str) -> str:
    """Return a text, such as the name of a scenario, with hyphens for what is not common in names of files."""
    return re.sub(r"[^\w.-]+", "-", text)


def results_folder(folder: Path, *markers: str) -> Path:
    """Create a folder for results, or accept one of an earlier run of the same kind, which contains a marker."""
    with explain_write_errors(folder, "choose another folder with --out"):
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in folder.iterdir() if not path.name.startswith(STAGING)]
        check_writable_folder(folder)
    if names and not any(marker in names for marker in markers):
        raise InputError(f"{folder}: holds files of something else; choose an empty or a new folder with --out.")
    return folder


@contextmanager
def replace_results(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Yield an empty folder to write results to; when the block ends without an error they move to ``folder``.

    Files called one of ``names`` that the block has not written are then removed: they belong to earlier results. After
    an error, such as a full disk, the earlier results are all still there. Links, folders and devices with one of these
    names are refused.
    """
    for path in (folder / name for name in names):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise InputError(f"{path}: is not a regular file; move it away, or choose another folder with --out.")
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))
    try:
        yield staging
        written = {path.name for path in staging.iterdir()}
        for name in written:
            (staging / name).replace(folder / name)
        for name in set(names) - written:
            (folder / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
