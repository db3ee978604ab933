"""The algorithms by name. One more is a file and a line here."""

from __future__ import annotations

from tandem.learn.algorithm import Algorithm
from tandem.learn.cmoppo import CMOPPO
from tandem.learn.conditioned import Conditioned
from tandem.learn.evolution import MOEAD, NSGA2
from tandem.learn.pgmorl import PredictionGuided
from tandem.learn.scalarised import RandomModePPO, ScalarisedPPO

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (Conditioned, CMOPPO, PredictionGuided, ScalarisedPPO, RandomModePPO, MOEAD, NSGA2)
}
