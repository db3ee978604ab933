"""The paper's setting: no shield, constraints only by the penalty in the reward, over hardness and fleet size."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from tandem.experiments.claims import GOAL, CheckedClaim, Claim, Ordering, check_claims, combine
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import (
    GUIDED,
    OURS,
    PAPERS,
    PROPOSED,
    RANDOM,
    SCALARISED,
    add_grid,
    error_bars,
    label,
    line_style,
    write_figure,
)
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.scale import Hardness, Scale
from tandem.experiments.sweep_results import HYPERVOLUME
from tandem.experiments.tables import Data, Rows, Samples, X, group_rows
from tandem.experiments.trial import Trial
from tandem.experiments.versions import CREDIT_VERSIONS, Version, select_versions

NAME, TITLE = "literal", "The paper's setting: penalties instead of a shield"
VERSIONS = f"{NAME}-versions"
METRICS = (
    HYPERVOLUME,
    "sparsity",
    "cardinality",
    "violation_rate",
    "policies_within_tolerance",
    "training_violation_rate",
    "late_violation_rate",
    "rounds",
)
# The paper's ranking, checked in every setting: id, statement, and the comparison of hypervolume.
RANKING = (
    ("c-moppo-highest", "C-MOPPO has the highest hypervolume.", Ordering((PROPOSED,), PAPERS)),
    ("c-moppo-above-s-ppo", "C-MOPPO is above S-PPO.", Ordering((PROPOSED,), (SCALARISED,))),
    ("c-moppo-above-pg-morl", "C-MOPPO is above PG-MORL.", Ordering((PROPOSED,), (GUIDED,))),
    ("r-ppo-last", "R+PPO is last.", Ordering(PAPERS, (RANDOM,))),
)
GOALS = (
    Claim(
        "literal-pc-ppo-at-least-c-moppo",
        "PC-PPO has at least C-MOPPO's hypervolume in every setting.",
        HYPERVOLUME,
        Ordering((OURS,), (PROPOSED,)),
        paper=GOAL,
    ),
)


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Return the trials of every algorithm and version without a shield, at every size and hardness."""
    versions = [*_defaults(algorithms), *select_versions(CREDIT_VERSIONS, algorithms)]
    return [trial for _, _, trial in _settings(scale, versions)]


def _defaults(algorithms: Algorithms) -> list[Version]:
    return [Version(algorithm, algorithm, ()) for algorithm in algorithms]


def _settings(scale: Scale, versions: Sequence[Version]) -> list[tuple[Version, Hardness, Trial]]:
    return [
        (version, hardness, trial)
        for version in versions
        for size in scale.literal.sizes
        for hardness in scale.literal.hardness
        for trial in version.trials(scale, size=size, overrides=hardness.overrides, shield=False)
    ]


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Collect the metrics of every trial, with the violations during training and of the delivered policies."""

    def rows(versions: Sequence[Version]) -> Rows:
        return [
            {"algorithm": version.label, "hardness": hardness.name, "size": trial.size, "seed": trial.seed}
            | {metric: getattr(results[trial], metric) for metric in METRICS}
            | {"policies": len(results[trial].front)}
            for version, hardness, trial in _settings(scale, versions)
        ]

    versions = rows(select_versions(CREDIT_VERSIONS, algorithms))
    return {NAME: rows(_defaults(algorithms))} | ({VERSIONS: versions} if versions else {})


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Check the ranking in every setting, make the tables and draw the figure."""
    rows, versions = (
        [{**row, "setting": _setting(row["size"], row["hardness"])} for row in data.get(name, ())]
        for name in (NAME, VERSIONS)
    )
    samples = Samples.from_rows(rows, METRICS, "setting")
    by_setting = {name: _check_ranking(name, own) for (name,), own in group_rows(rows, "setting").items()}
    ranking = tuple(claim for claims in by_setting.values() for claim in claims)
    return ReportSection(
        name=NAME,
        title=TITLE,
        about="As in the paper, nothing prevents a violation: training and delivered policies have no shield, a round "
        "in violation only gets the penalty as reward, and samples that do not fit into a buffer violate C3. Settings "
        "differ in the training iterations U, the size D_max of the buffer and the number of devices. PC-PPO credits a "
        "penalty to the devices that cause the violation, the paper's algorithms to the whole fleet; the tables have "
        "a row with the other choice for PC-PPO and C-MOPPO. " + describe_ranking(by_setting),
        claims=(*ranking, *check_claims(GOALS, samples)),
        tables=_tables(Samples.from_rows([*rows, *versions], (*METRICS, "policies"), "setting")),
        figures=(_draw(rows, out),),
    )


