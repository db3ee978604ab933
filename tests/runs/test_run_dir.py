"""Reading a run that is not as it should be: one sentence with the file and the fix, and nothing overwritten."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import tandem
from disks import read_only_disk
from small_runs import CONDITIONED
from tandem.errors import InputError
from tandem.io.array_file import read_arrays, write_arrays
from tandem.io.tree_io import flatten_arrays, restore_arrays
from tandem.runs import Run, is_locked, read_record, resume
from tandem.runs.migrations import FORMAT
from tandem.runs.run_dir import list_runs, new_run_dir, run_lock
from tandem.scenario import Scenario


@pytest.fixture
def finished(conditioned_run: Run) -> Path:
    return conditioned_run.folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def unfinished(run: Path) -> Path:
    """A copy that was killed after its last step."""
    edit(run / "run.json", status="running")
    (run / "front.json").unlink()
    (run / "policies.safetensors").unlink()
    return run


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}


def refusal(read: Callable[[Path], object], folder: Path) -> str:
    """The sentence that refuses, after a check that nothing was changed."""
    before = contents(folder) if folder.is_dir() else None
    with pytest.raises(InputError) as caught:
        read(folder)
    assert before is None or contents(folder) == before
    said = str(caught.value)
    assert said.endswith(".")
    assert said.isprintable()
    return said


def test_a_whole_run_is_read(run: Path) -> None:
    opened = tandem.open_run(str(run))
    assert opened.scenario.fleet.size == 3
    assert opened.front.hypervolume == read_record(run).hypervolume


def test_what_is_not_a_run(tmp_path: Path) -> None:
    assert "no such run" in refusal(tandem.open_run, tmp_path / "nowhere")
    assert "is not a run" in refusal(tandem.open_run, tmp_path)
    (tmp_path / "run.json").write_text("[1, 2]")
    assert "run.json" in refusal(tandem.open_run, tmp_path)
    (tmp_path / "run.json").write_text('{"name": "of something else"}')
    assert "has no format number" in refusal(tandem.open_run, tmp_path)


@pytest.mark.parametrize("name", ["run.json", "scenario.yaml", "front.json", "policies.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.98])
def test_a_file_cut_short(run: Path, name: str, share: float) -> None:
    whole = (run / name).read_bytes()
    (run / name).write_bytes(whole[: int(share * len(whole))])
    assert str(run / name) in refusal(tandem.open_run, run)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("name", "field"), [("front.json", "sparsity"), ("front.json", "accuracy"), ("run.json", "wall_s")]
)
def test_numbers_that_are_not_finite(run: Path, name: str, field: str, number: str) -> None:
    text = (run / name).read_text()
    (run / name).write_text(re.sub(rf'"{field}": [-+.e\d]+', f'"{field}": {number}', text, count=1))
    assert f"{run / name}: contains {number}" in refusal(tandem.open_run, run)
    assert [entry.status for entry in list_runs(run)] == ["broken"]


@pytest.mark.parametrize("name", ["scenario.yaml", "front.json", "policies.safetensors"])
def test_a_file_missing(run: Path, name: str) -> None:
    (run / name).unlink()
    said = refusal(tandem.open_run, run)
    assert f"{run / name}: is missing" in said


def test_the_scenario_of_another_fleet(run: Path) -> None:
    text = (run / "scenario.yaml").read_text()
    (run / "scenario.yaml").write_text(text.replace("size: 3", "size: 4"))
    said = refusal(tandem.open_run, run)
    assert "scenario.yaml: has 4 devices" in said
    assert "trained for 3" in said


def test_weights_of_another_network(run: Path) -> None:
    edit(run / "run.json", config={**read_record(run).config, "width": 16})
    said = refusal(tandem.open_run, run)
    assert "policies.safetensors" in said
    assert "run.json" in said


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(run: Path, value: float) -> None:
    arrays, note = read_arrays(run / "policies.safetensors")
    arrays["network.head.layers.0.weight"][0, 1, 2] = value
    write_arrays(run / "policies.safetensors", arrays, note)
    assert "network.head.layers.0.weight holds numbers that are not finite" in refusal(tandem.open_run, run)


def test_a_front_and_networks_that_do_not_belong_together(run: Path) -> None:
    document = json.loads((run / "front.json").read_text())
    document["policies"][0]["network"] = 7
    (run / "front.json").write_text(json.dumps(document))
    assert "front.json: names a network" in refusal(tandem.open_run, run)
    edit(run / "front.json", policies=[])
    assert "is not a front" in refusal(tandem.open_run, run)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("index", 99),
        ("objectives", None),
        ("objectives_half_width_95", {"accuracy": "wide", "latency_s": 0.1, "energy_j": 0.1}),
        ("violation_rate", 3),
        ("preference", {"accuracy": 1.0}),
    ],
)
def test_a_front_that_was_edited_badly(run: Path, field: str, value: object) -> None:
    document = json.loads((run / "front.json").read_text())
    document["policies"][0][field] = value
    (run / "front.json").write_text(json.dumps(document))
    assert "front.json: is not a front with policies" in refusal(tandem.open_run, run)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"algorithm": "magic"}, "algorithm magic"),
        ({"config": {"clip_eps": 5}}, "clip_eps is 5"),
        ({"config": {"clip_esp": 0.1}}, "clip_eps"),
        ({"seed": "many"}, "seed is 'many'"),
        ({"status": "confused"}, "status"),
        ({"versions": []}, "versions is []; write its fields"),
    ],
)
def test_a_record_that_was_edited_badly(run: Path, fields: dict[str, object], said: str) -> None:
    edit(run / "run.json", **fields)
    assert said in refusal(tandem.open_run, run)


def test_formats_of_other_versions_are_refused(run: Path) -> None:
    edit(run / "run.json", format=FORMAT + 1)
    assert "pip install --upgrade tandem" in refusal(tandem.open_run, run)
    edit(run / "run.json", format=0)
    assert "format 0" in refusal(tandem.open_run, run)
    assert "format 0" in refusal(resume, run)


def test_a_run_killed_before_its_front_was_written_gets_it(unfinished: Path, finished: Path) -> None:
    assert "is not finished" in refusal(tandem.open_run, unfinished)
    resume(unfinished)
    for name in ("front.json", "policies.safetensors", "progress.csv"):
        assert (unfinished / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "progress.csv", "scenario.yaml"])
def test_an_unfinished_run_with_a_file_cut_short(unfinished: Path, name: str) -> None:
    whole = (unfinished / name).read_bytes()
    (unfinished / name).write_bytes(whole[: len(whole) // 2])
    assert str(unfinished / name) in refusal(resume, unfinished)


def test_a_checkpoint_of_another_run(unfinished: Path) -> None:
    arrays, note = read_arrays(unfinished / "checkpoint.safetensors")
    write_arrays(unfinished / "checkpoint.safetensors", arrays, {**note, "stage": 3})
    assert "checkpoint.safetensors: its stage or chunk is out of range" in refusal(resume, unfinished)
    del arrays["key"]
    write_arrays(unfinished / "checkpoint.safetensors", arrays, note)
    assert "checkpoint.safetensors: key is missing" in refusal(resume, unfinished)


def test_rows_after_the_checkpoint_are_dropped(unfinished: Path, finished: Path) -> None:
    with (unfinished / "progress.csv").open("a") as file:
        file.write((unfinished / "progress.csv").read_text().splitlines()[-1] + "\ntraining,0,1")
    (unfinished / ".checkpoint.safetensors.x1.safetensors").write_text("half of it")
    resume(unfinished)
    assert (unfinished / "progress.csv").read_bytes() == (finished / "progress.csv").read_bytes()
    assert not list(unfinished.glob(".checkpoint*"))


def test_one_trainer_at_a_time(unfinished: Path) -> None:
    assert not is_locked(unfinished)
    with run_lock(unfinished):
        assert is_locked(unfinished)
        assert "another process is training" in refusal(resume, unfinished)


def test_a_new_run_takes_only_an_empty_folder_or_one_that_was_killed_as_it_began(tmp_path: Path) -> None:
    with new_run_dir(tmp_path / "new"):
        (tmp_path / "new" / "scenario.yaml").write_text("as the killed one left it")
    with new_run_dir(tmp_path / "new"):
        pass
    (tmp_path / "new" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="other files"), new_run_dir(tmp_path / "new"):
        pass


def test_a_read_only_disk_is_refused(read_only: Path, small: Scenario) -> None:
    sentence = r"^{}: cannot be written \(Read-only file system\); choose another folder with --out\.$"
    for folder in (read_only / "new", read_only):
        with pytest.raises(InputError, match=sentence.format(folder)):
            tandem.train(small, out=folder, options=CONDITIONED)
    assert list(read_only.iterdir()) == []


def test_a_run_on_a_read_only_disk_is_not_continued(unfinished: Path) -> None:
    with read_only_disk(unfinished):
        said = refusal(resume, unfinished)
    assert said == (
        f"{unfinished}: cannot be written (Read-only file system); make the folder writable, then continue with "
        f"'tandem train --resume {unfinished}'."
    )


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"(not a folder|Not a directory)\)?; choose another"), new_run_dir(folder):
            pass


def test_an_unfinished_run_is_not_begun_anew(unfinished: Path) -> None:
    with pytest.raises(InputError, match=r"unfinished run; .*'tandem train --resume"), new_run_dir(unfinished):
        pass


def test_trees_survive_their_file(tmp_path: Path) -> None:
    import jax

    tree = {"a": [np.arange(3.0, dtype=np.float32), "no array"], "keys": jax.random.split(jax.random.key(1), 2)}
    tree["count"] = np.array(7, np.int32)  # without an axis
    write_arrays(tmp_path / "tree.safetensors", flatten_arrays(tree), {"here": 1})
    arrays, note = read_arrays(tmp_path / "tree.safetensors")
    assert note == {"here": 1}
    assert set(load_file(tmp_path / "tree.safetensors")) == {"a.0", "keys", "count"}
    again = restore_arrays(tree, arrays, tmp_path)
    assert np.array_equal(again["a"][0], tree["a"][0])
    assert again["a"][1] == "no array"
    assert (again["count"].shape, int(again["count"])) == ((), 7)
    assert np.array_equal(jax.random.normal(again["keys"][1]), jax.random.normal(tree["keys"][1]))
    with pytest.raises(InputError, match=r"a\.0 is float32\[3\]"):
        restore_arrays({**tree, "a": [np.zeros(4, np.float32), 0]}, arrays, tmp_path)
