"""The three best policies of each algorithm in each objective: the paper's Table III."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tandem.experiments.claims import (
    Algorithms,
    Claim,
    Experiment,
    ReportSection,
    Results,
    Table,
    check_claim,
    write_csv,
)
from tandem.experiments.fidelity_table import NOTE, fidelity_table, write_fidelity
from tandem.experiments.plotting import OURS, PAPERS, PROPOSED, SCALARISED, label
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Trial, Values
from tandem.objectives import OBJECTIVE_KEYS, OBJECTIVE_LABELS, OBJECTIVES, to_maximised
from tandem.stats import Estimate, difference, mean

TITLE = "The three best policies in each objective"
KEPT = 3
UNITS = ("", " s", " J")


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Every algorithm on the paper's fleet."""
    scale = scale.long_budget or scale
    return [cell for algorithm in algorithms for cell in _seeds(scale, algorithm)]


def make_section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """Write data and table, and judge."""
    scale = scale.long_budget or scale
    tops = {a: [best_of(results[cell].front) for cell in _seeds(scale, a)] for a in algorithms}
    rows = [
        (a, seed, OBJECTIVE_LABELS[goal], place + 1, *top[goal, place])
        for a in algorithms
        for seed, top in enumerate(tops[a])
        for goal in range(3)
        for place in range(KEPT)
    ]
    headings = ("algorithm", "seed", "oriented_to", "place", *OBJECTIVE_KEYS)
    write_csv(out / "top3.csv", headings, rows)
    said = ReportSection(
        name="top3",
        title=TITLE,
        about="The paper's Table III, with the simulator's estimated accuracy. Means over seeds of the first, second "
        "and third best of each front. The paper averages neither over trainings nor says which one it shows.",
        claims=(*_of_the_paper(tops), *_of_ours(tops)),
        tables=(_table(tops),),
    )
    return _measured(said, scale, algorithms, results, out) if scale.reward_sources else said


def _measured(said: ReportSection, scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """The section of a table with accuracy as measured on a task."""
    ground = scale.reward_sources[0]
    groups = [(a, ground.name, [results[cell] for cell in _seeds(scale, a)]) for a in algorithms]
    write_fidelity(out / "top3-estimates.csv", groups)
    return replace(
        said,
        name=f"top3 --task {ground.task}",
        title=f"{TITLE} ({ground.task})",
        about=f"The paper's Table III, with accuracy as measured on {ground.task}. Fronts were trained on estimates by "
        f"the mapping {ground.mapping}, as calibrated there, for {scale.budget:,} rounds; the three best are so by "
        f"what was measured. Means over {scale.seeds} seeds of the first, second and third best of each front. {NOTE}",
        tables=(*said.tables, fidelity_table(groups, ground.task)),
    )


def best_of(front: Values) -> Values:
    """[objective, place, 3]: the policies of a front that are best in each objective, repeated if there are too few."""
    maximised = to_maximised(front)
    order = [np.argsort(-maximised[:, goal], kind="stable") for goal in range(3)]
    return np.array([front[np.resize(one, max(KEPT, len(one)))[:KEPT]] for one in order])


def repeated(top: Values) -> float:
    """Among the nine policies of a front's table, the share that stand in it more than once."""
    rows = top.reshape(-1, 3)
    return 1 - len(np.unique(rows, axis=0)) / len(rows)


def _seeds(scale: Scale, algorithm: str) -> list[Trial]:
    """On a task, only those that accuracy-mapping draws are measured on the way: there it costs."""
    marks = None if not scale.reward_sources or algorithm in (PROPOSED, OURS) else 1
    return [scale.trial(algorithm, seed, curve_points=marks) for seed in range(scale.seeds)]


def _best(tops: list[Values], goal: int) -> list[float]:
    return [float(top[goal, 0, goal]) for top in tops]


def _ahead(tops: dict[str, list[Values]], first: str, second: str, goal: int) -> Estimate:
    return difference(_best(tops[first], goal), _best(tops[second], goal)).scaled(OBJECTIVES[goal].sign)


def _leads(tops: dict[str, list[Values]], algorithm: str, rivals: list[str], goal: int, stated: str) -> Claim:
    if algorithm not in tops:
        return check_claim(stated, "")
    ahead = {name: _ahead(tops, algorithm, name, goal) for name in rivals}
    own = mean(_best(tops[algorithm], goal))
    said = ", ".join(f"{label(name)}'s by {margin}{UNITS[goal]}" for name, margin in ahead.items())
    return check_claim(stated, f"Its best is {own}{UNITS[goal]}, better than {said}.", *ahead.values())


def _of_the_paper(tops: dict[str, list[Values]]) -> list[Claim]:
    rivals = [name for name in tops if name in PAPERS and name != PROPOSED]
    said = [
        _leads(tops, PROPOSED, rivals, goal, f"C-MOPPO has the best {OBJECTIVE_LABELS[goal]} of all ({value}).")
        for goal, value in enumerate(("89.1 %", "2.68 s", "14.8 J"))
    ]
    stated = "Scalarised methods repeat policies under different orientations, C-MOPPO does not."
    if not {SCALARISED, PROPOSED} <= set(tops):
        return [*said, check_claim(stated, "")]
    shares = {name: [repeated(top) for top in tops[name]] for name in (SCALARISED, PROPOSED)}
    found = ", ".join(f"{label(name)} {mean(own).scaled(100)} %" for name, own in shares.items())
    margin = difference(shares[SCALARISED], shares[PROPOSED])
    return [*said, check_claim(stated, f"Of nine policies are repetitions: {found}.", margin)]


def _of_ours(tops: dict[str, list[Values]]) -> list[Claim]:
    if OURS not in tops:
        return []
    rivals = [name for name in tops if name != OURS]
    return [
        _leads(tops, OURS, rivals, goal, f"Ours: Tandem has the best {OBJECTIVE_LABELS[goal]} of all.")
        for goal in range(3)
    ]


def _table(tops: dict[str, list[Values]]) -> Table:
    rows = []
    for name, own in tops.items():
        means = np.mean(own, axis=0)
        for place in range(KEPT):
            found = [f"{a:.3f}, {t:.2f} s, {e:.2f} J" for a, t, e in means[:, place]]
            rows.append((label(name) if place == 0 else "", *found))
    headings = ("", *(f"{goal}-oriented" for goal in OBJECTIVE_LABELS))
    return Table("Accuracy, latency and energy of the three best in each objective", headings, tuple(rows))


TOP3 = Experiment("top3", TITLE, trials, make_section, on_task="possible")
