"""Simulation of a policy on a scenario over seeds: its means, its rounds, and a folder of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from tandem.feel.constraints import CONSTRAINTS
from tandem.feel.environment import Environment
from tandem.feel.state import FleetState, RoundOutcome
from tandem.feel.system import System, SystemBuilder, build_system
from tandem.io.atomic import explain_write_errors, replace_results, results_folder
from tandem.io.tables import write_json, write_text
from tandem.objectives import OBJECTIVE_KEYS, to_user_units
from tandem.policy.base import Policy
from tandem.policy.rollout import EpisodeMeans, episode_means, rollout, rollout_means
from tandem.progress import Progress, ProgressCallback, ignore_progress
from tandem.runs.trace import check_format, trace_table, write_trace
from tandem.scenario import Scenario, build_device_table, dump_scenario

History = tuple[FleetState, RoundOutcome]  # states before each round and outcomes, [rounds, ...]
Values = NDArray[np.float64]

RESULT, SCENARIO, FIGURE, ACCURACY_FIGURE = "simulation.json", "scenario.yaml", "figure.png", "accuracy.png"
TRACE_FORMATS = {"csv": "trace.csv", "parquet": "trace.parquet"}
RESULTS = (RESULT, SCENARIO, FIGURE, ACCURACY_FIGURE, *TRACE_FORMATS.values())
MAX_TRACE_ROWS = 2_000_000  # a longer trace, and the figure, are not written


@dataclass(frozen=True)
class Simulation:
    """The means of a policy's episodes, with one row for each seed."""

    seeds: tuple[int, ...]
    objectives: Values  # [seeds, 3] accuracy, latency (s), energy (J)
    reward: Values  # [seeds, 3] the reward of learners: maximised, penalties included
    violation_rate: Values  # [seeds] share of rounds that violated any constraint
    violation_rates: Values  # [seeds, 8] by constraint
    arrived_requests: Values  # [seeds] over the episode, all devices
    dropped_requests: Values
    made_samples: Values
    discarded_samples: Values
    trainers: Values  # [seeds] mean devices training in a round
    round_s: Values  # [seeds] mean length of a round

    def summary(self) -> dict[str, Any]:
        """Return a JSON document: means over seeds, and the objectives of each seed."""
        rates = dict(zip(CONSTRAINTS, self.violation_rates.mean(axis=0).tolist(), strict=True))
        return {
            "seeds": list(self.seeds),
            "objectives": dict(zip(OBJECTIVE_KEYS, self.objectives.mean(axis=0).tolist(), strict=True)),
            "objectives_half_width_95": dict(zip(OBJECTIVE_KEYS, half_width(self.objectives), strict=True)),
            "objectives_by_seed": [dict(zip(OBJECTIVE_KEYS, row.tolist(), strict=True)) for row in self.objectives],
            "reward": self.reward.mean(axis=0).tolist(),
            "violation_rate": {"all": float(self.violation_rate.mean()), **rates},
            "arrived_requests": float(self.arrived_requests.mean()),
            "dropped_requests": float(self.dropped_requests.mean()),
            "made_samples": float(self.made_samples.mean()),
            "discarded_samples": float(self.discarded_samples.mean()),
            "discarded_share": discarded_share(self.discarded_samples, self.made_samples),
            "trainers_per_round": float(self.trainers.mean()),
            "round_s": float(self.round_s.mean()),
        }


def discarded_share(discarded: ArrayLike, made: ArrayLike) -> float:
    """Return the share of the samples made that were discarded, over all seeds; 0 if none was made."""
    total = float(np.sum(np.asarray(made, np.float64)))
    return float(np.sum(np.asarray(discarded, np.float64))) / total if total > 0 else 0.0


def half_width(by_seed: Values) -> list[float | None]:
    """Return half the width of the 95 % confidence interval of the mean (Student's t); None for a single seed."""
    count = len(by_seed)
    if count < 2:
        return [None] * by_seed.shape[1]
    quantile = float(scipy.special.stdtrit(count - 1, 0.975))
    return [float(width) for width in quantile * by_seed.std(axis=0, ddof=1) / np.sqrt(count)]


def simulate(system: System, policy: Policy, seeds: Sequence[int] = (0,)) -> Simulation:
    """Simulate one episode for each seed. The result for a seed does not depend on the others."""
    return _simulation(seeds, rollout_means(Environment(system), policy, episode_keys(seeds)))


def summarise(seeds: Sequence[int], histories: Sequence[History]) -> Simulation:
    """Compute the means of episodes whose rounds were kept, one for each seed.

    Simulations that train real models are slow: they run once, and everything is computed from their histories.
    """
    means = [episode_means(outcome) for _, outcome in histories]
    return _simulation(seeds, jax.tree.map(lambda *leaves: np.stack(leaves), *means))


def _simulation(seeds: Sequence[int], outcome: EpisodeMeans) -> Simulation:
    def values(leaf: Any) -> Values:
        return np.asarray(leaf, np.float64)

    return Simulation(
        seeds=tuple(seeds),
        objectives=to_user_units(values(outcome.objectives)),
        reward=values(outcome.reward),
        violation_rate=values(outcome.violated_any),
        violation_rates=values(outcome.violated),
        arrived_requests=values(outcome.arrived),
        dropped_requests=values(outcome.dropped),
        made_samples=values(outcome.converted),
        discarded_samples=values(outcome.discarded),
        trainers=values(outcome.trainers),
        round_s=values(outcome.duration_s),
    )


