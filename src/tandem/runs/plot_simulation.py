"""Figure of a simulation: modes, queues, ages and round lengths over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from tandem.feel.state import FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.io.atomic import atomic_write

MAX_DEVICES = 40  # more rows cannot be distinguished
SERVE, TRAIN, VIOLATION = "#dbe7f3", "#1f6fb2", "#c43c39"


def write_figure(
    path: Path, title: str, names: Sequence[str], system: System, states: FleetState, outcome: RoundOutcome
) -> None:
    """Draw the history of one seed."""
    figure = Figure(figsize=(10, 9), layout="constrained")
    modes, queues, ages, rounds = figure.subplots(4, 1, sharex=True, height_ratios=[1.3, 1, 1, 0.8])
    figure.suptitle(title, parse_math=False)  # names of scenarios and devices may have dollar signs
    time_s = np.append(np.asarray(states.clock_s), states.clock_s[-1] + outcome.duration_s[-1])
    shown = min(len(names), MAX_DEVICES)
    _draw_modes(modes, time_s, names[:shown], np.asarray(outcome.executed.train)[:, :shown])
    _draw_lines(queues, time_s, "requests waiting", np.asarray(states.queue)[:, :shown])
    queues.axhline(float(system.queue_max), color=VIOLATION, linewidth=1, linestyle=":")
    queues.set_ylim(0, max(1.0, 1.15 * float(np.max(states.queue))))
    _draw_ages(ages, time_s, states)
    _draw_rounds(rounds, time_s, system, outcome)
    rounds.set_xlabel("time (s)")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=130)


def _draw_modes(axes: Axes, time_s: Any, names: Sequence[str], train: Any) -> None:
    rows = np.arange(len(names) + 1) - 0.5
    axes.pcolormesh(time_s, rows, train.T.astype(float), cmap=ListedColormap([SERVE, TRAIN]), vmin=0, vmax=1)
    axes.set_ylabel("mode (dark: training)")
    axes.set_yticks(np.arange(len(names)), labels=list(names), fontsize=7, parse_math=False)
    axes.invert_yaxis()


def _draw_lines(axes: Axes, time_s: Any, label: str, values: Any) -> None:
    axes.step(time_s[:-1], values, where="post", linewidth=0.6, alpha=0.5, color=TRAIN)
    axes.step(time_s[:-1], values.mean(axis=1), where="post", linewidth=1.8, color="black", label="mean")
    axes.set_ylabel(label)
    axes.legend(loc="upper right", frameon=False)


def _draw_ages(axes: Axes, time_s: Any, states: FleetState) -> None:
    for values, label, color in (
        (states.model_age_s, "age of model", TRAIN),
        (states.data_age_s, "age of data", "#d98c21"),
    ):
        lowest, mean, highest = (np.asarray(reduce(values, axis=1)) for reduce in (np.min, np.mean, np.max))
        axes.step(time_s[:-1], mean, where="post", color=color, label=f"{label}, mean")
        axes.fill_between(time_s[:-1], lowest, highest, step="post", color=color, alpha=0.15, linewidth=0)
    axes.set_ylabel("age (s)")
    axes.legend(loc="upper right", frameon=False)


def _draw_rounds(axes: Axes, time_s: Any, system: System, outcome: RoundOutcome) -> None:
    duration_s = np.asarray(outcome.duration_s)
    axes.stairs(duration_s, time_s, fill=True, color=SERVE, edgecolor=TRAIN)
    axes.axhline(float(system.round_max_s), color=VIOLATION, linestyle=":", linewidth=1, label="longest allowed")
    violated = np.asarray(outcome.violations.by_device()).any(axis=1)
    if violated.any():
        middle = (time_s[:-1] + time_s[1:]) / 2
        axes.plot(middle[violated], duration_s[violated], "x", color=VIOLATION, label="constraint violated")
    axes.set_ylabel("round length (s)")
    axes.set_ylim(0, 1.1 * float(system.round_max_s))
    axes.legend(loc="lower right", frameon=False, ncols=2)
