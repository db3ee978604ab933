"""From results to the report: known results give the right verdicts, and every file is written."""

import csv
from pathlib import Path

import pytest

from fakes import FakeExecutor
from tandem.errors import InputError
from tandem.experiments.plan import make_plan, reproduce
from tandem.experiments.plotting import COMPARED, PROPOSED
from tandem.experiments.registry import PAPER_EXPERIMENTS
from tandem.experiments.report import Report
from tandem.experiments.scale import load_scale
from tandem.experiments.tables import read_data
from tandem.experiments.trial import Trial

SMOKE = load_scale("smoke")
PAPERS = {one.name for one in PAPER_EXPERIMENTS}
ORDER = ("c-moppo", "pg-morl", "moea-d", "s-ppo", "r-ppo")  # from best to worst in the paper


def papers_hypervolume(trial: Trial) -> float:
    """C-MOPPO 16 % above PG-MORL and so on; fewer devices are easier; a larger beta is better."""
    rank = ORDER.index(trial.algorithm) if trial.algorithm in ORDER else 6
    beta = trial.changes.get("beta", 0.9)
    return 76.56 * (1 - 0.16 / 1.16 * rank) - 0.5 * trial.size + 10 * beta - 9 + 0.01 * trial.seed


def verdicts(report: Report) -> dict[str, str]:
    return {row["id"]: row["verdict"] for row in report.claims()}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    out = tmp_path_factory.mktemp("reproduced")
    return reproduce(make_plan([], SMOKE), out, FakeExecutor(hypervolume=papers_hypervolume), 2), out


def test_the_papers_order_agrees_with_the_papers_claims(report: tuple[Report, Path]) -> None:
    found = verdicts(report[0])
    for claim in (
        "fronts-c-moppo-best",
        "fronts-moea-d-s-ppo-inferior",
        "fronts-r-ppo-worst",
        "devices-hypervolume-falls",
        "devices-c-moppo-highest",
        "arrivals-c-moppo-gain",
        "arrivals-r-ppo-worst",
        "convergence-c-moppo-highest",
        "beta-hypervolume-rises",
    ):
        assert found[claim] == "agrees", claim
    for claim in (
        "devices-moea-d-overtakes",
        "arrivals-s-ppo-third",
        "arrivals-pc-ppo-highest",
        "arrivals-pc-ppo-gain",
    ):
        assert found[claim] == "disagrees", claim
    assert found["devices-sparsity-rises"] == "open"  # equal everywhere


def test_claims_have_different_ids(report: tuple[Report, Path]) -> None:
    rows = report[0].claims()
    assert len({row["id"] for row in rows}) == len(rows) == sum(report[0].verdicts().values())


def test_every_experiment_writes_data_and_figures(report: tuple[Report, Path]) -> None:
    _, out = report
    for name in PAPERS:
        rows = list(csv.reader((out / f"{name}.csv").open()))
        assert len(rows) > 2
        assert len({len(row) for row in rows}) == 1, name
    for name in PAPERS - {"top3"}:  # a table
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (out / f"{name}.svg").read_text()


def test_report_and_table_have_every_claim(report: tuple[Report, Path]) -> None:
    written, out = report
    markdown = (out / "report.md").read_text()
    for section in written.sections:
        assert f"## {section.title}" in markdown
        assert all(f"({name}.png)" in markdown for name in section.figures)
        for one in section.claims:
            assert f"| {one.claim.text} | {one.claim.paper} | {one.numbers} | {one.verdict} |" in markdown
    assert all(line.count("|") >= 3 for line in markdown.splitlines() if line.startswith("|"))
    assert list(csv.DictReader((out / "claims.csv").open())) == written.claims()


def test_sections_can_be_rendered_from_the_written_tables(report: tuple[Report, Path], tmp_path: Path) -> None:
    written, out = report
    [devices] = [one for one in PAPER_EXPERIMENTS if one.name == "devices"]
    again = devices.section(SMOKE, read_data(out, ["devices"]), tmp_path)
    assert again in written.sections
    assert (tmp_path / "devices.png").read_bytes() == (out / "devices.png").read_bytes()


@pytest.mark.slow
def test_same_results_make_the_same_files(report: tuple[Report, Path]) -> None:
    _, out = report
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    again = FakeExecutor()
    reproduce(make_plan([], SMOKE), out, again, 2)
    assert again.jobs == []
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_claims_about_missing_algorithms_are_open(tmp_path: Path) -> None:
    plan = make_plan(["pareto-fronts", "devices"], SMOKE, ["pc-ppo", "s-ppo"])
    found = verdicts(reproduce(plan, tmp_path, FakeExecutor()))
    assert found["fronts-c-moppo-best"] == "open"
    assert found["devices-pc-ppo-highest"] == "open"  # equal everywhere


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"device: unknown experiment; .*'devices'"):
        make_plan(["device"], SMOKE)
    with pytest.raises(InputError, match=r"pgmorl.*'pg-morl'"):
        make_plan([], SMOKE, ["pgmorl"])
    assert make_plan(["top3", "top3"], SMOKE).algorithms == COMPARED


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(InputError, match=r"holds files of something else"):
        reproduce(make_plan(["top3"], SMOKE), tmp_path, FakeExecutor())


def test_beta_always_uses_the_papers_algorithm() -> None:
    assert {trial.algorithm for trial in make_plan(["beta"], SMOKE, ["pc-ppo"]).trials()} == {PROPOSED}
