"""The fronts themselves, in space and pair by pair: the paper's Fig. 3."""

from __future__ import annotations

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
from tandem.experiments.plotting import EVOLVED, GUIDED, OURS, PAPERS, PROPOSED, RANDOM, SCALARISED, label, line_style
from tandem.experiments.reference_front import share_of_best
from tandem.experiments.scale import Scale
from tandem.experiments.trial import TrialResult
from tandem.objectives import AXIS_LABELS, OBJECTIVE_KEYS
from tandem.stats import difference, mean, relative_gain

TITLE = "Pareto fronts"
PLANES = ((1, 0), (2, 0), (2, 1))


def make_section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """Write data and figure, and judge."""
    found = {a: [results[scale.trial(a, seed)] for seed in range(scale.seeds)] for a in algorithms}
    rows = [(a, seed, *point) for a in algorithms for seed, one in enumerate(found[a]) for point in one.front]
    write_csv(out / "pareto-fronts.csv", ("algorithm", "seed", *OBJECTIVE_KEYS), rows)
    return ReportSection(
        name="pareto-fronts",
        title=TITLE,
        about="The paper's Fig. 3. Every policy of every algorithm's front as measured on fresh seeds; drawn is the "
        "training with the median hypervolume, the table is about all.",
        claims=(*_of_the_paper(found), *_of_ours(found)),
        tables=(_table(scale, found),),
        figures=(_draw(found, out),),
    )


def _volumes(found: list[TrialResult]) -> list[float]:
    return [one.hypervolume for one in found]


def _lowest_latency(found: list[TrialResult]) -> list[float]:
    return [float(one.front[:, 1].min()) for one in found]


def _above(found: dict[str, list[TrialResult]], first: str, rivals: list[str], stated: str) -> Claim:
    rivals = [name for name in rivals if name in found and first in found]
    margins = {name: difference(_volumes(found[first]), _volumes(found[name])) for name in rivals}
    said = ", ".join(f"{label(name)}'s by {margin}" for name, margin in margins.items())
    return check_claim(stated, f"{label(first)}'s hypervolume exceeds {said}." if said else "", *margins.values())


def _of_the_paper(found: dict[str, list[TrialResult]]) -> list[Claim]:
    sooner = []
    if {PROPOSED, GUIDED} <= set(found):
        sooner = [difference(_lowest_latency(found[GUIDED]), _lowest_latency(found[PROPOSED]))]
    rivals = [name for name in found if name in PAPERS and name != RANDOM and RANDOM in found]
    random = {name: difference(_volumes(found[name]), _volumes(found[RANDOM])) for name in rivals}
    return [
        _above(found, PROPOSED, [GUIDED], "C-MOPPO covers the front best, PG-MORL comes second."),
        check_claim(
            "PG-MORL's gap is largest where latency matters.",
            f"C-MOPPO's lowest latency is below PG-MORL's by {sooner[0] if sooner else ''} s.",
            *sooner,
        ),
        _above(found, PROPOSED, [EVOLVED, SCALARISED], "MOEA/D and S-PPO are clearly inferior to C-MOPPO."),
        check_claim(
            "R+PPO delivers the worst front.",
            "Its hypervolume is lower by " + ", ".join(f"{m} than {label(n)}'s" for n, m in random.items()) + ".",
            *random.values(),
        ),
    ]


def _of_ours(found: dict[str, list[TrialResult]]) -> list[Claim]:
    if OURS not in found:
        return []
    return [_above(found, OURS, [n for n in found if n != OURS], "Ours: Tandem has the highest hypervolume.")]


def _table(scale: Scale, found: dict[str, list[TrialResult]]) -> Table:
    rows = []
    for name, own in found.items():
        volumes = _volumes(own)
        share = share_of_best(scale, volumes)
        against = relative_gain(volumes, _volumes(found[GUIDED])) if GUIDED in found and name != GUIDED else None
        rows.append(
            (
                label(name),
                str(mean(volumes)),
                "" if share is None else f"{share.scaled(100)} %",
                "" if against is None else f"{against.scaled(100)} %",
                str(mean([one.sparsity for one in own])),
                str(mean([one.expected_utility for one in own])),
                f"{np.mean([len(one.front) for one in own]):.0f}",
                f"{np.mean([one.violation_rate for one in own]):.2%}",
                f"{np.mean([one.rounds for one in own]):,.0f}",
            )
        )
    headings = (
        "",
        "hypervolume",
        "share of the best known",
        "against PG-MORL",
        "sparsity",
        "expected utility",
        "policies",
        "rounds in violation",
        "rounds spent",
    )
    return Table("Fronts of the paper's fleet", headings, tuple(rows))


def _draw(found: dict[str, list[TrialResult]], out: Path) -> str:
    figure = Figure(figsize=(12, 9.5), layout="constrained")
    space = figure.add_subplot(2, 2, 1, projection="3d")
    planes = [figure.add_subplot(2, 2, 2 + place) for place in range(3)]
    for name, own in reversed(found.items()):
        front = sorted(own, key=lambda one: one.hypervolume)[len(own) // 2].front
        style = {**line_style(name), "s": 16, "alpha": 0.75, "label": label(name)}
        space.scatter(front[:, 1], front[:, 2], front[:, 0], **style)
        for axes, (across, up) in zip(planes, PLANES, strict=True):
            axes.scatter(front[:, across], front[:, up], **style)
    space.set(xlabel=AXIS_LABELS[1], ylabel=AXIS_LABELS[2], zlabel=AXIS_LABELS[0])
    space.view_init(elev=24, azim=-128)
    for axes, (across, up) in zip(planes, PLANES, strict=True):
        axes.set(xlabel=AXIS_LABELS[across], ylabel=AXIS_LABELS[up])
        axes.grid(color="#e6e6e6", linewidth=0.7)
    handles, labels = planes[0].get_legend_handles_labels()
    planes[0].legend(handles[::-1], labels[::-1], frameon=False, fontsize=9)
    return write_figure(figure, out, "pareto-fronts")


PARETO_FRONTS = Experiment("pareto-fronts", TITLE, Scale.default_trials, make_section)
