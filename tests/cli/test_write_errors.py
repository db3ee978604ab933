"""Places that cannot be written to: one sentence, exit code 2, and everything that was there before still is."""

import os
import stat
from pathlib import Path

import pytest

from disks import full_disk, read_only_disk

SIMULATE = ("simulate", "--rounds", "3", "--seeds", "1", "--out")
TRAIN = ("train", "--set", "fleet.size=3", "--out")


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def sentence(result: tuple[int, str, str]) -> str:
    """The last line on stderr, after a check that it is the only sentence."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    *progress, last = err.splitlines()
    assert not any(line.startswith("tandem: ") for line in progress)
    assert last.startswith("tandem: ")
    return last.removeprefix("tandem: ")


def test_simulate_to_a_full_disk_keeps_the_earlier_results(tandem) -> None:
    assert tandem(*SIMULATE, "here")[0] == 0
    before = contents("here")
    assert {"trace.csv", "figure.png"} <= before.keys()
    with full_disk(Path()):
        said = sentence(tandem(*SIMULATE, "here", "--first-seed", "7"))
    assert said == "here: cannot be written (No space left on device); make room on the disk and try again."
    assert contents("here") == before


def test_train_to_a_full_disk(tandem) -> None:
    with full_disk(Path()):
        said = sentence(tandem(*TRAIN, "here"))
    assert said == "here: cannot be written (No space left on device); make room on the disk, then train again."
    assert contents("here") == {}


@pytest.mark.parametrize("command", [SIMULATE, TRAIN])
@pytest.mark.parametrize("exists", [True, False])
def test_a_read_only_disk(tandem, command: tuple[str, ...], exists: bool) -> None:
    if exists:
        Path("here").mkdir()
    with read_only_disk(Path()):
        said = sentence(tandem(*command, "here"))
    assert said == "here: cannot be written (Read-only file system); choose another folder with --out."
    assert [path.name for path in Path().iterdir()] == ["here"] * exists


@pytest.mark.parametrize("command", [SIMULATE, TRAIN, ("calibrate", "--out")])
def test_a_folder_for_results_replaces_nothing_else(tandem, command: tuple[str, ...]) -> None:
    os.mkfifo("pipe")
    Path("link").symlink_to("nowhere")
    for name in ("pipe", "link", "/dev/null"):
        assert sentence(tandem(*command, name)) == f"{name}: is not a folder; choose another name with --out."
    assert Path("link").is_symlink()
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_pretrain_replaces_only_regular_files(tandem) -> None:
    os.mkfifo("pipe")
    Path("link").symlink_to("nowhere/model")
    command = ("pretrain", "digits", "--epochs", "1", "--out")
    assert sentence(tandem(*command, "pipe")).startswith("--out pipe: is a pipe; ")
    assert sentence(tandem(*command, "/dev/null")).startswith("--out /dev/null: is a device; ")
    assert "there is no folder" in sentence(tandem(*command, "link"))
    assert sorted(path.name for path in Path().iterdir()) == ["link", "pipe"]


def test_pretrain_to_a_full_disk(tandem) -> None:
    with full_disk(Path()):
        said = sentence(tandem("pretrain", "digits", "--epochs", "1", "--out", "model"))
    assert said.startswith("model: cannot be written (No space left on device); make room on the disk, then run the")
    assert list(Path().iterdir()) == []
