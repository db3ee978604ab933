"""Hypervolume by measured accuracy, after training on estimates and on measurements: the paper's section V-E."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tandem.experiments.claims import EVERY, GOAL, QUALITATIVE, CheckedClaim, Claim, GapBelow, Ordering, SpreadBelow
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.fidelity_table import NOTE, fidelity_rows, fidelity_table
from tandem.experiments.figures.convergence import curve_rows, final_values, read_curves, rounds_to
from tandem.experiments.figures.top3 import best_of
from tandem.experiments.plotting import OURS, PROPOSED, add_grid, draw_curves, label, write_figure
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.reward_source import ORACLE, RewardSource
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Data, Rows, Samples, group_rows
from tandem.experiments.trial import Trial, TrialResult, Values
from tandem.stats import mean, relative_gain

NAME, TITLE = "accuracy-mapping", "Learning from estimated accuracy, evaluated by measured accuracy"
ESTIMATES, EXTREMES = f"{NAME}-estimates", f"{NAME}-ends"
GAP = 0.05  # largest gap to the oracle that the paper reports
SPREAD = 0.0131  # and between mappings
CONVERGED = 0.95  # share of its final hypervolume at which a curve has converged
STYLES = ("#222222", "s"), ("#1f6fb2", "o"), ("#2a9d64", "D"), ("#d98c21", "^")  # of the oracle, then of the mappings

Curves = dict[str, list[Values]]  # learning curves of all seeds, by reward source


def claims_about(algorithm: str) -> tuple[Claim, ...]:
    """Return the paper's claims about C-MOPPO; about another algorithm they are goals."""
    name, is_papers = label(algorithm), algorithm == PROPOSED

    def source(value: str) -> str:
        if is_papers:
            return value
        return GOAL if value == QUALITATIVE else f"{GOAL}: {value}"

    return (
        Claim(
            f"mapping-{algorithm}-gap",
            f"{name} trained on mappings ends less than 5 % below its oracle.",
            "final_hypervolume",
            GapBelow(ORACLE, GAP),
            paper=source("below 5 %"),
            unit="%",
        ),
        Claim(
            f"mapping-{algorithm}-spread",
            f"{name} ends within 1.31 %, whichever mapping it is trained on.",
            "final_hypervolume",
            SpreadBelow(ORACLE, SPREAD),
            paper=source("within 1.31 %"),
            unit="%",
        ),
        Claim(
            f"mapping-{algorithm}-faster",
            f"{name} converges faster on mappings than its oracle (rounds to 95 % of the final hypervolume).",
            "thousand_rounds_to_converge",
            Ordering(EVERY, (ORACLE,), lower=True),
            paper=source(QUALITATIVE),
            unit="thousand rounds",
            censored="converged_at_first_point",
        ),
        Claim(
            f"mapping-{algorithm}-steadier",
            f"{name} converges more steadily on mappings than its oracle (total decrease, in percent of the end).",
            "total_decrease_percent",
            Ordering(EVERY, (ORACLE,), lower=True),
            paper=source(QUALITATIVE),
            unit="%",
        ),
    )


