"""From results to statements: known answers put in, the right verdicts come out, and every file is written."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from fakes import FakeExecutor, RecordingCallback, fake_result
from tandem.errors import InputError
from tandem.experiments.claims import check_claim, check_close
from tandem.experiments.figures.convergence import rounds_to
from tandem.experiments.figures.top3 import best_of, repeated
from tandem.experiments.plan import make_plan, reproduce
from tandem.experiments.plotting import COMPARED, PROPOSED
from tandem.experiments.registry import PAPER_EXPERIMENTS
from tandem.experiments.report import Report
from tandem.experiments.scale import load_scale
from tandem.experiments.trial import Trial
from tandem.stats import Estimate, difference, mean, mean_relative_gain, relative_gain

SMOKE = load_scale("smoke")
PAPERS = {one.name for one in PAPER_EXPERIMENTS}
ORDER = ("c-moppo", "pg-morl", "moea-d", "s-ppo", "r-ppo")  # as the paper has it


def as_the_paper_has_it(cell: Trial) -> float:
    """C-MOPPO 16 % above PG-MORL and so on; fewer devices are easier; a larger beta is better."""
    place = ORDER.index(cell.algorithm) if cell.algorithm in ORDER else 6
    beta = cell.changes.get("beta", 0.9)
    return 76.56 * (1 - 0.16 / 1.16 * place) - 0.5 * cell.size + 10 * beta - 9 + 0.01 * cell.seed


def verdicts(report: Report) -> dict[str, str]:
    return {one.stated: one.verdict for section in report.sections for one in section.claims}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    out = tmp_path_factory.mktemp("reproduced")
    return reproduce(
        make_plan([], SMOKE), out, FakeExecutor(hypervolume=as_the_paper_has_it), 2, RecordingCallback()
    ), out


def test_the_papers_order_agrees_with_the_paper(report: tuple[Report, Path]) -> None:
    said = verdicts(report[0])
    for stated in (
        "C-MOPPO covers the front best, PG-MORL comes second.",
        "MOEA/D and S-PPO are clearly inferior to C-MOPPO.",
        "R+PPO delivers the worst front.",
        "C-MOPPO has the highest hypervolume at every size.",
        "R+PPO is the worst at every rate.",
        "Hypervolume falls for all algorithms as devices are added.",
        "C-MOPPO ends highest of the three.",
        "Hypervolume rises with beta, from 56.6 at 0.5 to 75.2 at 0.9.",
    ):
        assert said[stated] == "agrees", stated
    assert said["C-MOPPO is about 16 % above PG-MORL, the second best, on average."] == "agrees"
    for stated in (
        "PG-MORL comes second but falls behind MOEA/D at 30 devices.",
        "S-PPO comes next, slightly ahead of MOEA/D.",
        "Ours: Tandem has the highest hypervolume at every rate.",
        "Ours: Tandem is at least 16 % above PG-MORL on average.",
    ):
        assert said[stated] == "disagrees", stated
    assert said["Sparsity rises for all algorithms as devices are added."] == "open"  # all the same: nobody can tell


def test_every_experiment_writes_data_and_figures(report: tuple[Report, Path]) -> None:
    _, out = report
    for name in PAPERS:
        rows = list(csv.reader((out / f"{name}.csv").open()))
        assert len(rows) > 2
        assert len({len(row) for row in rows}) == 1, name
    for name in PAPERS - {"top3"}:  # which is a table
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (out / f"{name}.svg").read_text()


def test_the_report_says_the_same_in_both_forms(report: tuple[Report, Path]) -> None:
    written, out = report
    markdown, page = (out / "report.md").read_text(), (out / "report.html").read_text()
    for section in written.sections:
        assert f"## {section.title}" in markdown
        for name in section.figures:
            assert f"({name}.png)" in markdown
            assert f'src="{name}.svg"' in page
        for one in section.claims:
            assert one.stated in markdown
    assert page.count("<td class=") == sum(written.verdicts().values())
    assert all(line.count("|") >= 3 for line in markdown.splitlines() if line.startswith("|"))
    statements = list(csv.DictReader((out / "statements.csv").open()))
    assert [row["stated"] for row in statements] == [one.stated for s in written.sections for one in s.claims]


def test_the_same_results_make_the_same_files(report: tuple[Report, Path]) -> None:
    _, out = report
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    again = FakeExecutor()
    reproduce(make_plan([], SMOKE), out, again, 2, RecordingCallback())
    assert again.jobs == []
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_with_few_algorithms_what_needs_others_is_open(tmp_path: Path) -> None:
    report = reproduce(make_plan(["all"], SMOKE, ["pc-ppo", "s-ppo"]), tmp_path, FakeExecutor())
    said = verdicts(report)
    assert said["C-MOPPO covers the front best, PG-MORL comes second."] == "open"
    assert said["Ours: Tandem has the highest hypervolume at every size."] == "open"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"device: unknown experiment; write 'devices'"):
        make_plan(["device"], SMOKE)
    with pytest.raises(InputError, match=r"algorithm pgmorl: is not known; write 'pg-morl'"):
        make_plan([], SMOKE, ["pgmorl"])
    assert make_plan(["top3", "top3"], SMOKE).algorithms == COMPARED


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(InputError, match=r"holds files of something else"):
        reproduce(make_plan(["top3"], SMOKE), tmp_path, FakeExecutor())


def test_beta_is_about_the_papers_algorithm_whoever_is_compared() -> None:
    cells = make_plan(["beta"], SMOKE, ["pc-ppo"]).trials()
    assert {cell.algorithm for cell in cells} == {PROPOSED}


# Estimates: by hand, and against the theory of means.
def test_an_estimate_of_constants_is_sure() -> None:
    assert mean([2.0, 2.0]) == Estimate(2.0, 2.0, 2.0)
    assert difference([5.0, 5.0], [3.0]) == Estimate(2.0, 2.0, 2.0)
    assert relative_gain([6.0], [4.0]) == Estimate(0.5, 0.5, 0.5)
    assert mean_relative_gain([[6.0], [4.0]], [[4.0], [4.0]]).value == pytest.approx(0.25)
    assert mean([1.0, 3.0]).scaled(-2) == Estimate(-4.0, -6.0, -2.0)


def test_the_interval_of_a_difference_is_as_wide_as_theory_has_it() -> None:
    random = np.random.default_rng(1)
    first, second = random.normal(3, 2, 200), random.normal(1, 1, 300)
    found = difference(first, second)
    error = math.sqrt(first.var() / 200 + second.var() / 300)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.05)


def test_verdicts() -> None:
    sure, unsure, contrary = Estimate(1, 0.5, 2), Estimate(1, -0.5, 2), Estimate(-1, -2, -0.5)
    assert check_claim("", "", sure, sure).verdict == "agrees"
    assert check_claim("", "", sure, unsure).verdict == "open"
    assert check_claim("", "", unsure, contrary, sure).verdict == "disagrees"
    assert check_claim("", "").verdict == "open"
    assert check_close("", Estimate(71.2, 70, 72), 79, 0.1).verdict == "agrees"
    assert check_close("", Estimate(71.0, 70, 79), 79, 0.1).verdict == "disagrees"


def test_numbers_have_the_digits_they_deserve() -> None:
    assert str(Estimate(66.5312, 66.1, 67.0)) == "66.5 [66.1, 67.0]"
    assert str(Estimate(0.03612, 0.02, 0.05)) == "0.036 [0.020, 0.050]"
    assert str(Estimate(-1.5934, -2.2, -0.9)) == "-1.59 [-2.20, -0.90]"


def test_rounds_to_a_hypervolume() -> None:
    curve = np.array([[100, 50.0, 0], [200, 60.0, 0], [300, 55.0, 0], [400, 70.0, 0]])
    assert rounds_to(curve, 40) == 100
    assert rounds_to(curve, 55) == 150
    assert rounds_to(curve, 65) == 350
    assert rounds_to(curve, 71) == math.inf


def test_the_three_best_by_hand() -> None:
    front = np.array([[0.6, 3.0, 9.0], [0.5, 2.5, 8.0], [0.4, 2.4, 12.0], [0.3, 2.9, 0.4]])
    top = best_of(front)
    assert top[0, :, 0].tolist() == [0.6, 0.5, 0.4]
    assert top[1, :, 1].tolist() == [2.4, 2.5, 2.9]
    assert top[2, :, 2].tolist() == [0.4, 8.0, 9.0]
    assert repeated(top) == pytest.approx(1 - 4 / 9)
    assert repeated(best_of(fake_result(SMOKE.trial("s-ppo", 0)).front[:1])) == pytest.approx(8 / 9)
