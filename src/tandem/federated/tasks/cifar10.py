"""Reader of CIFAR-10 from a folder: the original Python batches, or Parquet files with encoded images."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.federated.data import LabelledImages

SIDE, CLASSES = 32, 10
BATCHES = ([f"data_batch_{number}" for number in range(1, 6)], ["test_batch"])
FORMS = "the original Python batches (data_batch_1 to 5, test_batch) or train.parquet and test.parquet"


@dataclass(frozen=True)
class Cifar10Files:
    """The files of a copy of CIFAR-10, and the function that reads one."""

    train: Sequence[Path]
    test: Sequence[Path]
    read: Callable[[Path], LabelledImages]

    def read_train(self) -> LabelledImages:
        """Read the training images; this takes seconds if they are encoded."""
        return _concatenate([self.read(path) for path in self.train])

    def read_test(self) -> LabelledImages:
        """Read the test images."""
        return _concatenate([self.read(path) for path in self.test])

    def digest(self) -> str:
        """Hash the contents of the files, without decoding images; equal copies have equal digests."""
        digest = hashlib.sha256()
        for path in (*self.train, *self.test):
            digest.update(hashlib.sha256(_contents(path)).digest())
        return digest.hexdigest()


def find_cifar10(folder: Path) -> Cifar10Files:
    """Find the files of training and test images, in either form."""
    if not folder.is_dir():
        raise InputError(f"{folder}: is not a folder; accuracy.task.path must be a folder with {FORMS}.")
    unpacked = folder / "cifar-10-batches-py"  # the folder inside the archive
    home = unpacked if unpacked.is_dir() else folder
    if (home / BATCHES[1][0]).exists():
        train, test = ([home / name for name in names] for names in BATCHES)
        return Cifar10Files(train, test, _read_batch)
    train, test = (sorted(folder.glob(f"**/{part}*.parquet")) for part in ("train", "test"))
    if not (train and test):
        raise InputError(f"{folder}: holds no {'test' if train else 'train'} images; put {FORMS} there.")
    return Cifar10Files(train, test, _read_parquet)


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: is missing; unpack cifar-10-python.tar.gz again.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions.") from None


def _concatenate(parts: Sequence[LabelledImages]) -> LabelledImages:
    return LabelledImages(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))


class _PlainArrays(pickle.Unpickler):
    """An unpickler of plain arrays only, since an untrusted pickle can execute code."""

    ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it needs {module}.{name}, which is not part of an image batch")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_batch(path: Path) -> LabelledImages:
    contents = _contents(path)
    try:
        fields = _PlainArrays(io.BytesIO(contents), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise any exception
        raise InputError(f"{path}: is not a CIFAR-10 batch ({error}); unpack cifar-10-python.tar.gz again.") from None
    for field in (b"data", b"labels"):
        if not isinstance(fields, dict) or field not in fields:
            raise InputError(f"{path}: has no field {field.decode()!r}; unpack cifar-10-python.tar.gz again.")
    data = np.asarray(fields[b"data"])
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * SIDE * SIDE:
        raise InputError(
            f"{path}: data is {data.dtype}{list(data.shape)} where CIFAR-10 has uint8 rows of 3072; "
            "unpack cifar-10-python.tar.gz again."
        )
    images = data.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return LabelledImages(np.ascontiguousarray(images), _labels(fields[b"labels"], len(images), path, "labels"))


def _read_parquet(path: Path) -> LabelledImages:
    try:
        import pyarrow
        import pyarrow.parquet
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InputError(f"{path}: reading it needs {error.name}; pip install 'tandem[cifar10]'.") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({error}); copy the file again.") from None
    columns = {name: table.column(name) for name in table.column_names}
    encoded = columns.get("img.bytes")
    if encoded is None:
        pictures = columns.get("img", columns.get("image"))
        if (
            pictures is None
            or not pyarrow.types.is_struct(pictures.type)
            or "bytes" not in [f.name for f in pictures.type]
        ):
            raise InputError(
                f"{path}: has no column 'img' of structs with 'bytes' and no column 'img.bytes' "
                f"(it has {', '.join(columns)}); use the public Parquet version of CIFAR-10."
            )
        encoded = pyarrow.compute.struct_field(pictures, "bytes")
    if "label" not in columns:
        raise InputError(
            f"{path}: has no column 'label' (it has {', '.join(columns)}); use the public Parquet version of CIFAR-10."
        )
    images = np.empty((table.num_rows, SIDE, SIDE, 3), np.uint8)
    for row, value in enumerate(encoded):
        try:
            with Image.open(io.BytesIO(value.as_py() or b"")) as picture:
                pixels = np.asarray(picture.convert("RGB"))
        except (UnidentifiedImageError, OSError):
            raise InputError(f"{path}: row {row}: img.bytes is not a readable image; copy the file again.") from None
        if pixels.shape != images.shape[1:]:
            raise InputError(
                f"{path}: row {row}: img is {pixels.shape[1]} by {pixels.shape[0]} pixels where CIFAR-10 has 32 by 32; "
                "use the public Parquet version of CIFAR-10."
            )
        images[row] = pixels
    return LabelledImages(images, _labels(columns["label"].to_pylist(), len(images), path, "label"))


def _labels(values: Any, count: int, path: Path, field: str) -> NDArray[np.int32]:
    labels = np.asarray(values)
    valid = labels.dtype.kind in "iu" and labels.shape == (count,) and count > 0
    if not valid or labels.min() < 0 or labels.max() >= CLASSES:
        raise InputError(
            f"{path}: {field} must hold a number from 0 to 9 for each of {count} images; copy the file again."
        )
    return labels.astype(np.int32)
