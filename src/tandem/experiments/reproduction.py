"""The paper's figures and tables: sweep what is not done yet, then write data, figures and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import InputError
from tandem.experiments.algorithms import COMPARED, label
from tandem.experiments.cells import Cell, Result
from tandem.experiments.engines import Here
from tandem.experiments.registry import ALL, EXPERIMENTS, THE_PAPERS
from tandem.experiments.report import Report, write_report
from tandem.experiments.scales import Scale
from tandem.experiments.section import Algorithms, Experiment, Section
from tandem.experiments.sweep import Engine, Unwatched, Watcher, sweep
from tandem.learn.presets import algorithm_named
from tandem.runs.files import results_folder
from tandem.scenario.wording import did_you_mean

MARKER = "cells"  # what makes a folder one of ours


@dataclass(frozen=True)
class Plan:
    """What to reproduce, at which scale, with which algorithms."""

    experiments: tuple[Experiment, ...]
    scale: Scale
    algorithms: Algorithms

    def cells(self) -> list[Cell]:
        """All of it, each once."""
        wanted = [cell for one in self.experiments for cell in one.cells(self.scale, self.algorithms)]
        return list(dict.fromkeys(wanted))


def plan(names: Sequence[str], scale: Scale, algorithms: Sequence[str] = ()) -> Plan:
    """From what a user says; refuses names that are not known."""
    for name in names:
        if name not in (*EXPERIMENTS, ALL):
            raise InputError(f"{name}: there is no such experiment; {did_you_mean(name, [*EXPERIMENTS, ALL])}.")
    for name in algorithms:
        algorithm_named(name)
    papers = [one.name for one in THE_PAPERS] if not names or ALL in names else []
    chosen = dict.fromkeys([*papers, *(name for name in names if name != ALL)])
    return Plan(tuple(EXPERIMENTS[name] for name in chosen), scale, tuple(dict.fromkeys(algorithms)) or COMPARED)


def reproduce(
    what: Plan, out: str | Path, engine: Engine | None = None, together: int = 1, watcher: Watcher | None = None
) -> Report:
    """Do it, in this process if no engine is given, and write it below ``out``; what is finished there is kept."""
    folder = results_folder(Path(out), MARKER)
    (folder / MARKER).mkdir(exist_ok=True)
    results = sweep(what.cells(), folder, engine or Here(), together, watcher or Unwatched())
    report = report_of(what, folder, results)
    write_report(report, folder)
    return report


def report_of(what: Plan, out: Path, results: dict[Cell, Result]) -> Report:
    """Write data and figures, and put together what they say."""
    sections: list[Section] = [one.section(what.scale, what.algorithms, results, out) for one in what.experiments]
    scale = what.scale
    devices = sorted({result.device for result in results.values()})
    facts = (
        f"Scale {scale.name}: {scale.rounds:,} environment rounds for every training, {scale.seeds} seeds; "
        f"{len(results):,} trainings on {', '.join(devices)}.",
        f"Algorithms: {', '.join(label(name) for name in what.algorithms)}, preset {scale.preset}.",
        "Hypervolume from the paper's reference point (accuracy 0, latency 5 s, energy 44 J), of policies in their "
        "deterministic form on seeds that nothing was trained or chosen by; sparsity as the paper defines it.",
    )
    return Report("The paper's evaluation, reproduced", facts, tuple(sections))
