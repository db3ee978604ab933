"""The code in the documents runs, and their tables agree with the data in docs/."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from fakes import FakeExecutor
from marks import slow_after
from tandem.experiments.plotting import label
from tandem.experiments.reference_front import reference_fronts
from tandem.federated import TASKS
from tandem.feel import Environment, build_system
from tandem.feel.accuracy import MAPPINGS
from tandem.feel.arrivals import ARRIVALS
from tandem.learn import ALGORITHMS, Algorithm, init_checkpoint, train
from tandem.learn.registry import make_config
from tandem.scenario import load_scenario
from tandem.scenario.plugins import (
    AccuracyMappingConfig,
    ArrivalsConfig,
    Cifar10TaskConfig,
    DigitsTaskConfig,
    TaskConfig,
)
from tandem.stats import mean

ROOT = Path(__file__).resolve().parents[2]


def python_blocks(document: str) -> str:
    text = (ROOT / document).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


@pytest.fixture
def registered() -> Iterator[dict[str, type[Algorithm]]]:
    """The algorithms before a document adds its own. Afterwards every registry is as it was."""
    configs = (AccuracyMappingConfig, ArrivalsConfig, TaskConfig)
    registries: list[dict[Any, Any]] = [ALGORITHMS, ARRIVALS, MAPPINGS, TASKS, *(config.choices for config in configs)]
    before = [dict(registry) for registry in registries]
    yield before[0]
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


SHOWN = ["README.md", *(f"docs/{name}.md" for name in ("environments", "extending", "federated", "reproducing"))]


@pytest.mark.parametrize("document", slow_after(2, SHOWN))
def test_code_in_documents_runs(
    document: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registered: dict[str, type[Algorithm]]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # pre-trained models
    # What takes a minute with the preset shown takes seconds with a hundredth of its rounds.
    short = {
        "budget": 2000,
        "num_envs": 2,
        "update_epochs": 1,
        "num_minibatches": 1,
        "preference_divisions": 2,
        "validation_episodes": 1,
    }
    monkeypatch.setitem(ALGORITHMS["pc-ppo"].presets, "quick", short)
    monkeypatch.setattr("tandem.experiments.plan.SerialExecutor", FakeExecutor)
    names: dict[str, object] = {"__name__": "shown"}
    exec(compile(python_blocks(document), document, "exec"), names)
    if "result" in names:
        assert names["result"].violation_rate.mean() == 0  # type: ignore[attr-defined]
    for name in set(ALGORITHMS) - set(registered):
        check_algorithm_contract(ALGORITHMS[name])


def check_algorithm_contract(kind: type[Algorithm]) -> None:
    """An algorithm that a document shows keeps its budget, and goes on from a checkpoint as if it had not stopped."""
    system = build_system(load_scenario("paper", {"fleet.size": 3, "rounds": 10}))
    one = kind(Environment(system), kind.config_type(budget=900, tried=5, archive=6))
    assert 800 < sum(stage.rounds for stage in one.stages) + one.validation_rounds <= 900
    checkpoints = [init_checkpoint(one, 0)]
    checkpoints += [now for now, _ in train(one, checkpoints[0])]
    *_, (again, _) = train(one, checkpoints[len(checkpoints) // 2])
    found, expected = (one.candidates(now.state) for now in (again, checkpoints[-1]))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a is b or np.array_equal(a, b)
    assert 1 <= int(found.valid.sum()) <= one.max_candidates


def test_calibration_table_matches_data() -> None:
    text = (ROOT / "docs/system-model.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "docs/data/preset-search.json").read_text(encoding="utf-8"))
    rows = {f"{name} corner": point for name, point in found["corners"].items()}
    rows["median of feasible heuristics"] = found["medians"]
    for name, point in rows.items():
        assert f"| {name} | " + " | ".join(f"{value:.3g}" for value in point) + " |" in text
    spans = zip(found["lowest"], found["highest"], strict=True)
    assert "| lowest to highest | " + " | ".join(f"{low:.3g} to {high:.3g}" for low, high in spans) + " |" in text
    assert f"{found['capacities_tried']} combinations of capacity" in text
    assert re.search(rf"In {found['capacities_served']}\s+of them the shield accepts", text)
    assert re.search(
        rf"{found['tried']:,} scenarios were each measured with {found['heuristic_settings']} settings", text
    )
    assert f"{found['met_criteria_2_and_3']} met criteria 2 and 3" in text


@pytest.mark.parametrize("task", ["digits", "cifar10"])
def test_fit_table_matches_data(task: str) -> None:
    text = (ROOT / "docs/federated.md").read_text(encoding="utf-8")
    found = ROOT / f"docs/results/{task}/calibration/calibration.json"
    for fit in json.loads(found.read_text(encoding="utf-8"))["fits"]:
        constants = " | ".join(f"{value:.3g}" for value in (*fit["kappa"], fit["model_decay_per_s"]))
        server, device = fit["server_accuracy"], fit["device_accuracy"]
        goodness = f"{server['r2']:.3f} | {device['r2']:.3f} | {device['rmse']:.4f}"
        assert f"| {fit['kind']} | {constants} | {goodness} |" in text


def preset_rows() -> list[tuple[str, str]]:
    text = (ROOT / "docs/system-model.md").read_text(encoding="utf-8")
    section = text.split("## Values of the `paper` preset")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w.\[\]]+)` \| (.+?) \| (?:paper|chosen|calibrated) \|", section, flags=re.MULTILINE)


def test_table_of_values_is_the_preset() -> None:
    preset = load_scenario("paper")
    for field, value in preset_rows():
        assert load_scenario("paper", [f"{field}={value}"]) == preset, f"{field} is not {value}"


def test_every_field_of_the_preset_is_in_the_table() -> None:
    written = yaml.safe_load((ROOT / "src/tandem/scenario/presets/paper.yaml").read_text(encoding="utf-8"))
    explained = [field for field, _ in preset_rows()]

    def fields(part: object, path: str) -> list[str]:
        if any(entry == path for entry in explained):
            return []
        if isinstance(part, dict):
            return [f for key, inner in part.items() for f in fields(inner, f"{path}.{key}" if path else str(key))]
        if isinstance(part, list) and part and isinstance(part[0], dict):
            return [f for number, inner in enumerate(part) for f in fields(inner, f"{path}[{number}]")]
        return [path]

    assert set(fields(written, "")) <= {"name", "description"}


def rows_of(name: str, folder: str = "results/paper", **chosen: str) -> list[dict[str, str]]:
    with (ROOT / "docs" / folder / f"{name}.csv").open(encoding="utf-8") as handle:
        return [row for row in csv.DictReader(handle) if all(row[key] == value for key, value in chosen.items())]


def test_comparison_table_matches_data() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for algorithm in {row["algorithm"] for row in rows_of("devices")}:
        ten, thirty = (rows_of("devices", algorithm=algorithm, size=size) for size in ("10", "30"))
        assert len(ten) == len(thirty) == 10
        volumes = [str(mean([float(row["hypervolume"]) for row in rows])) for rows in (ten, thirty)]
        sparsity = str(mean([float(row["sparsity"]) for row in ten]))
        policies = len(rows_of("pareto-fronts", algorithm=algorithm)) / 10
        ours = " (ours)" if algorithm == "pc-ppo" else ""
        assert f"| {label(algorithm)}{ours} | " + " | ".join([*volumes, sparsity, f"{policies:.0f}"]) + " |" in text


def test_oracle_tables_match_data() -> None:
    text = (ROOT / "docs" / "federated.md").read_text(encoding="utf-8")
    by_c_moppo = []
    columns = [(f"results/{task}", algorithm) for task in ("digits", "cifar10") for algorithm in ("c-moppo", "pc-ppo")]
    for reward_source in ("log-exponential", "log-rational", "power-law-exponential", "oracle"):
        row = []
        for folder, algorithm in columns:
            marks = rows_of("accuracy-mapping", folder, algorithm=algorithm, reward_source=reward_source)
            last = {mark["seed"]: float(mark["hypervolume"]) for mark in marks}  # marks are in order
            assert len(last) == (10 if folder == "results/digits" else 3)
            row.append(str(mean(list(last.values()))))
        assert f"| {reward_source} | " + " | ".join(row) + " |" in text
        by_c_moppo.append((row[0], row[2]))
    *estimates, (digits, cifar10) = by_c_moppo
    means = [[one.split()[0] for one in task] for task in zip(*estimates, strict=True)]
    spans = [f"{min(task)} to {max(task)}" for task in means]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| estimated accuracy, three mappings | {spans[0]} | {spans[1]} |" in readme
    assert f"| measured accuracy (oracle) | {digits} | {cifar10} |" in readme


def test_most_accurate_policies_table_matches_data() -> None:
    """The most accurate policies: on CIFAR-10 all are those of a fleet that never trains."""
    assert {f"{float(row['best_accuracy']):.3f}" for row in rows_of("accuracy-mapping-ends", "results/cifar10")} == {
        "0.615"
    }
    for name in ("log-exponential", "log-rational", "power-law-exponential", "oracle"):
        cells = []
        for task, seeds in (("digits", 10), ("cifar10", 3)):
            for algorithm in ("c-moppo", "pc-ppo"):
                rows = rows_of("accuracy-mapping-ends", f"results/{task}", algorithm=algorithm, reward_source=name)
                assert len(rows) == seeds
                cells.append(f"{sum(float(row['best_accuracy']) for row in rows) / seeds:.3f}")
        assert in_federated(name, cells)


def data_of(name: str) -> Any:
    return json.loads((ROOT / f"docs/data/{name}.json").read_text(encoding="utf-8"))


def in_federated(title: str, cells: list[str], best: int | None = None) -> bool:
    """Whether a row of a table is there, its best cell in bold."""
    bold = [f"**{cell}**" if index == best else cell for index, cell in enumerate(cells)]
    return "| " + " | ".join([title, *bold]) + " |" in (ROOT / "docs/federated.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("task", "kind"), [("digits", DigitsTaskConfig), ("cifar10", Cifar10TaskConfig)])
def test_learning_rate_table_matches_data(task: str, kind: type[TaskConfig]) -> None:
    rows = data_of(f"learning-rates-{task}")["accuracy"]
    assert in_federated(
        f"`{task}` ([data](data/learning-rates-{task}.json))", [f"{row['learning_rate']:g}" for row in rows]
    )
    best = max(range(len(rows)), key=lambda index: float(rows[index]["all"]))
    assert rows[best]["learning_rate"] == pytest.approx(kind.model_fields["learning_rate"].default)
    for part, title in (("all", "all rounds"), ("first", "first ten"), ("last", "last ten")):
        assert in_federated(title, [f"{row[part]:.2f}" for row in rows], best if part == "all" else None)


@pytest.mark.parametrize("task", ["digits", "cifar10"])
def test_training_frequency_table_matches_data(task: str) -> None:
    rows = data_of(f"training-frequency-{task}")["rows"]
    assert in_federated(
        f"`{task}` ([data](data/training-frequency-{task}.json))", [f"{row['requested']:g}" for row in rows]
    )
    for way in ("estimated", "measured"):
        accuracy = [row[way]["accuracy"] for row in rows]
        best = accuracy.index(max(accuracy))
        assert in_federated(f"objective, {way}", [f"{value:.3f}" for value in accuracy], best)
    served = [f"{row['measured']['serving_accuracy']:.3f}" for row in rows]
    assert in_federated("accuracy of serving devices, measured", served)


def test_training_frequency_changes_match_data() -> None:
    rows = {row["requested"]: row for row in data_of("training-frequency-cifar10")["rows"]}
    shown = (0.05, 0.1, 0.2, 0.75, 2.0)
    assert in_federated("trainers per round", [f"{trainers:g}" for trainers in shown])
    for name in ("measured", "estimated"):
        changes = [rows[trainers][name] for trainers in shown]
        cells = [f"{change['gain_over_first']:+.3f} ± {change['gain_half_width_95']:.3f}" for change in changes]
        assert in_federated(name, cells)


def test_weight_decay_table_matches_data() -> None:
    text = (ROOT / "docs/federated.md").read_text(encoding="utf-8")
    for title, name in (("0.02, shipped", "shipped"), ("0.05", "decay-0.05")):
        rows = data_of(f"learning-rates-cifar10-{name}")["accuracy"]
        found = " | ".join(f"{row['all']:.2f}, {row['first']:.2f}" for row in rows)
        assert f"| weight decay {title} ([data](data/learning-rates-cifar10-{name}.json)) | {found} |" in text


def test_speed_table_matches_data() -> None:
    found = [data_of(f"federated-{name}") for name in ("digits", "cifar10", "cifar10-h200")]
    seconds = [("100 rounds, the first time, compilation included", "first_s"), ("again", "again_s")]
    for title, name in seconds:
        decimals = [0 if one[name] >= 100 else 1 if one[name] >= 1 else 2 for one in found]
        assert in_federated(title, [f"{one[name]:.{n}f} s" for one, n in zip(found, decimals, strict=True)])
    rates = [
        ("rounds/s, one fleet", "rounds_per_s"),
        ("rounds/s, one device after another, all compiled", "one_after_another_rounds_per_s"),
    ]
    for title, name in rates:
        values = [one[name] for one in found]
        assert in_federated(title, [f"{v:,.0f}" if v >= 10 else f"{v:.2g}" for v in values])
    digits, cifar10, h200 = ({many["fleets"]: many["rounds_per_s"] for many in one["many"]} for one in found)
    row = f"| rounds/s, 32 fleets at once | {digits[32]:,.0f} | | {h200[32]:,.0f} |"
    assert row in (ROOT / "docs/federated.md").read_text(encoding="utf-8")
    assert not cifar10


@pytest.mark.parametrize("kind", ["mapping", "oracle"])
def test_archive_bias_table_matches_data(kind: str) -> None:
    text = (ROOT / "docs" / "federated.md").read_text(encoding="utf-8")
    found = data_of(f"archive-bias-{kind}")
    bias, best = found["accuracy_bias"], found["most_accurate_when_sampled"]
    cells = [kind, str(found["policies"]), f"{bias['mean']:+.3f} ± {bias['deviation']:.3f}"]
    cells += [f"{found['hypervolume'][name]:.1f}" for name in ("training", "sampled", "deterministic")]
    cells += [f"{best[form]['accuracy']:.3f}, {best[form]['trainers']:.2f}" for form in ("sampled", "deterministic")]
    assert "| " + " | ".join(cells) + " |" in text


def test_every_trial_of_the_results_kept_its_budget() -> None:
    for name in ("devices", "arrivals"):
        for row in rows_of(name):
            assert 970_000 < int(row["rounds"]) <= 1_000_000
            assert float(row["violation_rate"]) <= 0.001


def test_table_of_searched_defaults_matches_data_and_code() -> None:
    text = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")

    def cells(volumes: dict[str, list[float]]) -> list[str]:
        return [", ".join(f"{one:.1f}" for one in volumes[setting]) for setting in ("shield", "no shield")]

    for name, found in data_of("hyperparameter-search")["algorithms"].items():
        # C-MOPPO evaluates its archive again whatever the search says; the text gives the reason.
        configs = found["configurations"]
        chosen = configs[5 if name == "c-moppo" else found["chosen"]]
        settings = ", ".join(f"`{key}={value}`" for key, value in chosen["config"].items())
        previous = "; ".join(cells(configs[0]["hypervolume"]))
        row = [label(name), settings, *cells(chosen["hypervolume"]), previous]
        assert "| " + " | ".join(row) + " |" in text
        defaults = make_config(name)
        assert {key: getattr(defaults, key) for key in chosen["config"]} == chosen["config"]


def test_reference_front_table_matches_data() -> None:
    text = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    [known] = reference_fronts()
    for algorithm, volumes in known["hypervolumes_of_single_trainings"].items():
        own = mean(volumes)
        makes = sum(policy["algorithm"] == algorithm for policy in known["policies"])
        assert f"| {label(algorithm)} | {own} | {own.scaled(100 / known['hypervolume'])} % | {makes} |" in text
