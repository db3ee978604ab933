"""Reproduction of the paper's figures and tables: the unfinished trials, then data, figures and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import InputError, did_you_mean
from tandem.experiments.executors import SerialExecutor
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import label
from tandem.experiments.registry import ALL, EXPERIMENTS, PAPER_EXPERIMENTS, TASK_EXPERIMENTS
from tandem.experiments.report import Report, write_report
from tandem.experiments.scale import Scale
from tandem.experiments.sweep import Executor, SweepCallback, sweep
from tandem.experiments.tables import write_data
from tandem.experiments.trial import Trial, make_trials_dir
from tandem.learn.registry import get_algorithm


@dataclass(frozen=True)
class Plan:
    """The experiments to run, their scale and their algorithms."""

    experiments: tuple[Experiment, ...]
    scale: Scale
    chosen: Algorithms = ()  # empty means each experiment's own

    @property
    def algorithms(self) -> Algorithms:
        """The algorithms of all experiments."""
        return tuple(dict.fromkeys(name for one in self.experiments for name in self.algorithms_of(one)))

    def algorithms_of(self, experiment: Experiment) -> Algorithms:
        """Return the algorithms that an experiment compares."""
        return self.chosen or experiment.algorithms

    def trials(self) -> list[Trial]:
        """Return the trials of all experiments, each once."""
        needed = [trial for one in self.experiments for trial in one.trials(self.scale, self.algorithms_of(one))]
        return list(dict.fromkeys(needed))


def make_plan(names: Sequence[str], scale: Scale, algorithms: Sequence[str] = ()) -> Plan:
    """Return a plan from the names of experiments and algorithms; raises InputError as ``select_experiments`` does."""
    chosen = select_experiments(names, bool(scale.reward_sources), algorithms)
    return Plan(chosen, scale, tuple(dict.fromkeys(algorithms)))


def select_experiments(names: Sequence[str], on_task: bool, algorithms: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Return experiments by name; all if there are no names.

    Raises InputError for unknown experiments and algorithms, for experiments that need a task without one, and for
    experiments that cannot use a task with one.
    """
    for name in names:
        if name not in (*EXPERIMENTS, ALL):
            raise InputError(f"{name}: unknown experiment; {did_you_mean(name, [*EXPERIMENTS, ALL])}.")
    for name in algorithms:
        get_algorithm(name)
    everything = TASK_EXPERIMENTS if on_task else PAPER_EXPERIMENTS
    from_all = [one.name for one in everything] if not names or ALL in names else []
    chosen = [EXPERIMENTS[name] for name in dict.fromkeys([*from_all, *(name for name in names if name != ALL)])]
    for one in chosen:
        if on_task and one.on_task == "never":
            possible = " and ".join(known.name for known in TASK_EXPERIMENTS)
            raise InputError(f"{one.name}: cannot be measured on a task; leave --task out, or choose {possible}.")
        if not on_task and one.on_task == "always":
            raise InputError(f"{one.name}: needs a task; add one, such as --task digits.")
    return tuple(chosen)


def reproduce(
    plan: Plan,
    out: str | Path,
    executor: Executor | None = None,
    seeds_per_job: int = 1,
    callback: SweepCallback | None = None,
) -> Report:
    """Run a plan, in this process by default, and write the results below ``out``; finished trials are kept."""
    folder = make_trials_dir(out)
    results = sweep(plan.trials(), folder, executor or SerialExecutor(), seeds_per_job, callback)
    report = make_report(plan, folder, results)
    write_report(report, folder)
    return report


def make_report(plan: Plan, out: Path, results: Results) -> Report:
    """Write the data and figures of all experiments, and assemble the report."""
    sections = []
    for one in plan.experiments:
        data = one.collect(plan.scale, plan.algorithms_of(one), results, out)
        write_data(data, out)
        sections.append(one.section(plan.scale, data, out))
    scale = plan.scale
    devices = sorted({result.device for result in results.values()})
    facts = (
        f"Scale {scale.name}: {scale.budget:,} environment rounds for every training, {scale.seeds} seeds"
        f"{', unless a section says otherwise' if scale.long_budget else ''}; "
        f"{len(results):,} trainings on {', '.join(devices)}.",
        f"Algorithms: {', '.join(label(name) for name in plan.algorithms)}; preset {scale.preset}.",
        "Hypervolume from the paper's reference point (accuracy 0, latency 5 s, energy 44 J), of deterministic "
        "policies on seeds that were used neither for training nor for selection; sparsity as defined in the paper.",
        f"Delivered policies violate a constraint in {_highest('violation_rate', results)} of rounds and discard "
        f"{_highest('discarded_share', results)} of samples, in the training where that is most.",
        *_task_facts(scale),
    )
    return Report("The paper's evaluation, reproduced", facts, tuple(sections))


def _highest(metric: str, results: Results) -> str:
    highest = max((getattr(result, metric) for result in results.values()), default=0.0)
    return f"{100 * highest:.2g} %"


def _task_facts(scale: Scale) -> list[str]:
    if not scale.reward_sources:
        return []
    source = scale.reward_sources[0]
    return [
        f"Accuracy is measured on the task {source.task}: the share of correct answers of real models that are trained "
        f"during the episode, in {source.episodes} episodes per policy. Policies are validated and selected by the "
        "accuracy that their training was rewarded by: an estimate, except for an oracle. The mappings were calibrated "
        f"on the task (calibration-{source.task})."
    ]
