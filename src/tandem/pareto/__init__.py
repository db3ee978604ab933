"""The geometry of fronts: dominance, archive, crowding, hypervolume and other measures, and the choice of a policy.

Everything is maximised: points are rows of accuracy, -latency (s), -energy (J). Functions with a mask run inside
compiled code; the others run on the host, in NumPy.
"""

from tandem.pareto.archive import Archive, empty_archive, insert, store
from tandem.pareto.choice import Choice, best_for, knee_point, pick, within_limits
from tandem.pareto.crowding import crowding_distance, select_for_extension
from tandem.pareto.dominance import dominates, front, non_dominated
from tandem.pareto.host import Ranges, normalise, ranges_of
from tandem.pareto.hypervolume import hypervolume, hypervolume_3d, hypervolume_contributions
from tandem.pareto.metrics import cardinality, expected_utility, inverted_generational_distance, sparsity
from tandem.pareto.weights import interior_simplex, simplex_grid

__all__ = [
    "Archive",
    "Choice",
    "Ranges",
    "best_for",
    "cardinality",
    "crowding_distance",
    "dominates",
    "empty_archive",
    "expected_utility",
    "front",
    "hypervolume",
    "hypervolume_3d",
    "hypervolume_contributions",
    "insert",
    "interior_simplex",
    "inverted_generational_distance",
    "knee_point",
    "non_dominated",
    "normalise",
    "pick",
    "ranges_of",
    "select_for_extension",
    "simplex_grid",
    "sparsity",
    "store",
    "within_limits",
]
