"""The readers of CIFAR-10, on tiny files of both forms; on a real copy where TANDEM_CIFAR10 names its folder."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from tandem.errors import InputError
from tandem.federated.data import LabelledImages
from tandem.federated.tasks.base import Cifar10
from tandem.federated.tasks.cifar10 import find_cifar10
from tandem.federated.tasks.pretraining import accuracy_on, fingerprint, read_pretrained
from tandem.io.array_file import read_arrays
from tandem.scenario.plugins import Cifar10TaskConfig


def both(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    files = find_cifar10(folder)
    return files.read_train(), files.read_test()


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), draw.integers(0, 10, count).tolist()


def encoded(image: np.ndarray, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, form)
    return file.getvalue()


def write_batches(folder: Path) -> dict[str, tuple[np.ndarray, list[int]]]:
    written = {}
    for seed, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        images, labels = pictures(3, seed)
        fields = {b"batch_label": b"a batch", b"labels": labels, b"data": images.transpose(0, 3, 1, 2).reshape(3, -1)}
        (folder / name).write_bytes(pickle.dumps(fields, protocol=2))
        written[name] = images, labels
    return written


def write_parquet(path: Path, images: np.ndarray, labels: Any, column: str = "img") -> None:
    table: Any
    if column == "img.bytes":
        table = {"img.bytes": [encoded(image) for image in images], "label": labels}
    else:
        table = {column: [{"bytes": encoded(image), "path": None} for image in images], "label": labels}
    pyarrow.parquet.write_table(pyarrow.table(table), path)


@pytest.mark.parametrize("unpacked", ["", "cifar-10-batches-py"])
def test_python_batches(tmp_path: Path, unpacked: str) -> None:
    folder = tmp_path / unpacked
    folder.mkdir(exist_ok=True)
    written = write_batches(folder)
    train, test = both(tmp_path)
    np.testing.assert_array_equal(train.images[3:6], written["data_batch_2"][0])
    assert train.labels[3:6].tolist() == written["data_batch_2"][1]
    np.testing.assert_array_equal(test.images, written["test_batch"][0])
    assert (len(train), len(test)) == (15, 3)


@pytest.mark.parametrize("column", ["img", "img.bytes", "image"])
def test_parquet(tmp_path: Path, column: str) -> None:
    for seed, part in enumerate(("train", "test")):
        write_parquet(tmp_path / f"{part}.parquet", *pictures(4, seed), column=column)
    train, test = both(tmp_path)
    for found, seed in ((train, 0), (test, 1)):
        images, labels = pictures(4, seed)
        np.testing.assert_array_equal(found.images, images)
        assert found.labels.tolist() == labels
        assert found.images.dtype == np.uint8


def test_the_digest_differs_between_data_and_decodes_no_images(tmp_path: Path) -> None:
    here, there, other = (tmp_path / name for name in ("here", "there", "other"))
    for folder in (here, there, other):
        folder.mkdir()
        for seed, part in enumerate(("train", "test")):
            write_parquet(folder / f"{part}.parquet", *pictures(4, seed + (part == "test" and folder == other)))
    digests = [find_cifar10(folder).digest() for folder in (here, there, other)]
    assert digests[0] == digests[1] != digests[2]
    (here / "train.parquet").write_bytes(b"no image at all")
    assert find_cifar10(here).digest() != digests[0]


def refused(folder: Path, pattern: str) -> None:
    with pytest.raises(InputError, match=pattern) as caught:
        both(folder)
    assert str(folder) in str(caught.value)
    assert str(caught.value).endswith(".")


def test_an_incomplete_or_damaged_folder_is_refused_with_its_path(tmp_path: Path) -> None:
    refused(tmp_path / "none", r"is not a folder; accuracy\.task\.path")
    refused(tmp_path, "holds no train images")
    images, labels = pictures(2)
    write_parquet(tmp_path / "train.parquet", images, labels)
    refused(tmp_path, "holds no test images")
    (tmp_path / "test.parquet").write_bytes(b"PAR1 not really")
    refused(tmp_path, r"test\.parquet.*Parquet")
    write_parquet(tmp_path / "test.parquet", images[:, :16], labels)
    refused(tmp_path, r"row 0: img is 32 by 16 pixels where CIFAR-10 has 32 by 32")
    write_parquet(tmp_path / "test.parquet", images, [3, 10])
    refused(tmp_path, "label .* from 0 to 9")
    pyarrow.parquet.write_table(pyarrow.table({"picture": [1], "label": [1]}), tmp_path / "test.parquet")
    refused(tmp_path, r"no column 'img' of structs with 'bytes'.*\(it has picture, label\)")
    pyarrow.parquet.write_table(pyarrow.table({"img": [{"bytes": b"no"}], "label": [1]}), tmp_path / "test.parquet")
    refused(tmp_path, r"row 0: img\.bytes")


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_damaged_batches_are_refused_and_run_nothing(tmp_path: Path) -> None:
    write_batches(tmp_path)
    batch = tmp_path / "data_batch_3"
    whole = batch.read_bytes()
    batch.write_bytes(whole[:100])
    refused(tmp_path, "is not a CIFAR-10 batch")
    batch.write_bytes(pickle.dumps(Evil()))
    refused(tmp_path, r"posix\.system")
    batch.write_bytes(pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]}))
    refused(tmp_path, r"data is uint8\[2, 5\]")
    batch.write_bytes(pickle.dumps({b"data": np.zeros((2, 3072), np.uint8)}))
    refused(tmp_path, "has no field 'labels'")
    batch.unlink()
    refused(tmp_path, "is missing")


real = pytest.mark.skipif("TANDEM_CIFAR10" not in os.environ, reason="TANDEM_CIFAR10 names no folder with CIFAR-10")


@real
def test_a_real_copy_is_read() -> None:
    train, test = both(Path(os.environ["TANDEM_CIFAR10"]))
    assert train.images.shape == (50_000, 32, 32, 3)
    assert test.images.shape == (10_000, 32, 32, 3)
    assert np.bincount(train.labels).tolist() == [5_000] * 10
    assert np.bincount(test.labels).tolist() == [1_000] * 10


@real
def test_the_shipped_model_has_the_stated_accuracy_and_fingerprint() -> None:
    task = Cifar10(Cifar10TaskConfig(path=Path(os.environ["TANDEM_CIFAR10"])))
    assert task.shipped is not None
    model, (_, note) = read_pretrained(task, task.shipped), read_arrays(task.shipped)
    # Rounding differs between processors, and with it a few answers of ten thousand.
    assert accuracy_on(model.model, task.data().requests) == pytest.approx(model.accuracy, abs=0.001)
    if find_cifar10(Path(os.environ["TANDEM_CIFAR10"])).train[0].suffix == ".parquet":  # the form it was made from
        assert note["fingerprint"] == fingerprint(task, task.data(), task.pretrain_config, seed=0)
