"""Run folders of older formats: data/format1 was written by the last version that used format 1."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tandem
from tandem.errors import InputError
from tandem.learn.registry import config_document, config_from_document
from tandem.pareto import pick
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs import Run, read_record, resume, simulate
from tandem.runs.evaluation import evaluate_to
from tandem.runs.front import selectable_points
from tandem.runs.migrations import (
    ALGORITHMS_1,
    CMOPPO_2,
    FORMAT,
    HYPERPARAMETERS_1,
    HYPERPARAMETERS_2,
    MIGRATIONS,
    NETWORKS_1,
    migrate_record,
)
from tandem.runs.run_dir import list_runs, read_scenario

FORMAT_1 = Path(__file__).parent / "data" / "format1"
OPTIONS_1 = json.loads((FORMAT_1 / "options.json").read_text())  # of every algorithm and preset, in format 1


@pytest.fixture(scope="module")
def run() -> Run:
    return tandem.open_run(FORMAT_1 / "tandem")


def test_a_finished_run_of_format_1_is_opened(run: Run) -> None:
    written = json.loads((FORMAT_1 / "tandem" / "run.json").read_text())
    assert (written["format"], written["algorithm"]) == (1, "tandem")
    assert (run.record.format, run.algorithm_name, run.config.clip_eps, run.config.budget) == (1, "pc-ppo", 0.1, 300)
    assert run.front.hypervolume == written["hypervolume"]
    assert [policy.discarded_share for policy in run.front.policies] == [None] * written["policies"]
    choice = pick(selectable_points(run.front, run.config.tolerance), (1.0, 0.0, 0.0))
    assert run.front.objectives[choice.index, 0] == pytest.approx(run.front.objectives[:, 0].max(), abs=1e-3)
    assert [entry.status for entry in list_runs(FORMAT_1 / "tandem")] == ["finished"]


def test_policies_of_format_1_decide_as_they_did(run: Run) -> None:
    again = simulate(run.system(), run.policy(0), FINAL_EVALUATION_SEEDS)
    np.testing.assert_allclose(again.objectives.mean(axis=0), run.front.policies[0].objectives, rtol=1e-4)
    _, document = evaluate_to(None, run, FINAL_EVALUATION_SEEDS)
    assert document["hypervolume"] == pytest.approx(run.front.hypervolume, rel=1e-4)


def test_names_of_format_1_are_translated() -> None:
    record = read_record(FORMAT_1 / "c-moppo")
    assert (record.algorithm, record.preset, record.config["network"]) == ("c-moppo", "literal", "mlp")
    assert "observation: paper" in (FORMAT_1 / "c-moppo" / "scenario.yaml").read_text()
    assert read_scenario(FORMAT_1 / "c-moppo").observation == "minimal"
    assert read_scenario(FORMAT_1 / "c-moppo", ["observation=full", "fleet.size=2"]).fleet.size == 2
    assert read_scenario(FORMAT_1 / "tandem").observation == "full"


@pytest.mark.parametrize("algorithm", OPTIONS_1)
def test_every_hyperparameter_of_format_1_is_translated(algorithm: str) -> None:
    for preset, options in OPTIONS_1[algorithm].items():
        document = {"format": 1, "algorithm": algorithm, "preset": preset, "options": options}
        migrated = migrate_record(document, Path("run.json"))
        assert (migrated["algorithm"], migrated["format"]) == (ALGORITHMS_1.get(algorithm, algorithm), 1)
        config = config_from_document(migrated["algorithm"], migrated["config"], "run.json")
        found = config_document(config)
        for name, value in options.items():
            expected = NETWORKS_1.get(value, value) if name == "network" else value
            assert found.pop(HYPERPARAMETERS_1.get(name, name)) == expected, name
        # Nothing else is left to present defaults, which may be others than those of the time.
        constant = {"max_grad_norm": 0.5, "vf_coef": 0.5}  # no hyperparameters in format 1
        assert found == constant | HYPERPARAMETERS_2 | (CMOPPO_2 if algorithm == "c-moppo" else {})


def test_a_run_of_format_2_has_the_hyperparameters_that_it_was_trained_with() -> None:
    record = {"format": 2, "algorithm": "c-moppo", "config": {"beta": 0.5}}
    config = migrate_record(record, Path("run.json"))["config"]
    assert config == {"beta": 0.5, "selection_episodes": 0, "return_range": "front", "violation_credit": "fleet"}
    record = {"format": 2, "algorithm": "pc-ppo", "config": {}}
    assert migrate_record(record, Path("run.json"))["config"] == {"violation_credit": "fleet"}


def test_an_unfinished_run_of_format_1_is_not_continued(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FORMAT_1 / "tandem", tmp_path / "run"))
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"finished"', '"running"'))
    (folder / "front.json").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match=r"run: is an unfinished run of format 1, .*; train again into another folder"):
        resume(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_every_older_format_has_a_migration() -> None:
    assert list(MIGRATIONS) == list(range(1, FORMAT))
