"""Execution of trials: train, evaluate during training, and keep the numbers that figures and tables need."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from tandem import __version__
from tandem.api import build_system, resume, train
from tandem.experiments.trial import RUN, Trial, TrialResult, Values, trial_dir, write_result
from tandem.federated.fidelity import Fidelity
from tandem.feel.environment import Environment
from tandem.feel.state import FleetState, RoundOutcome
from tandem.feel.types import Array
from tandem.learn.registry import make_config
from tandem.policy.neural_policy import NeuralPolicy
from tandem.policy.rollout import rollout
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs.evaluation import utility
from tandem.runs.final_evaluation import EvaluationTarget
from tandem.runs.front import EXTREMES, landmarks
from tandem.runs.learning_curve import CURVE, read_curve
from tandem.runs.run import Run
from tandem.runs.run_dir import PROGRESS, RECORD
from tandem.runs.simulation import episode_keys
from tandem.runs.trainer import override_shield, train_seeds
from tandem.scenario import build_device_table
from tandem.tree import tree_index

QUANTILES = 201  # of latency, evenly spaced from 0 to 1
LATE_SHARE = 0.1  # share of the training at its end, whose violation rate is kept separately
History = tuple[FleetState, RoundOutcome]  # [episodes, rounds, ...]


def run_trials(trials: Sequence[Trial], out: Path) -> list[TrialResult]:
    """Run trials that differ in their seed only, several of them in one program, and write their results to ``out``.

    A single trial resumes from its checkpoint if it was interrupted.
    """
    folders = {trial.seed: trial_dir(trial, out) / RUN for trial in trials}
    target = evaluation_target(trials[0])
    single = len(trials) == 1
    runs = [_train_one(trials[0], folders[trials[0].seed], target)] if single else _train_all(trials, folders, target)
    results = [make_result(trial, run, target) for trial, run in zip(trials, runs, strict=True)]
    for result in results:
        write_result(result, out)
    return results


def evaluation_target(trial: Trial) -> EvaluationTarget | None:
    """Build the system that a trial's fronts are evaluated on; returns None if it is the one it is trained on."""
    scenario = trial.evaluation_scenario()
    if scenario is None or trial.reward_source is None:
        return None
    config = make_config(trial.algorithm, trial.preset, trial.changes)
    seeds = FINAL_EVALUATION_SEEDS[: trial.reward_source.episodes]
    return EvaluationTarget(build_system(override_shield(config, scenario)), seeds)


def _train_one(trial: Trial, folder: Path, target: EvaluationTarget | None) -> Run:
    if (folder / RECORD).exists():
        return resume(folder, target=target, curve_points=trial.curve_points)
    specification = (trial.scenario(), trial.algorithm, trial.preset, trial.seed)
    return train(*specification, folder, trial.changes, target=target, curve_points=trial.curve_points)


def _train_all(trials: Sequence[Trial], folders: dict[int, Path], target: EvaluationTarget | None) -> Sequence[Run]:
    first = trials[0]
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)  # training several seeds in one program writes no checkpoints
    specification = (first.scenario(), first.algorithm, first.preset, folders, first.changes)
    return train_seeds(*specification, target=target, curve_points=first.curve_points, build_system=build_system)


def make_result(trial: Trial, run: Run, target: EvaluationTarget | None) -> TrialResult:
    """Collect the numbers of a finished run."""
    record, front = run.record, run.front
    extremes = landmarks(front, run.config.tolerance)
    # One policy may be several extremes. It is then rolled out several times, so that one program fits any front.
    policies = list(extremes.values()) if target else [extremes[EXTREMES[1]]]
    histories = policy_histories(run, policies, target or EvaluationTarget(run.system()))
    curve = read_curve(run.folder / CURVE)
    names = build_device_table(run.scenario).names
    training_violation_rate, late_violation_rate = training_violation_rates(run.folder / PROGRESS)
    return TrialResult(
        trial=trial,
        scenario=trial.fingerprint,
        rounds=record.rounds,
        training_rounds=record.training_rounds,
        wall_s=record.wall_s,
        hypervolume=front.hypervolume,
        sparsity=front.sparsity,
        expected_utility=utility(front),
        cardinality=front.cardinality,
        violation_rate=float(np.mean(front.violation_rate)),
        policies_within_tolerance=int(np.sum(front.counted)),
        discarded_share=float(np.mean(front.discarded_share)),
        training_violation_rate=training_violation_rate,
        late_violation_rate=late_violation_rate,
        front=front.objectives,
        curve=np.array([(point.rounds, point.hypervolume, point.sparsity) for point in curve], np.float64),
        latency_s=latency_quantiles(histories[extremes[EXTREMES[1]]]),
        device=record.device.kind,
        tandem=__version__,
        fidelity=fidelity_summary(list(histories.values()), names) if target else None,
    )


def training_violation_rates(path: Path) -> tuple[float, float]:
    """Return the share of training rounds with a violation, over the whole training and over its last tenth.

    progress.csv has a mean for each chunk, and chunks have different lengths.
    """
    with path.open(newline="", encoding="utf-8") as handle:
        rows = [(float(row["rounds"]), float(row["violation_rate"])) for row in csv.DictReader(handle)]
    ends, rates = np.array(rows).T
    starts = np.concatenate([[0.0], ends[:-1]])
    late_starts = np.clip(starts, (1 - LATE_SHARE) * ends[-1], ends)
    whole, late = (float(np.average(rates, weights=ends - begins)) for begins in (starts, late_starts))
    return whole, late


def policy_histories(run: Run, policies: Sequence[int], target: EvaluationTarget) -> dict[int, History]:
    """Roll out some policies of a front on its evaluation target; return every round, by policy."""
    chosen = tree_index(run.policies(), jnp.asarray(policies))
    histories = _rollout_all(Environment(target.system), chosen, episode_keys(target.seeds))
    return {policy: tree_index(histories, index) for index, policy in enumerate(policies)}


@eqx.filter_jit
def _rollout_all(environment: Environment, policies: NeuralPolicy, keys: Array) -> History:
    """Return histories of shape [policies, episodes, rounds, ...]."""
    history: History = eqx.filter_vmap(lambda policy: rollout(environment, policy, keys))(policies)
    return history


def fidelity_summary(histories: Sequence[History], names: Sequence[str]) -> dict[str, Any]:
    """Compare estimated with measured accuracy over all rounds and devices."""
    episodes = len(histories[0][1].duration_s)
    outcomes = (tree_index(outcome, episode) for _, outcome in histories for episode in range(episodes))
    return Fidelity.from_history(outcomes).summary(names)


def latency_quantiles(history: History) -> Values:
    """Return quantiles of the latency of all batches of requests served, over devices and rounds."""
    states, outcome = history
    serving = ~np.asarray(outcome.executed.train) & (np.asarray(states.queue) > 0)
    latencies = np.asarray(outcome.latency_s, np.float64)[serving]
    return np.quantile(latencies, np.linspace(0, 1, QUANTILES)) if len(latencies) else np.full(QUANTILES, np.nan)
