"""The experiments by name. One more is a file and a line here."""

from __future__ import annotations

from tandem.experiments.claims import Experiment
from tandem.experiments.figures.accuracy_mapping import ACCURACY_MAPPING
from tandem.experiments.figures.arrivals import ARRIVALS
from tandem.experiments.figures.beta import BETA
from tandem.experiments.figures.convergence import CONVERGENCE
from tandem.experiments.figures.devices import DEVICES
from tandem.experiments.figures.latency_cdf import LATENCY_CDF
from tandem.experiments.figures.pareto_fronts import PARETO_FRONTS
from tandem.experiments.figures.reference_front import REFERENCE
from tandem.experiments.figures.top3 import TOP3

THE_PAPERS = (PARETO_FRONTS, DEVICES, ARRIVALS, CONVERGENCE, BETA, LATENCY_CDF, TOP3)
ON_A_TASK = (ACCURACY_MAPPING, TOP3)
EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (*THE_PAPERS, *ON_A_TASK, REFERENCE)}
ALL = "all"  # of the paper's, or of those on a task
