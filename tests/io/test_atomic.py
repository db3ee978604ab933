"""Files are written completely or not at all, and only over regular files."""

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from disks import read_only_disk
from tandem.errors import InputError
from tandem.io.atomic import atomic_write, explain_write_errors, folder_name, replace_results, results_folder
from tandem.io.tables import write_csv, write_json, write_text


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")

    def fail() -> None:
        with atomic_write(tmp_path / "a.txt") as temporary:
            temporary.write_text("half of it")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert contents(tmp_path) == {"a.txt": "old"}


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/target")
    for text in ("created through the link", "replaced through the link"):
        write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert contents(tmp_path / "folder") == {"target": text}


def refuse(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        write_text(path, "text")
    return str(caught.value)


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(str(tmp_path / "socket"))
    for name, kind in (("pipe", "a pipe"), ("folder", "a folder"), ("null", "a device"), ("socket", "a socket")):
        assert f"{tmp_path / name}: is {kind}" in refuse(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert "/dev/null: is a device" in refuse(Path("/dev/null"))
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def writing(name: str) -> str:
    return f"from tandem.io.tables import write_text; from pathlib import Path; write_text(Path({name!r}), 'text')"


@pytest.mark.parametrize("name", ["/dev/stdout", "out.txt"])
def test_the_file_that_is_printed_to_is_not_replaced(name: str, tmp_path: Path) -> None:
    with (tmp_path / "out.txt").open("w") as out:
        command = [sys.executable, "-c", writing(name)]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert f"{name}: is the file that this command prints to" in done.stderr
    assert contents(tmp_path) == {"out.txt": ""}


def test_standard_output_in_a_pipe_is_refused(tmp_path: Path) -> None:
    program = (
        "from tandem.io.tables import write_text; from pathlib import Path; write_text(Path('/dev/stdout'), 'text')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "/dev/stdout: is a pipe" in done.stderr


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.ENOSPC, "make room"), (errno.EACCES, "another folder"), (errno.EROFS, "another folder")]
)
def test_write_errors_become_one_sentence(number: int, fix: str) -> None:
    sentence = rf"^here: cannot be written \({os.strerror(number)}\); .*{fix}.*\.$"
    with pytest.raises(InputError, match=sentence), explain_write_errors(Path("here")):
        raise OSError(number, os.strerror(number), "a temporary file")
    with (
        pytest.raises(InputError, match=r"; make .*, then resume\.$"),
        explain_write_errors(Path("here"), then="resume"),
    ):
        raise OSError(number, os.strerror(number))
    with (
        pytest.raises(InputError, match="allow larger files there, then resume"),
        explain_write_errors(Path("here"), then="resume"),
    ):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    with pytest.raises(InputError, match=r"\(of another kind\)"), explain_write_errors(Path("here")):
        raise OSError("of another\nkind")


def test_results_replace_earlier_ones_together(tmp_path: Path) -> None:
    for name in ("result", "trace", "mine"):
        (tmp_path / name).write_text("old")

    def fill_the_disk() -> None:
        with replace_results(tmp_path, ("result", "trace")) as staging:
            (staging / "result").write_text("new")
            raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(OSError, match="space"):
        fill_the_disk()
    assert contents(tmp_path) == {"result": "old", "trace": "old", "mine": "old"}
    with replace_results(tmp_path, ("result", "trace")) as staging:
        (staging / "result").write_text("new")
    assert contents(tmp_path) == {"result": "new", "mine": "old"}


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_results_replace_only_regular_files(tmp_path: Path, kind: str) -> None:
    trace = tmp_path / "trace"
    (tmp_path / "result").write_text("old")
    if kind == "folder":
        trace.mkdir()
    elif kind == "pipe":
        os.mkfifo(trace)
    else:
        trace.symlink_to("result" if kind == "link" else "nowhere")
    before = trace.lstat()
    with (
        pytest.raises(InputError, match="trace: is not a regular file; move it away"),
        replace_results(tmp_path, ("result", "trace")),
    ):
        pass
    assert trace.lstat() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result", "trace"]


def test_names_of_folders_are_plain() -> None:
    assert folder_name("../my fleet: [2]/é") == "..-my-fleet-2-é"


def test_a_result_folder_is_new_empty_or_of_the_same_kind(tmp_path: Path) -> None:
    results_folder(tmp_path / "new" / "folder", "result.json")
    (tmp_path / "new" / "folder" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="files of something else"):
        results_folder(tmp_path / "new" / "folder", "result.json")
    (tmp_path / "new" / "folder" / "result.json").write_text("{}")
    results_folder(tmp_path / "new" / "folder", "result.json")
    with pytest.raises(InputError, match="Not a directory"):
        results_folder(tmp_path / "new" / "folder" / "mine.txt" / "below", "result.json")
    for name in ("pipe", "link"):
        os.mkfifo(tmp_path / name) if name == "pipe" else (tmp_path / name).symlink_to("nowhere")
        with pytest.raises(InputError, match=f"{name}: is not a folder; choose another name with --out"):
            results_folder(tmp_path / name, "result.json")
    with (
        read_only_disk(tmp_path),
        pytest.raises(InputError, match=r"folder: .*\(Read-only file system\); choose anoth"),
    ):
        results_folder(tmp_path / "new" / "folder", "result.json")


def test_tables(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", ("name", "value"), [("x, y", 1), ("z", None)])
    assert (tmp_path / "a.csv").read_bytes() == b'name,value\n"x, y",1\nz,\n'
    write_json(tmp_path / "a.json", {"a": [1.5]})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": [\n    1.5\n  ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert "1.5" in (tmp_path / "a.json").read_text()