def _setting(size: int, hardness: str) -> str:
    return f"{size} devices, {hardness}"


def _check_ranking(setting: str, rows: Rows) -> tuple[CheckedClaim, ...]:
    place = re.sub(r"[^a-z0-9]+", "-", setting.lower())
    claims = [
        Claim(f"{NAME}-{place}-{name}", f"{setting}: {text}", HYPERVOLUME, comparison)
        for name, text, comparison in RANKING
    ]
    return check_claims(claims, Samples.from_rows(rows, (HYPERVOLUME,)))


def describe_ranking(by_setting: dict[str, tuple[CheckedClaim, ...]]) -> str:
    """Write a sentence that lists the settings in which the whole ranking agrees, disagrees or is open."""
    verdicts = {name: combine([one.verdict for one in claims]) for name, claims in by_setting.items()}
    parts = []
    for verdict, text in (("agrees", "holds for"), ("disagrees", "does not hold for"), ("open", "is open for")):
        names = [name for name, found in verdicts.items() if found == verdict]
        if names or verdict == "agrees":
            parts.append(f"{text} {len(names)} of {len(verdicts)} settings{_listed(names)}")
    return f"The paper's ranking {', '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    return f" ({'; '.join(names)})" if names else ""


def _tables(samples: Samples) -> tuple[Table, ...]:
    def table(title: str, cell: Callable[[str, X], str]) -> Table:
        rows = tuple((label(name), *(cell(name, value) for value in samples.values)) for name in samples.groups)
        return Table(title, ("", *map(str, samples.values)), rows)

    def average(metric: str, name: str, value: X) -> float:
        return fmean(samples.seeds(metric, name, value))

    return (
        table("Hypervolume by setting", lambda name, value: str(samples.mean(HYPERVOLUME, name, value))),
        table(
            "Rounds with a violation during training, and during its last tenth",
            lambda name, value: (
                f"{average('training_violation_rate', name, value):.1%}, "
                f"{average('late_violation_rate', name, value):.1%}"
            ),
        ),
        table(
            "Rounds with a violation under delivered policies, and how many of these are within the tolerance",
            lambda name, value: (
                f"{average('violation_rate', name, value):.1%}, "
                f"{average('policies_within_tolerance', name, value):.1f} of {average('policies', name, value):.1f}"
            ),
        ),
    )


def _draw(rows: Rows, out: Path) -> str:
    by_size = group_rows(rows, "size")
    figure = Figure(figsize=(1 + 4 * len(by_size), 4.4), layout="constrained")
    panels = figure.subplots(1, len(by_size), sharey=True, squeeze=False)[0]
    for axes, ((size,), own) in zip(panels, by_size.items(), strict=True):
        samples = Samples.from_rows(own, (HYPERVOLUME,), "hardness")
        places = range(len(samples.values))
        for name in samples.groups:
            line = samples.line(HYPERVOLUME, name)
            style = {"label": label(name), "capsize": 3, **line_style(name)}
            axes.errorbar(places, [point.value for point in line], yerr=error_bars(line), **style)
        axes.set_xticks(places, [str(value).replace(", ", "\n") for value in samples.values], fontsize=9)
        axes.margins(x=0.15)
        axes.set(title=f"{size} devices")
        add_grid(axes)
    panels[0].set(ylabel=HYPERVOLUME)
    panels[0].legend(frameon=False, fontsize=9)
    return write_figure(figure, out, NAME)


LITERAL = Experiment(NAME, TITLE, trials, collect, make_section)
