"""``tandem train``: what it prints and refuses and, in real processes, that an interrupted run can be resumed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TINY = "paper --set fleet.size=3 --set rounds=10 --train-set num_envs=2 --train-set update_epochs=1"
TINY += " --train-set num_minibatches=1 --train-set validation_episodes=1"
PC_PPO = f"{TINY} --budget 300 --train-set preference_divisions=2 --train-set width=8".split()
# Nine chunks of initialisation, two iterations of extension with two chunks each.
CMOPPO = f"{TINY} --algorithm c-moppo --budget 810 --train-set archive_size=4 --train-set num_preferences=2".split()
CMOPPO += ["--train-set", "num_extended=1", "--train-set", "extension_steps=2"]
CMOPPO += ["--train-set", "selection_episodes=1", "--train-set", "initialisation=0.5"]
DELIVERED = ("front.json", "policies.safetensors")


def process(folder: Path, *arguments: str, crash_at: tuple[str, int] | None = None) -> subprocess.CompletedProcess[str]:
    script = (
        ["-m", "tandem"] if crash_at is None else [str(Path(__file__).with_name("crash_at.py")), *map(str, crash_at)]
    )
    command = [sys.executable, *script, "train", *arguments]
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compilation dominates
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, env=environment)


def delivered(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in DELIVERED]


def progress(folder: Path) -> list[str]:
    """The rows of progress.csv, less the time."""
    return [row.rpartition(",")[0] for row in (folder / "progress.csv").read_text().splitlines()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = process(folder, *PC_PPO, "--json")
    assert done.returncode == 0, done.stderr
    done.folder = folder / "runs" / "paper-pc-ppo-default-seed0"
    return done


def test_json_alone_on_stdout(uninterrupted) -> None:
    document = json.loads(uninterrupted.stdout)
    assert document["folder"] == "runs/paper-pc-ppo-default-seed0"
    assert [document[name] for name in ("algorithm", "preset", "seed")] == ["pc-ppo", "default", 0]
    assert document["hypervolume"] > 0
    assert document["rounds"] <= 300
    assert document["rounds_per_s"] == pytest.approx(document["rounds"] / document["wall_s"])
    assert 0 <= document["violation_rate"] <= 1
    front = json.loads((uninterrupted.folder / "front.json").read_text())
    assert document["policies"] == len(front["policies"])
    assert [document[name] for name in ("hypervolume", "sparsity")] == [front["hypervolume"], front["sparsity"]]


def test_progress_is_plain_lines_on_stderr(uninterrupted) -> None:
    lines = uninterrupted.stderr.splitlines()
    for words in ("3 devices", "compiling training", "hypervolume", "rounds", "violations", "elapsed", "measuring"):
        assert any(words in line for line in lines), words
    assert len(lines) < 12
    assert "\x1b" not in uninterrupted.stderr


def test_every_core_is_a_jax_device(uninterrupted) -> None:
    record = json.loads((uninterrupted.folder / "run.json").read_text())
    assert record["device"] == {"platform": "cpu", "kind": "cpu", "count": os.cpu_count()}


def test_a_killed_and_an_interrupted_run_resume_to_the_same_result(uninterrupted, tmp_path: Path) -> None:
    killed = process(tmp_path, *PC_PPO, "--out", "run", crash_at=("half", 3))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert any(path.name.startswith(".checkpoint") for path in (tmp_path / "run").iterdir())
    interrupted = process(tmp_path, "--resume", "run", crash_at=("interrupt", 2))
    assert interrupted.returncode == 130, interrupted.stderr
    assert "continue with 'tandem train --resume run'" in interrupted.stderr
    assert "continuing after 40 of 240 rounds" in interrupted.stderr
    assert "Traceback" not in interrupted.stderr
    done = process(tmp_path, "--resume", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert delivered(tmp_path / "run") == delivered(uninterrupted.folder)
    assert progress(tmp_path / "run") == progress(uninterrupted.folder)
    assert not any(path.name.startswith(".c") for path in (tmp_path / "run").iterdir())


@pytest.mark.slow
def test_c_moppo_killed_in_its_second_stage_resumes_to_the_same_result(tmp_path: Path) -> None:
    assert process(tmp_path, *CMOPPO, "--out", "whole").returncode == 0
    moments = [("row", 10), ("front", 1)]  # in the second extension, between two files
    for number, moment in enumerate(moments):
        arguments = ["--resume", "run"] if number else [*CMOPPO, "--out", "run"]
        killed = process(tmp_path, *arguments, crash_at=moment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert ("continuing after" in killed.stderr) == (number > 0)
    assert process(tmp_path, "--resume", "run").returncode == 0
    assert delivered(tmp_path / "run") == delivered(tmp_path / "whole")
    assert progress(tmp_path / "run") == progress(tmp_path / "whole")
    stages = [row.partition(",")[0] for row in progress(tmp_path / "run")[1:]]
    assert stages == ["initialisation"] * 9 + ["extension"] * 4


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_finished_run_is_neither_trained_again_nor_overwritten(tandem, uninterrupted) -> None:
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.folder.iterdir()}
    code, out, err = tandem("train", "--resume", str(uninterrupted.folder))
    assert code == 0
    assert "already finished" in err
    assert "hypervolume" in out
    code, _, err = tandem("train", *PC_PPO, "--out", str(uninterrupted.folder))
    assert code == 2
    assert "finished run" in err
    assert "tandem front" in err
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.folder.iterdir()} == before


@pytest.mark.parametrize(("share", "said"), [(0.0, None), (0.125, "12.5% of those made")])
def test_discarded_samples_are_reported_if_there_are_any(tandem, uninterrupted, share: float, said: str | None) -> None:
    run = shutil.copytree(uninterrupted.folder, "run")
    front = json.loads(Path(run, "front.json").read_text())
    for policy in front["policies"]:
        policy["discarded_share"] = share
    Path(run, "front.json").write_text(json.dumps(front))
    code, out, _ = tandem("train", "--resume", "run")
    assert code == 0
    assert ("discarded samples" in out) is (said is not None)
    assert said is None or said in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--algorithm", "c-moppo"], "started with pc-ppo"),
        (["--preset", "quick"], "started with default"),
        (["--seed", "1"], "started with 0"),
        (["--budget", "400"], "started with budget=300"),
        (["--train-set", "clip_eps=0.3"], "started with clip_eps=0.1"),
        (["--train-set", "width=010"], "started with width=8"),  # 010 is not octal
        (["--set", "rounds=012"], "its scenario differs"),  # which has 10
        (["--no-shield"], "started with shield=None"),
        (["--set", "fleet.size=4"], "its scenario differs"),
        (["jetson"], "its scenario differs"),
        (["--out", "elsewhere"], "--out elsewhere"),
    ],
)
def test_resume_refuses_arguments_that_contradict_the_run(
    tandem, uninterrupted, arguments: list[str], said: str
) -> None:
    code, out, err = tandem("train", "--resume", str(uninterrupted.folder), *arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert "without --resume" in err


def test_resume_accepts_arguments_that_agree_with_the_run(tandem, uninterrupted) -> None:
    assert tandem("train", "--resume", str(uninterrupted.folder), *PC_PPO, "--seed", "0")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["papre"], "write 'paper'"),
        ([""], "preset"),
        (["--train-set", "reference_point=[0, .inf, 44]"], "reference_point[1] is inf; write a finite number"),
        (["--train-set", "reference_point=[0, 1e300, 1e300]"], "reference_point[1] is 1e+300; write a number <= 1e+09"),
        (["--algorithm", "cmoppo"], "write 'c-moppo'"),
        (["--preset", "paper"], "pc-ppo has no such preset; use one of default, quick"),
        (["--train-set", "learning_rte=0.1"], "write 'learning_rate'"),
        (["--train-set", "clip_eps=2"], "clip_eps is 2; write a number < 1"),
        (["--train-set", "clip_eps"], "--train-set clip_eps=0.2"),
        (["--train-set", "fleet_sizes=[3,"], "brackets"),
        (["--train-set", "num_minibatches=7"], "does not divide"),
        (["--set", "fleet.sise=3"], "write 'size'"),
        (["--budget", "10"], "too few rounds for one step"),
        (["--budget", "0"], "--budget"),
        (["--seed", "-1"], "--seed"),
        (["--resume", "nowhere"], "nowhere: there is no such run"),
        (["--resume", "."], "is not a run"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(tandem, arguments: list[str], said: str) -> None:
    code, out, err = tandem("train", *arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert "Traceback" not in err
    assert list(Path().iterdir()) == []


def test_train_refuses_a_folder_with_other_files(tandem) -> None:
    Path("thesis").mkdir()
    Path("thesis/scenario.yaml").write_text("extends: paper")
    code, _, err = tandem("train", *PC_PPO, "--out", "thesis")
    assert code == 2
    assert "--out" in err
    assert [path.name for path in Path("thesis").iterdir()] == ["scenario.yaml"]
    assert tandem("train", *PC_PPO, "--out", "thesis/scenario.yaml")[0] == 2


def test_a_missing_tensorboard_is_reported_with_the_fix(tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    code, _, err = tandem("train", *PC_PPO, "--tensorboard")
    assert code == 2
    assert 'pip install "tandem[tensorboard]"' in err
    assert list(Path().iterdir()) == []
