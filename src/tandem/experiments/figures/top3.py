"""The three best policies of each algorithm in each objective: the paper's Table III."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tandem.experiments.claims import EVERY, GOAL, Claim, Ordering, check_claims
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.fidelity_table import NOTE, fidelity_rows, fidelity_table
from tandem.experiments.plotting import OURS, PAPERS, PROPOSED, SCALARISED, label
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Data, Rows, Samples, group_rows
from tandem.experiments.trial import Trial, Values
from tandem.objectives import OBJECTIVE_KEYS, OBJECTIVE_LABELS, OBJECTIVES, to_maximised

NAME, TITLE = "top3", "The three best policies in each objective"
ESTIMATES = f"{NAME}-estimates"
KEPT = 3
CLAIMS = (
    *(
        Claim(
            f"top3-c-moppo-{objective.label}",
            f"C-MOPPO has the best {objective.label} of all.",
            f"best_{objective.key}",
            Ordering((PROPOSED,), PAPERS, lower=objective.sign < 0),
            paper=value,
            unit=objective.unit,
        )
        for objective, value in zip(OBJECTIVES, ("89.1 %", "2.68 s", "14.8 J"), strict=True)
    ),
    Claim(
        "top3-repetitions",
        "Scalarised methods repeat policies under different orientations, C-MOPPO does not.",
        "repeated_percent",
        Ordering((SCALARISED,), (PROPOSED,)),
        unit="%",
    ),
    *(
        Claim(
            f"top3-pc-ppo-{objective.label}",
            f"PC-PPO has the best {objective.label} of all.",
            f"best_{objective.key}",
            Ordering((OURS,), EVERY, lower=objective.sign < 0),
            paper=GOAL,
            unit=objective.unit,
        )
        for objective in OBJECTIVES
    ),
)


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Return the trials of every algorithm on the paper's fleet.

    On a task, evaluating learning curves is expensive; only algorithms that accuracy-mapping draws get more than the
    final point.
    """
    scale = scale.long_budget or scale
    return [
        scale.trial(algorithm, seed, curve_points=None if _has_curve(scale, algorithm) else 1)
        for algorithm in algorithms
        for seed in range(scale.seeds)
    ]


def _has_curve(scale: Scale, algorithm: str) -> bool:
    return not scale.reward_sources or algorithm in (PROPOSED, OURS)


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Collect the three best policies of every front; on a task also the comparison of estimates with measurements."""
    rows = [
        {"algorithm": trial.algorithm, "seed": trial.seed, "oriented_to": objective, "rank": rank + 1}
        | dict(zip(OBJECTIVE_KEYS, policy, strict=True))
        for trial in trials(scale, algorithms)
        for objective, policies in zip(OBJECTIVE_LABELS, best_of(results[trial].front), strict=True)
        for rank, policy in enumerate(policies)
    ]
    if not scale.reward_sources:
        return {NAME: rows}
    source = scale.reward_sources[0].name
    groups = [(name, source, [results[trial] for trial in trials(scale, [name])]) for name in algorithms]
    return {NAME: rows, ESTIMATES: fidelity_rows(groups)}


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Check the claims and make the tables."""
    tops = {name: _read_tops(rows) for (name,), rows in group_rows(data[NAME], "algorithm").items()}
    best = {
        f"best_{key}": {name: [float(top[index, 0, index]) for top in own] for name, own in tops.items()}
        for index, key in enumerate(OBJECTIVE_KEYS)
    }
    repeated = {name: [100 * repeated_share(top) for top in own] for name, own in tops.items()}
    section = ReportSection(
        name=NAME,
        title=TITLE,
        about="The paper's Table III, with estimated accuracy. Means over seeds of the first, second and third best "
        "policy of each front. The paper does not average over trainings, nor does it say which one it shows.",
        claims=check_claims(CLAIMS, Samples.from_seeds({**best, "repeated_percent": repeated})),
        tables=(_table(tops),),
    )
    return _on_task(section, scale, data) if scale.reward_sources else section


def _on_task(section: ReportSection, scale: Scale, data: Data) -> ReportSection:
    """Describe a section with accuracy measured on a task."""
    scale = scale.long_budget or scale
    source = scale.reward_sources[0]
    return replace(
        section,
        name=f"{NAME} --task {source.task}",
        title=f"{TITLE} ({source.task})",
        about=f"The paper's Table III, with accuracy measured on {source.task}. Policies were trained on estimates by "
        f"the mapping {source.mapping}, calibrated on the task, for {scale.budget:,} rounds; the three best are "
        f"selected by measurement. Means over {scale.seeds} seeds of the first, second and third best policy of each "
        f"front. {NOTE}",
        tables=(*section.tables, fidelity_table(data[ESTIMATES], source.task)),
    )


def best_of(front: Values) -> Values:
    """Return the best policies of a front in each objective, [objective, rank, 3], repeated if there are too few."""
    maximised = to_maximised(front)
    orders = [np.argsort(-maximised[:, objective], kind="stable") for objective in range(3)]
    return np.array([front[np.resize(order, max(KEPT, len(order)))[:KEPT]] for order in orders])


def repeated_share(top: Values) -> float:
    """Return the share of the nine policies of a front's table that repeat another one."""
    rows = top.reshape(-1, 3)
    return 1 - len(np.unique(rows, axis=0)) / len(rows)


def _read_tops(rows: Rows) -> list[Values]:
    """Return the best policies of every seed, [objective, rank, 3] each."""
    return [
        np.array([[row[key] for key in OBJECTIVE_KEYS] for row in own]).reshape(3, KEPT, 3)
        for own in group_rows(rows, "seed").values()
    ]


def _table(tops: dict[str, list[Values]]) -> Table:
    rows = []
    for name, own in tops.items():
        means = np.mean(own, axis=0)
        for rank in range(KEPT):
            cells = [f"{accuracy:.3f}, {latency:.2f} s, {energy:.2f} J" for accuracy, latency, energy in means[:, rank]]
            rows.append((label(name) if rank == 0 else "", *cells))
    headings = ("", *(f"{objective}-oriented" for objective in OBJECTIVE_LABELS))
    return Table("Accuracy, latency and energy of the three best in each objective", headings, tuple(rows))


TOP3 = Experiment(NAME, TITLE, trials, collect, make_section, on_task="possible")
