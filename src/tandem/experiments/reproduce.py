"""The paper's figures and tables: sweep what is not done yet, then write data, figures and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import InputError, did_you_mean
from tandem.experiments.claims import Algorithms, Experiment, ReportSection
from tandem.experiments.executors import SerialExecutor
from tandem.experiments.plotting import label
from tandem.experiments.registry import ALL, EXPERIMENTS, ON_A_TASK, THE_PAPERS
from tandem.experiments.report import Report, write_report
from tandem.experiments.scale import Scale
from tandem.experiments.sweep import Executor, NullCallback, SweepCallback, sweep
from tandem.experiments.trial import Trial, TrialResult, make_trials_dir
from tandem.learn.registry import get_algorithm


@dataclass(frozen=True)
class Plan:
    """What to reproduce, at which scale, with which algorithms."""

    experiments: tuple[Experiment, ...]
    scale: Scale
    chosen: Algorithms = ()  # each experiment's own if empty

    @property
    def algorithms(self) -> Algorithms:
        """Of all experiments."""
        return tuple(dict.fromkeys(name for one in self.experiments for name in self.compared(one)))

    def compared(self, one: Experiment) -> Algorithms:
        """The algorithms of an experiment."""
        return self.chosen or one.algorithms

    def cells(self) -> list[Trial]:
        """All of it, each once."""
        wanted = [cell for one in self.experiments for cell in one.trials(self.scale, self.compared(one))]
        return list(dict.fromkeys(wanted))


def plan(names: Sequence[str], scale: Scale, algorithms: Sequence[str] = ()) -> Plan:
    """From what a user says; refuses what ``experiments_named`` does."""
    chosen = experiments_named(names, bool(scale.reward_sources), algorithms)
    return Plan(chosen, scale, tuple(dict.fromkeys(algorithms)))


def experiments_named(names: Sequence[str], on_a_task: bool, algorithms: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """What a user asks for; refuses names that are not known, also of algorithms, and what goes only the other way."""
    for name in names:
        if name not in (*EXPERIMENTS, ALL):
            raise InputError(f"{name}: there is no such experiment; {did_you_mean(name, [*EXPERIMENTS, ALL])}.")
    for name in algorithms:
        get_algorithm(name)
    everything = ON_A_TASK if on_a_task else THE_PAPERS
    papers = [one.name for one in everything] if not names or ALL in names else []
    chosen = [EXPERIMENTS[name] for name in dict.fromkeys([*papers, *(name for name in names if name != ALL)])]
    for one in chosen:
        if one.measured == ("never" if on_a_task else "only"):
            able = " and ".join(known.name for known in ON_A_TASK)
            fix = f"leave the task out ({able} are)" if on_a_task else "name one, such as digits"
            raise InputError(f"{one.name}: is {'not' if on_a_task else 'only'} measured on a task; {fix}.")
    return tuple(chosen)


def reproduce(
    what: Plan, out: str | Path, engine: Executor | None = None, together: int = 1, watcher: SweepCallback | None = None
) -> Report:
    """Do it, in this process if no engine is given, and write it below ``out``; what is finished there is kept."""
    folder = make_trials_dir(out)
    results = sweep(what.cells(), folder, engine or SerialExecutor(), together, watcher or NullCallback())
    report = report_of(what, folder, results)
    write_report(report, folder)
    return report


def report_of(what: Plan, out: Path, results: dict[Trial, TrialResult]) -> Report:
    """Write data and figures, and put together what they say."""
    sections: list[ReportSection] = [
        one.section(what.scale, what.compared(one), results, out) for one in what.experiments
    ]
    scale = what.scale
    devices = sorted({result.device for result in results.values()})
    facts = (
        f"Scale {scale.name}: {scale.budget:,} environment rounds for every training, {scale.seeds} seeds"
        f"{', unless a section says otherwise' if scale.long_budget else ''}; "
        f"{len(results):,} trainings on {', '.join(devices)}.",
        f"Algorithms: {', '.join(label(name) for name in what.algorithms)}, preset {scale.preset}.",
        "Hypervolume from the paper's reference point (accuracy 0, latency 5 s, energy 44 J), of policies in their "
        "deterministic form on seeds that nothing was trained or chosen by; sparsity as the paper defines it.",
        *_measured_facts(scale),
    )
    return Report("The paper's evaluation, reproduced", facts, tuple(sections))


def _measured_facts(scale: Scale) -> list[str]:
    """What is to be known of a report on a task."""
    if not scale.reward_sources:
        return []
    one = scale.reward_sources[0]
    return [
        f"Accuracy as measured on the task {one.task}: the share of right answers of real models that are trained on "
        f"the fly, in {one.episodes} episodes a policy. Policies are validated and chosen by what their training was "
        f"rewarded by, an estimate unless it is an oracle. The mappings were calibrated on the task "
        f"(calibration-{one.task})."
    ]