def reward_sources(scale: Scale) -> tuple[RewardSource, ...]:
    """Return every mapping, and the oracle that observes the estimates of the first."""
    return (*scale.reward_sources, scale.reward_sources[0].as_oracle())


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Return the trials of every algorithm with every reward source."""
    return [trial for name in algorithms for source in reward_sources(scale) for trial in _seeds(scale, name, source)]


def _seeds(scale: Scale, algorithm: str, source: RewardSource) -> list[Trial]:
    return [scale.trial(algorithm, seed, reward_source=source) for seed in range(scale.seeds)]


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Collect learning curves, the best values of every front, and the comparison of estimates with measurements."""
    groups: list[tuple[str, str, list[TrialResult]]] = [
        (name, source.name, [results[trial] for trial in _seeds(scale, name, source)])
        for name in algorithms
        for source in reward_sources(scale)
    ]
    curves, extremes = [], []
    for algorithm, source, own in groups:
        for result in own:
            name = {"algorithm": algorithm, "reward_source": source, "seed": result.trial.seed}
            curves += [{**name, **point} for point in curve_rows(result)]
            best = zip(("best_accuracy", "best_latency_s", "best_energy_j"), best_in_each(result.front), strict=True)
            extremes.append({**name, "hypervolume": result.hypervolume, **dict(best)})
    return {NAME: curves, EXTREMES: extremes, ESTIMATES: fidelity_rows(groups)}


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Check the claims, make the tables and draw the figure."""
    curves: dict[str, Curves] = {}
    for (algorithm, source), rows in group_rows(data[NAME], "algorithm", "reward_source").items():
        curves.setdefault(algorithm, {})[source] = read_curves(rows)
    task = scale.reward_sources[0].task
    return ReportSection(
        name=f"{NAME} --task {task}",
        title=f"{TITLE} ({task})",
        about="The paper's comparison of mapping functions with an oracle. Each algorithm is trained on the estimates "
        f"of mappings that were calibrated on {task} and, as an oracle, on measured accuracy; all fronts are evaluated "
        f"by measured accuracy. {NOTE}",
        claims=tuple(one for name, own in curves.items() for one in check_mapping_claims(name, own)),
        tables=(
            *(_table(name, own) for name, own in curves.items()),
            _extremes(data[EXTREMES]),
            _constants(scale),
            fidelity_table(data[ESTIMATES], task),
        ),
        figures=(_draw(curves, task, out),),
    )


def check_mapping_claims(algorithm: str, curves: Curves) -> tuple[CheckedClaim, ...]:
    """Check the claims about an algorithm."""
    converged = {name: _rounds_to_converge(own) for name, own in curves.items()}
    metrics = {
        "final_hypervolume": {name: final_values(own) for name, own in curves.items()},
        "thousand_rounds_to_converge": {name: [rounds / 1000 for rounds in own] for name, own in converged.items()},
        "converged_at_first_point": {
            name: [float(rounds == curve[0, 0]) for rounds, curve in zip(converged[name], own, strict=True)]
            for name, own in curves.items()
        },
        "total_decrease_percent": {name: [100 * total_decrease(one) for one in own] for name, own in curves.items()},
    }
    samples = Samples.from_seeds(metrics)
    return tuple(claim.check(samples) for claim in claims_about(algorithm))


def total_decrease(curve: Values) -> float:
    """Return the sum of all decreases of a curve from point to point, as a share of its final value."""
    return float(np.maximum(-np.diff(curve[:, 1]), 0).sum() / curve[-1, 1])


def best_in_each(front: Values) -> Values:
    """Return the best accuracy, latency (s) and energy (J) of a front."""
    return best_of(front)[:, 0].diagonal()


def _rounds_to_converge(curves: list[Values]) -> list[float]:
    return [rounds_to(curve, CONVERGED * float(curve[-1, 1])) for curve in curves]


def _table(algorithm: str, curves: Curves) -> Table:
    rows = []
    for name, own in curves.items():
        last = final_values(own)
        gap = "" if name == ORACLE else f"{relative_gain(last, final_values(curves[ORACLE])).scaled(100)} %"
        thousands = mean(_rounds_to_converge(own)).scaled(1e-3)
        decrease = mean([total_decrease(curve) for curve in own]).scaled(100)
        rows.append((name, str(mean(last)), gap, str(thousands), f"{decrease} %"))
    headings = ("reward source", "hypervolume", "gain over the oracle", "thousand rounds to 95 %", "total decrease")
    return Table(f"{label(algorithm)} by measured accuracy", headings, tuple(rows))


def _extremes(rows: Rows) -> Table:
    """Return a table of the best accuracy, latency and energy, which explain the hypervolumes."""
    table = []
    for (algorithm, source), own in group_rows(rows, "algorithm", "reward_source").items():
        best = (str(mean([row[f"best_{key}"] for row in own])) for key in ("accuracy", "latency_s", "energy_j"))
        table.append((label(algorithm), source, *best))
    headings = ("", "reward source", "highest accuracy", "lowest latency (s)", "lowest energy (J)")
    return Table("Extremes of the fronts, by measured accuracy", headings, tuple(table))


def _constants(scale: Scale) -> Table:
    rows = [(one.mapping, *(f"{k:.4g}" for k in one.kappa), f"{one.decay_per_s:.4g}") for one in scale.reward_sources]
    return Table("Calibrated constants", ("mapping", "κ1", "κ2", "κ3", "ρ (1/s)"), tuple(rows))


def _draw(curves: dict[str, Curves], task: str, out: Path) -> str:
    figure = Figure(figsize=(5.8 * len(curves) + 0.6, 4.4), layout="constrained")
    for axes, (algorithm, own) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        for index, (name, seeds) in enumerate(own.items(), start=1):
            colour, marker = STYLES[0 if name == ORACLE else index % len(STYLES)]
            draw_curves(axes, seeds, name, {"color": colour, "marker": marker})
        axes.set(xlabel="environment rounds", ylabel=f"hypervolume, accuracy measured on {task}")
        axes.set_title(label(algorithm), fontsize=10)
        add_grid(axes)
    figure.axes[0].legend(frameon=False, fontsize=9)
    return write_figure(figure, out, NAME)


ACCURACY_MAPPING = Experiment(NAME, TITLE, trials, collect, make_section, on_task="always", algorithms=(PROPOSED, OURS))
