"""Hypervolume by measured accuracy, learned from estimates and from what is measured: the paper's section V-E."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tandem.experiments.claims import (
    Algorithms,
    Claim,
    Experiment,
    ReportSection,
    Results,
    Table,
    check_claim,
    write_csv,
    write_figure,
)
from tandem.experiments.fidelity_table import NOTE, fidelity_table, write_fidelity
from tandem.experiments.figures.convergence import final_values, rounds_to
from tandem.experiments.figures.top3 import best_of
from tandem.experiments.plotting import OURS, PROPOSED, draw_curves, label
from tandem.experiments.reward_source import ORACLE, RewardSource
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Trial, TrialResult, Values
from tandem.stats import Estimate, difference, mean, relative_gain

NAME, TITLE = "accuracy-mapping", "Learning from estimated accuracy, judged by measured accuracy"
GAP = 0.05  # to the oracle, at most
BETWEEN = 0.0131  # of mappings, at most
CONVERGED = 0.95  # of its own end: from there on a curve has converged
LOOKS = ("#222222", "s"), ("#1f6fb2", "o"), ("#2a9d64", "D"), ("#d98c21", "^")  # of the oracle, and of mappings

Curves = dict[str, list[Values]]  # by what was learned from, one a seed
Group = tuple[str, str, list[TrialResult]]  # of an algorithm, by what it learned from


def reward_sources(scale: Scale) -> tuple[RewardSource, ...]:
    """Every mapping, and the oracle, which sees the estimates of the first."""
    return (*scale.reward_sources, scale.reward_sources[0].as_oracle())


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Each algorithm on each ground."""
    return [cell for a in algorithms for ground in reward_sources(scale) for cell in _seeds(scale, a, ground)]


def make_section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """Write data and figure, and judge."""
    found = {a: _by_ground(scale, a, results) for a in algorithms}
    curves = {a: {name: [one.curve for one in own] for name, own in by.items()} for a, by in found.items()}
    rows = [
        (a, name, seed, int(mark[0]), *mark[1:])
        for a, by in curves.items()
        for name, own in by.items()
        for seed, curve in enumerate(own)
        for mark in curve
    ]
    write_csv(out / f"{NAME}.csv", ("algorithm", "learned_from", "seed", "rounds", "hypervolume", "sparsity"), rows)
    groups = [(a, name, own) for a, by in found.items() for name, own in by.items()]
    write_fidelity(out / f"{NAME}-estimates.csv", groups)
    _write_ends(out / f"{NAME}-ends.csv", groups)
    task = scale.reward_sources[0].task
    return ReportSection(
        name=f"{NAME} --task {task}",
        title=f"{TITLE} ({task})",
        about="The paper's figure of mapping functions against an oracle. Each algorithm is trained on estimates by "
        f"mappings that were calibrated on {task}, and, as an oracle, on measured accuracy; all fronts are measured by "
        f"the latter. {NOTE}",
        claims=tuple(one for a, by in curves.items() for one in _statements(a, by)),
        tables=(
            *(_table(a, by) for a, by in curves.items()),
            _ends(groups),
            _constants(scale),
            fidelity_table(groups, task),
        ),
        figures=(_draw(curves, task, out),),
    )


def total_decrease(curve: Values) -> float:
    """By how much a curve falls from mark to mark, all falls together, as a share of its end."""
    return float(np.maximum(-np.diff(curve[:, 1]), 0).sum() / curve[-1, 1])


def _seeds(scale: Scale, algorithm: str, ground: RewardSource) -> list[Trial]:
    return [scale.trial(algorithm, seed, reward_source=ground) for seed in range(scale.seeds)]


def _by_ground(scale: Scale, algorithm: str, results: Results) -> dict[str, list[TrialResult]]:
    return {one.name: [results[cell] for cell in _seeds(scale, algorithm, one)] for one in reward_sources(scale)}


def _statements(algorithm: str, curves: Curves) -> Iterator[Claim]:
    """The paper's of its algorithm; of any other, the same is what we want to know of it."""
    whose = "" if algorithm == PROPOSED else "Ours: "
    who = label(algorithm)
    oracle = curves[ORACLE]
    mapped = {name: own for name, own in curves.items() if name != ORACLE}
    behind = {name: relative_gain(final_values(own), final_values(oracle)).scaled(-100) for name, own in mapped.items()}
    yield check_claim(
        f"{whose}{who} on mappings ends less than {GAP:.0%} below its oracle.",
        f"Behind it are {_said(behind, ' %')}.",
        *(gap.scaled(-1).shifted(100 * GAP) for gap in behind.values()),
    )
    pairs = {
        pair: relative_gain(*(final_values(mapped[name]) for name in pair)).scaled(100)
        for pair in permutations(mapped, 2)
    }
    farthest = max(pairs, key=lambda pair: pairs[pair].value, default=None)
    yield check_claim(
        f"{whose}{who} on mappings ends within {BETWEEN:.2%}, whichever it is.",
        "" if farthest is None else f"Farthest apart are {' and '.join(farthest)}, by {pairs[farthest]} %.",
        *(apart.scaled(-1).shifted(100 * BETWEEN) for apart in pairs.values()),
    )
    yield _faster(f"{whose}{who} converges faster on mappings than its oracle.", mapped, oracle)
    steadier = {name: difference(_falls(oracle), _falls(own)).scaled(100) for name, own in mapped.items()}
    yield check_claim(
        f"{whose}{who} converges more steadily on mappings than its oracle.",
        f"Falls from mark to mark are smaller, in percent of the end, by {_said(steadier)}.",
        *steadier.values(),
    )


