"""The geometry of fronts: dominance, archive, crowding, hypervolume and other measures, and the choice of a policy.

Everything is maximised: points are rows of accuracy, -latency (s), -energy (J). Functions with a mask run inside
compiled code; the others run on the host, in NumPy.
"""

from tandem.pareto.archive import Archive, empty_archive, free_slots, insert, store
from tandem.pareto.crowding import crowding_distance, select_for_extension
from tandem.pareto.decision import Choice, best_for, knee_point, pick, within_limits
from tandem.pareto.dominance import crowding_by_front, dominates, front, front_ranks, non_dominated
from tandem.pareto.hypervolume import hypervolume, hypervolume_3d, hypervolume_contributions
from tandem.pareto.improvement import hypervolume_gains, sparsity_with_each
from tandem.pareto.metrics import cardinality, expected_utility, inverted_generational_distance, sparsity
from tandem.pareto.points import Ranges, normalise, ranges_of
from tandem.pareto.preferences import interior_simplex, simplex_grid

__all__ = [
    "Archive",
    "Choice",
    "Ranges",
    "best_for",
    "cardinality",
    "crowding_by_front",
    "crowding_distance",
    "dominates",
    "empty_archive",
    "expected_utility",
    "free_slots",
    "front",
    "front_ranks",
    "hypervolume",
    "hypervolume_3d",
    "hypervolume_contributions",
    "hypervolume_gains",
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
    "sparsity_with_each",
    "store",
    "within_limits",
]
