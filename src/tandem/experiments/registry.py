"""The experiments by name. A new experiment is a module in ``figures`` and a line here."""

from __future__ import annotations

from tandem.experiments.experiment import Experiment
from tandem.experiments.figures.accuracy_mapping import ACCURACY_MAPPING
from tandem.experiments.figures.arrivals import ARRIVALS
from tandem.experiments.figures.beta import BETA
from tandem.experiments.figures.convergence import CONVERGENCE
from tandem.experiments.figures.devices import DEVICES
from tandem.experiments.figures.latency_cdf import LATENCY_CDF
from tandem.experiments.figures.literal import LITERAL
from tandem.experiments.figures.pareto_fronts import PARETO_FRONTS
from tandem.experiments.figures.reference_front import REFERENCE
from tandem.experiments.figures.top3 import TOP3

PAPER_EXPERIMENTS = (PARETO_FRONTS, DEVICES, ARRIVALS, CONVERGENCE, BETA, LATENCY_CDF, TOP3)
TASK_EXPERIMENTS = (ACCURACY_MAPPING, TOP3)
BY_NAME_ONLY = (LITERAL, REFERENCE)  # not part of "all": each takes as long as several others
EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (*PAPER_EXPERIMENTS, *TASK_EXPERIMENTS, *BY_NAME_ONLY)}
ALL = "all"  # all of the paper's experiments, or all that are measured on a task