def _faster(stated: str, mapped: Curves, oracle: list[Values]) -> Claim:
    everyone = [curve for own in (*mapped.values(), oracle) for curve in own]
    early = sum(_converged([curve])[0] == curve[0, 0] for curve in everyone)
    if 2 * early > len(everyone):  # nobody looked while they did
        found = (
            f"{early} of {len(everyone)} trainings are at {CONVERGED:.0%} of their own end by the first mark already."
        )
        return Claim(stated, found, "open")
    sooner = {name: difference(_converged(oracle), _converged(own)).scaled(1e-3) for name, own in mapped.items()}
    found = f"{CONVERGED:.0%} of its own end is reached earlier, in thousands of rounds, by {_said(sooner)}."
    return check_claim(stated, found, *sooner.values())


def _converged(curves: list[Values]) -> list[float]:
    return [rounds_to(curve, CONVERGED * float(curve[-1, 1])) for curve in curves]


def _falls(curves: list[Values]) -> list[float]:
    return [total_decrease(curve) for curve in curves]


def _said(estimates: dict[str, Estimate], unit: str = "") -> str:
    return ", ".join(f"{name} {estimate}{unit}" for name, estimate in estimates.items())


def _table(algorithm: str, curves: Curves) -> Table:
    rows = []
    for name, own in curves.items():
        last = final_values(own)
        gap = "" if name == ORACLE else f"{relative_gain(last, final_values(curves[ORACLE])).scaled(100)} %"
        thousands = mean(_converged(own)).scaled(1e-3)
        rows.append((name, str(mean(last)), gap, str(thousands), f"{mean(_falls(own)).scaled(100)} %"))
    headings = ("learned from", "hypervolume", "beside the oracle", "thousands of rounds to 95 %", "falls")
    return Table(f"{label(algorithm)} by measured accuracy", headings, tuple(rows))


def best_in_each(front: Values) -> Values:
    """Accuracy, latency (s) and energy (J), each of the policy of a front that is best in it."""
    return best_of(front)[:, 0].diagonal()


def _write_ends(path: Path, groups: list[Group]) -> None:
    rows = [
        (algorithm, name, seed, one.hypervolume, *best_in_each(one.front))
        for algorithm, name, own in groups
        for seed, one in enumerate(own)
    ]
    headings = ("algorithm", "learned_from", "seed", "hypervolume", "best_accuracy", "best_latency_s", "best_energy_j")
    write_csv(path, headings, rows)


def _ends(groups: list[Group]) -> Table:
    """What a hypervolume is made of: does who learned from the truth answer better, or faster, or cheaper?"""
    rows = []
    for algorithm, name, own in groups:
        best = np.array([best_in_each(one.front) for one in own])
        rows.append((label(algorithm), name, *(str(mean(list(column))) for column in best.T)))
    headings = ("", "learned from", "highest accuracy", "lowest latency (s)", "lowest energy (J)")
    return Table("The ends of the fronts, by measured accuracy", headings, tuple(rows))


def _constants(scale: Scale) -> Table:
    rows = [(one.mapping, *(f"{k:.4g}" for k in one.kappa), f"{one.decay_per_s:.4g}") for one in scale.reward_sources]
    return Table("As calibrated", ("mapping", "κ1", "κ2", "κ3", "ρ (1/s)"), tuple(rows))


def _draw(curves: dict[str, Curves], task: str, out: Path) -> str:
    figure = Figure(figsize=(5.8 * len(curves) + 0.6, 4.4), layout="constrained")
    for axes, (algorithm, by) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        for place, (name, own) in enumerate(by.items(), start=1):
            colour, marker = LOOKS[0 if name == ORACLE else place % len(LOOKS)]
            draw_curves(axes, own, name, {"color": colour, "marker": marker})
        axes.set(xlabel="environment rounds", ylabel=f"hypervolume, accuracy measured on {task}")
        axes.set_title(label(algorithm), fontsize=10)
        axes.grid(color="#e6e6e6", linewidth=0.7)
    figure.axes[0].legend(frameon=False, fontsize=9)
    return write_figure(figure, out, NAME)


ACCURACY_MAPPING = Experiment(NAME, TITLE, trials, make_section, on_task="always", algorithms=(PROPOSED, OURS))
