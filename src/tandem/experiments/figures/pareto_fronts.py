"""The Pareto fronts, in space and in projections: the paper's Fig. 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tandem.experiments.claims import EVERY, GOAL, Claim, Ordering, check_claims
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import (
    EVOLVED,
    GUIDED,
    OURS,
    PAPERS,
    PROPOSED,
    RANDOM,
    SCALARISED,
    add_grid,
    label,
    line_style,
    write_figure,
)
from tandem.experiments.reference_front import share_of_best
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Data, Rows, Samples, group_rows
from tandem.experiments.trial import Trial, TrialResult
from tandem.experiments.versions import PAPER_VERSIONS, select_versions
from tandem.objectives import AXIS_LABELS, OBJECTIVE_KEYS
from tandem.stats import mean, relative_gain

NAME, TITLE = "pareto-fronts", "Pareto fronts"
SUMMARY, VERSIONS = f"{NAME}-summary", f"{NAME}-versions"
PLANES = ((1, 0), (2, 0), (2, 1))
CLAIMS = (
    Claim(
        "fronts-c-moppo-best",
        "C-MOPPO covers the front best, PG-MORL comes second.",
        "hypervolume",
        Ordering((PROPOSED,), (GUIDED,)),
    ),
    Claim(
        "fronts-pg-morl-latency-gap",
        "PG-MORL's gap is largest where latency matters: its lowest latency is above C-MOPPO's.",
        "lowest_latency_s",
        Ordering((PROPOSED,), (GUIDED,), lower=True),
        unit="s",
    ),
    Claim(
        "fronts-moea-d-s-ppo-inferior",
        "MOEA/D and S-PPO are clearly inferior to C-MOPPO.",
        "hypervolume",
        Ordering((PROPOSED,), (EVOLVED, SCALARISED)),
    ),
    Claim("fronts-r-ppo-worst", "R+PPO delivers the worst front.", "hypervolume", Ordering(PAPERS, (RANDOM,))),
    Claim(
        "fronts-pc-ppo-highest",
        "PC-PPO has the highest hypervolume.",
        "hypervolume",
        Ordering((OURS,), EVERY),
        paper=GOAL,
    ),
)


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Return the trials of every algorithm on the paper's fleet, and those of the paper's versions."""
    versions = [trial for version in select_versions(PAPER_VERSIONS, algorithms) for trial in version.trials(scale)]
    return [*scale.default_trials(algorithms), *versions]


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Collect the policies of every front, and the metrics of the fronts; those of the paper's versions separately."""
    policies, fronts = [], []
    for trial in scale.default_trials(algorithms):
        name, result = {"algorithm": trial.algorithm, "seed": trial.seed}, results[trial]
        policies += [name | dict(zip(OBJECTIVE_KEYS, policy, strict=True)) for policy in result.front]
        fronts.append(name | _metrics(result))
    versions = [
        {"version": version.label, "algorithm": trial.algorithm, "seed": trial.seed} | _metrics(results[trial])
        for version in select_versions(PAPER_VERSIONS, algorithms)
        for trial in version.trials(scale)
    ]
    return {NAME: policies, SUMMARY: fronts} | ({VERSIONS: versions} if versions else {})