def simulate_histories(system: System, policy: Policy, seeds: Sequence[int]) -> Iterator[History]:
    """Yield every round of every seed, one seed at a time: states before each round and outcomes, as NumPy arrays."""
    for seed in seeds:
        states, outcomes = rollout(Environment(system), policy, episode_keys([seed]))
        plain = eqx.tree_at(lambda state: state.key, states, jax.random.key_data(states.key))
        yield jax.device_get(jax.tree.map(lambda leaf: leaf[0], (plain, outcomes)))


def episode_keys(seeds: Sequence[int]) -> Any:
    """Return the random key of each seed's episode."""
    return jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))


@dataclass(frozen=True)
class MeasurementReport:
    """Functions that add to the results of a scenario whose accuracy is measured on a task."""

    summarise: Callable[[Scenario, Sequence[History]], dict[str, Any]]  # fields of the document
    write_figure: Callable[[Path, str, FleetState, RoundOutcome], None]


@dataclass(frozen=True)
class SavedSimulation:
    """A simulation whose results were written to a folder."""

    folder: Path
    simulation: Simulation
    document: dict[str, Any]  # the content of simulation.json
    trace_rows: int  # of the complete trace
    detailed: bool  # whether the trace and the figures were written; false if there are more than MAX_TRACE_ROWS


def simulate_to(
    folder: Path,
    scenario: Scenario,
    policy: Policy,
    seeds: Sequence[int],
    *,
    name: str,
    trace: str = "csv",
    on_progress: ProgressCallback = ignore_progress,
    build_system: SystemBuilder = build_system,
    measurement: MeasurementReport | None = None,
) -> SavedSimulation:
    """Simulate a policy and write simulation.json, scenario.yaml, a trace and figures of the first seed to ``folder``.

    The folder is created, or holds the results of an earlier simulation, which are replaced when all new files are
    written: after an error the earlier results are complete. ``trace`` is csv, parquet or none; ``name`` is that of the
    policy. ``measurement`` is needed for a scenario with a task.
    """
    if trace != "none":
        check_format(trace)
    task = scenario.accuracy.task
    on_progress(Progress(0, len(seeds), "building the system" if task is None else f"preparing the task {task.kind}"))
    system = build_system(scenario)
    results_folder(folder, RESULT)
    on_progress(Progress(0, len(seeds), "simulating"))
    histories = None if task is None else list(simulate_histories(system, policy, seeds))
    simulation = simulate(system, policy, seeds) if histories is None else summarise(seeds, histories)
    document: dict[str, Any] = {
        "scenario": scenario.name,
        "policy": name,
        "settings": {key: value for key, value in vars(policy).items() if isinstance(value, int | float)},
        "devices": scenario.fleet.size,
        "rounds": scenario.rounds,
        "shield": scenario.shield.enabled,
        **simulation.summary(),
        **({} if histories is None or measurement is None else measurement.summarise(scenario, histories)),
        "folder": str(folder),
    }
    rows = scenario.fleet.size * scenario.rounds * len(seeds)
    detailed = rows <= MAX_TRACE_ROWS
    with explain_write_errors(folder), replace_results(folder, RESULTS) as staging:
        write_json(staging / RESULT, document)
        write_text(staging / SCENARIO, dump_scenario(scenario))
        if detailed:
            on_progress(Progress(0, len(seeds), "writing the figure"))
            first = histories[0] if histories else next(simulate_histories(system, policy, seeds[:1]))
            _write_figures(staging, f"{name} on {scenario.name}, seed {seeds[0]}", scenario, system, first, measurement)
            if trace != "none":
                every = histories or simulate_histories(system, policy, seeds)
                _write_trace(staging / TRACE_FORMATS[trace], scenario, seeds, every, on_progress)
    return SavedSimulation(folder, simulation, document, rows, detailed)


def _write_trace(
    path: Path, scenario: Scenario, seeds: Sequence[int], histories: Iterable[History], on_progress: ProgressCallback
) -> None:
    names = build_device_table(scenario).names

    def tables() -> Iterator[dict[str, NDArray[Any]]]:
        for index, (seed, history) in enumerate(zip(seeds, histories, strict=True)):
            on_progress(Progress(index, len(seeds), "writing the trace"))
            yield trace_table(seed, names, *history)

    write_trace(path, tables())


def _write_figures(
    folder: Path,
    title: str,
    scenario: Scenario,
    system: System,
    history: History,
    measurement: MeasurementReport | None,
) -> None:
    from tandem.runs.plot_simulation import write_figure  # Matplotlib takes a while to import

    states, outcome = history
    write_figure(folder / FIGURE, title, build_device_table(scenario).names, system, states, outcome)
    if outcome.estimated_accuracy is not None and measurement is not None:
        measurement.write_figure(folder / ACCURACY_FIGURE, title, states, outcome)
