"""Claims: known samples give the right verdicts, and the committed results give the committed verdicts."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from fakes import fake_result
from tandem.experiments.claims import (
    AtLeast,
    Claim,
    Comparison,
    GapBelow,
    Hump,
    MeanGain,
    Near,
    Ordering,
    SpreadBelow,
    Trend,
    check_claims,
    decide,
)
from tandem.experiments.figures.accuracy_mapping import check_mapping_claims, total_decrease
from tandem.experiments.figures.convergence import rounds_to, speedups
from tandem.experiments.figures.top3 import best_of, repeated_share
from tandem.experiments.registry import PAPER_EXPERIMENTS, TASK_EXPERIMENTS
from tandem.experiments.report import Report, render_markdown
from tandem.experiments.reward_source import ORACLE, RewardSource
from tandem.experiments.scale import Scale, load_scale
from tandem.experiments.tables import Samples, read_data
from tandem.experiments.task_calibration import MAPPINGS
from tandem.scenario import load_scenario
from tandem.stats import Estimate, difference, mean, mean_relative_gain, relative_gain

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def swept(**lines: list[float]) -> Samples:
    """Samples of two equal seeds, at the values 1, 2, ... of the sweep."""
    return Samples({"m": {name: {float(x): [y, y] for x, y in enumerate(line, 1)} for name, line in lines.items()}})


def verdict(comparison: Comparison, samples: Samples) -> str:
    return Claim("id", "text", "m", comparison).check(samples).verdict


def test_verdict_depends_on_the_intervals_of_all_margins() -> None:
    sure, unsure, contrary = Estimate(1, 0.5, 2), Estimate(1, -0.5, 2), Estimate(-1, -2, -0.5)
    assert decide([sure, sure]) == "agrees"
    assert decide([sure, unsure]) == "open"
    assert decide([unsure, contrary, sure]) == "disagrees"
    assert decide([]) == "open"


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        (Ordering(("a",), ("b",)), "agrees"),
        (Ordering(("b",), ("a",)), "disagrees"),
        (Ordering(("b",), ("a",), lower=True), "agrees"),
        (Ordering(("a",)), "disagrees"),  # c is above at one value
        (Ordering(("a",), ("c",), from_value=3), "agrees"),
        (Ordering(("a",), ("c",), from_value=9), "agrees"),  # the last value
        (Ordering(("a",), ("missing",)), "open"),
        (Trend(("b",)), "agrees"),
        (Trend(("b",), falls=True), "disagrees"),
        (Trend(), "disagrees"),
        (Hump(("a",)), "agrees"),
        (Hump(("b",)), "open"),  # does not fall
        (MeanGain("a", "b", 2.5, tolerance=0.1), "agrees"),
        (MeanGain("a", "b", 2.5, tolerance=0.01), "disagrees"),
        (MeanGain("a", "b", 2.6), "agrees"),
        (MeanGain("a", "b", 2.7), "disagrees"),
        (MeanGain("a", "missing", 2.0), "open"),
    ],
)
def test_comparisons_over_a_sweep(comparison: Comparison, expected: str) -> None:
    assert verdict(comparison, swept(a=[5, 8, 6], b=[1, 2, 3], c=[4, 9, 1])) == expected


def test_comparisons_of_single_numbers() -> None:
    samples = Samples.from_seeds({"m": {"a": [71.2, 71.2], "b": [70.0, 70.0], "oracle": [72.0, 72.0]}})
    assert verdict(Near("a", 79, 0.1), samples) == "agrees"
    assert verdict(Near("a", 79, 0.09), samples) == "disagrees"
    assert verdict(Near("missing", 79, 0.1), samples) == "open"
    assert verdict(AtLeast("a", 71), samples) == "agrees"
    assert verdict(AtLeast("a", 72), samples) == "disagrees"
    assert verdict(AtLeast("a", 1), Samples.from_seeds({"m": {"a": [9.0, math.nan]}})) == "disagrees"
    assert verdict(GapBelow("oracle", 0.05), samples) == "agrees"
    assert verdict(GapBelow("oracle", 0.02), samples) == "disagrees"
    assert verdict(SpreadBelow("oracle", 0.02), samples) == "agrees"
    assert verdict(SpreadBelow("oracle", 0.01), samples) == "disagrees"


def test_numbers_show_the_smallest_margin_of_each_pair() -> None:
    checked = Claim("id", "text", "m", Ordering(("a",)), unit="J").check(swept(a=[5, 8, 6], b=[1, 2, 3], c=[4, 9, 1]))
    assert checked.numbers == "a vs b at 3: 3.00 [3.00, 3.00] J; a vs c at 2: -1.00 [-1.00, -1.00] J"
    missing = Claim("id", "text", "m", Ordering(("z",))).check(swept(a=[1.0, 2.0]))
    assert missing.numbers == "not compared: an algorithm is missing"


def test_goals_are_checked_only_if_our_algorithm_is_compared() -> None:
    claims = (Claim("id", "text", "m", Ordering(("pc-ppo",)), paper="our goal"), Claim("id", "text", "m", Trend()))
    assert len(check_claims(claims, swept(a=[1, 2]))) == 1
    assert len(check_claims(claims, swept(**{"pc-ppo": [1, 2]}))) == 2


def stored_sections(folder: Path, scale: Scale, out: Path) -> Report:
    """Render the committed tables of a folder."""
    data = read_data(folder, [path.stem for path in folder.glob("*.csv") if path.stem != "claims"])
    experiments = TASK_EXPERIMENTS if scale.reward_sources else PAPER_EXPERIMENTS
    return Report("", (), tuple(one.section(scale, data, out) for one in experiments))


@pytest.mark.parametrize(("folder", "count"), [("paper", 39), ("digits", 15), ("cifar10", 15)])
def test_committed_claims_follow_from_committed_data(folder: str, count: int, tmp_path: Path) -> None:
    scale = load_scale("full")
    if folder != "paper":
        fits = {kind: load_scenario(RESULTS / folder / "calibration" / f"{kind}.yaml") for kind in MAPPINGS}
        episodes = scale.tasks[folder].episodes
        sources = [RewardSource.from_calibration(fit, folder, episodes, None) for fit in fits.values()]
        scale = scale.for_task(folder, sources)
    report = stored_sections(RESULTS / folder, scale, tmp_path)
    with (RESULTS / folder / "claims.csv").open(encoding="utf-8") as handle:
        committed = list(csv.DictReader(handle))
    assert len(committed) == count
    assert report.claims() == committed
    _, *sections = render_markdown(report).split("\n## ")
    _, *written = (RESULTS / folder / "report.md").read_text(encoding="utf-8").split("\n## ")
    assert sections == written


# Estimates: by hand, and against the theory of means.
def test_estimate_of_constants_has_no_width() -> None:
    assert mean([2.0, 2.0]) == Estimate(2.0, 2.0, 2.0)
    assert difference([5.0, 5.0], [3.0]) == Estimate(2.0, 2.0, 2.0)
    assert relative_gain([6.0], [4.0]) == Estimate(0.5, 0.5, 0.5)
    assert mean_relative_gain([[6.0], [4.0]], [[4.0], [4.0]]).value == pytest.approx(0.25)
    assert mean([1.0, 3.0]).scaled(-2) == Estimate(-4.0, -6.0, -2.0)


def test_width_of_a_difference_matches_theory() -> None:
    random = np.random.default_rng(1)
    first, second = random.normal(3, 2, 200), random.normal(1, 1, 300)
    found = difference(first, second)
    error = math.sqrt(first.var() / 200 + second.var() / 300)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.05)


def test_digits_of_an_estimate() -> None:
    assert str(Estimate(66.5312, 66.1, 67.0)) == "66.5 [66.1, 67.0]"
    assert str(Estimate(0.03612, 0.02, 0.05)) == "0.036 [0.020, 0.050]"
    assert str(Estimate(-1.5934, -2.2, -0.9)) == "-1.59 [-2.20, -0.90]"


# Metrics of learning curves and fronts.
def curve(*hypervolumes: float) -> np.ndarray:
    return np.array([[100.0 * point, value, 0.0] for point, value in enumerate(hypervolumes, 1)])


def test_rounds_to_a_hypervolume() -> None:
    one = curve(50, 60, 55, 70)
    assert [rounds_to(one, target) for target in (40, 55, 65, 71)] == [100, 150, 350, math.inf]


def test_speedup_is_relative_to_the_mean_end() -> None:
    found = speedups({"pg-morl": [curve(50, 60), curve(50, 64)], "pc-ppo": [curve(62, 70), curve(50, 60)]})
    assert found["pc-ppo"][0] == 2
    assert math.isnan(found["pc-ppo"][1])
    assert speedups({"pg-morl": [curve(50, 60)]}) == {}


def test_total_decrease() -> None:
    assert total_decrease(curve(50, 60, 55, 40, 50)) == pytest.approx(20 / 50)
    assert total_decrease(curve(50, 60)) == 0


def test_convergence_is_open_if_most_curves_converged_before_their_first_point() -> None:
    slow, fast = curve(30, 55, 60), curve(54, 55, 60)
    early, late = curve(59, 60, 60), curve(30, 40, 60)

    def faster(mapping: list[np.ndarray], oracle: list[np.ndarray]) -> tuple[str, str]:
        found = {one.claim.id: one for one in check_mapping_claims("c-moppo", {"a": mapping, ORACLE: oracle})}
        return found["mapping-c-moppo-faster"].verdict, found["mapping-c-moppo-faster"].numbers

    assert faster([fast, fast], [slow, slow])[0] == "open"  # both between the second point and the third
    assert faster([slow, slow], [late, late])[0] == "agrees"
    assert faster([late, late], [slow, slow])[0] == "disagrees"
    assert faster([early, early], [early, late]) == ("open", "converged at first point in 3 of 4 trainings")


def test_three_best_policies() -> None:
    front = np.array([[0.6, 3.0, 9.0], [0.5, 2.5, 8.0], [0.4, 2.4, 12.0], [0.3, 2.9, 0.4]])
    top = best_of(front)
    assert top[0, :, 0].tolist() == [0.6, 0.5, 0.4]
    assert top[1, :, 1].tolist() == [2.4, 2.5, 2.9]
    assert top[2, :, 2].tolist() == [0.4, 8.0, 9.0]
    assert repeated_share(top) == pytest.approx(1 - 4 / 9)
    single = fake_result(load_scale("smoke").trial("s-ppo", 0)).front[:1]
    assert repeated_share(best_of(single)) == pytest.approx(8 / 9)