def _metrics(result: TrialResult) -> dict[str, Any]:
    metrics = ("hypervolume", "sparsity", "expected_utility", "violation_rate", "rounds")
    return {metric: getattr(result, metric) for metric in metrics} | {"policies": len(result.front)}


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Check the claims, make the table and draw the figure."""
    fronts = {
        name: np.array([[row[key] for key in OBJECTIVE_KEYS] for row in rows])
        for name, rows in group_rows(data[NAME], "algorithm", "seed").items()
    }
    rows = [{**row, "front": fronts[row["algorithm"], row["seed"]]} for row in data[SUMMARY]]
    latencies = [{**row, "lowest_latency_s": row["front"][:, 1].min()} for row in rows]
    return ReportSection(
        name=NAME,
        title=TITLE,
        about="The paper's Fig. 3. The policies of every algorithm's front, measured on new seeds. The figure shows "
        "the training with the median hypervolume, the table all of them.",
        claims=check_claims(CLAIMS, Samples.from_rows(latencies, ("hypervolume", "lowest_latency_s"))),
        tables=(_table(scale, rows), *_versions_tables(rows, data.get(VERSIONS, []))),
        figures=(_draw(rows, out),),
    )


def _table(scale: Scale, rows: Rows) -> Table:
    columns = {
        name: {key: [row[key] for row in own] for key in own[0]}
        for (name,), own in group_rows(rows, "algorithm").items()
    }
    table = []
    for name, own in columns.items():
        share = share_of_best(scale, own["hypervolume"])
        gain = relative_gain(own["hypervolume"], columns[GUIDED]["hypervolume"]) if GUIDED in columns else None
        table.append(
            (
                label(name),
                str(mean(own["hypervolume"])),
                "" if share is None else f"{share.scaled(100)} %",
                "" if gain is None or name == GUIDED else f"{gain.scaled(100)} %",
                str(mean(own["sparsity"])),
                str(mean(own["expected_utility"])),
                f"{np.mean(own['policies']):.0f}",
                f"{np.mean(own['violation_rate']):.2%}",
                f"{np.mean(own['rounds']):,.0f}",
            )
        )
    headings = (
        "",
        "hypervolume",
        "share of the best known",
        "gain over PG-MORL",
        "sparsity",
        "expected utility",
        "policies",
        "rounds with a violation",
        "rounds used",
    )
    return Table("Fronts of the paper's fleet", headings, tuple(table))


def _versions_tables(rows: Rows, versions: Rows) -> list[Table]:
    """Return the table of the paper's versions; none if there are no such trials."""
    ours = {name: [row["hypervolume"] for row in own] for (name,), own in group_rows(rows, "algorithm").items()}
    table = []
    for (version, name), own in group_rows(versions, "version", "algorithm").items():
        hypervolumes = [row["hypervolume"] for row in own]
        table.append(
            (
                version,
                str(mean(hypervolumes)),
                f"{relative_gain(hypervolumes, ours[name]).scaled(100)} %",
                str(mean([row["sparsity"] for row in own])),
                f"{np.mean([row['policies'] for row in own]):.0f}",
                f"{np.mean([row['violation_rate'] for row in own]):.2%}",
                f"{np.mean([row['rounds'] for row in own]):,.0f}",
            )
        )
    headings = ("", "hypervolume", "gain over our version", "sparsity", "policies", "rounds with a violation")
    title = "The paper's versions of baselines: without what we added, with the same budget"
    return [Table(title, (*headings, "rounds used"), tuple(table))] if table else []


def _draw(rows: Rows, out: Path) -> str:
    figure = Figure(figsize=(12, 9.5), layout="constrained")
    space = figure.add_subplot(2, 2, 1, projection="3d")
    planes = [figure.add_subplot(2, 2, 2 + index) for index in range(3)]
    for (name,), own in reversed(group_rows(rows, "algorithm").items()):
        front = sorted(own, key=lambda row: float(row["hypervolume"]))[len(own) // 2]["front"]
        style = {**line_style(name), "s": 16, "alpha": 0.75, "label": label(name)}
        space.scatter(front[:, 1], front[:, 2], front[:, 0], **style)
        for axes, (across, up) in zip(planes, PLANES, strict=True):
            axes.scatter(front[:, across], front[:, up], **style)
    space.set(xlabel=AXIS_LABELS[1], ylabel=AXIS_LABELS[2], zlabel=AXIS_LABELS[0])
    space.view_init(elev=24, azim=-128)
    for axes, (across, up) in zip(planes, PLANES, strict=True):
        axes.set(xlabel=AXIS_LABELS[across], ylabel=AXIS_LABELS[up])
        add_grid(axes)
    handles, labels = planes[0].get_legend_handles_labels()
    planes[0].legend(handles[::-1], labels[::-1], frameon=False, fontsize=9)
    return write_figure(figure, out, NAME)


PARETO_FRONTS = Experiment(NAME, TITLE, trials, collect, make_section)
