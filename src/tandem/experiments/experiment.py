"""An experiment: the trials it needs, the data it collects from their results, and its section of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tandem.experiments.plotting import COMPARED
from tandem.experiments.report import ReportSection
from tandem.experiments.scale import Scale
from tandem.experiments.tables import Data
from tandem.experiments.trial import Trial, TrialResult

Results = dict[Trial, TrialResult]
Algorithms = Sequence[str]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper.

    ``collect`` gets the folder of the trials, for experiments that need the runs themselves. ``section`` gets the
    folder for figures; it depends on the collected data only, so that a report can be rendered from stored tables.
    """

    name: str
    title: str
    trials: Callable[[Scale, Algorithms], list[Trial]]
    collect: Callable[[Scale, Algorithms, Results, Path], Data] = field(repr=False)
    section: Callable[[Scale, Data, Path], ReportSection] = field(repr=False)
    on_task: Literal["never", "possible", "always"] = "never"  # whether accuracy is measured on a task
    algorithms: Algorithms = COMPARED  # compared by default
