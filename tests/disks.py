"""Disks that are full or read-only, without a mount and without the rights of a superuser."""

import builtins
import errno
import io
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def _is_below(path: Any, folder: Path) -> bool:
    return isinstance(path, str | os.PathLike) and Path(path).absolute().is_relative_to(folder.absolute())


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Let files below a folder be created, and every byte written to them fail: 'No space left on device'."""
    real_open = io.open

    def open_full(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        full = _is_below(path, folder) and not set("wax+").isdisjoint(mode)
        return real_open("/dev/full" if full else path, mode, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", open_full)
        patch.setattr(io, "open", open_full)
        yield


@contextmanager
def short_files(length: int) -> Iterator[None]:
    """Let every file that becomes longer than this fail: 'File too large'."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only_disk(folder: Path) -> Iterator[None]:
    """Let nothing below a folder be created or opened for writing: 'Read-only file system'."""
    real_open, os_open, os_mkdir = io.open, os.open, os.mkdir

    def refuse(path: Any, writing: bool) -> None:
        if writing and _is_below(path, folder):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def open_file(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        refuse(path, not set("wax+").isdisjoint(mode))
        return real_open(path, mode, *arguments, **options)

    def open_descriptor(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        refuse(path, bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))
        return os_open(path, flags, *arguments, **options)

    def make_folder(path: Any, *arguments: Any, **options: Any) -> None:
        refuse(path, not Path(path).exists())
        os_mkdir(path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", open_file)
        patch.setattr(io, "open", open_file)
        patch.setattr(os, "open", open_descriptor)
        patch.setattr(os, "mkdir", make_folder)
        yield
