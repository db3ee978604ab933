"""The geometry of fronts: dominance, archive, crowding, hypervolume and other measures, and the choice of a policy.

Everything is maximised: points are rows of accuracy, -latency (s), -energy (J). Functions with a mask run inside
compiled code; the others run on the host, in NumPy.
"""

from tandem.pareto.archive import Archive, empty_archive, free_slots, insert, store
from tandem.pareto.crowding import crowding_distance, crowding_per_front, select_for_extension
from tandem.pareto.decision import Choice, best_for_preference, knee_point, pick, within_limits
from tandem.pareto.dominance import dominates, nondominated_indices, nondominated_mask, nondominated_ranks
from tandem.pareto.hypervolume import hypervolume, hypervolume_3d, hypervolume_contributions
from tandem.pareto.improvement import hypervolume_improvement, sparsity_if_added
from tandem.pareto.metrics import cardinality, expected_utility, inverted_generational_distance, sparsity
from tandem.pareto.points import Ranges, normalise, ranges_of
from tandem.pareto.preferences import interior_simplex, simplex_grid

__all__ = [
    "Archive",
    "Choice",
    "Ranges",
    "best_for_preference",
    "cardinality",
    "crowding_distance",
    "crowding_per_front",
    "dominates",
    "empty_archive",
    "expected_utility",
    "free_slots",
    "hypervolume",
    "hypervolume_3d",
    "hypervolume_contributions",
    "hypervolume_improvement",
    "insert",
    "interior_simplex",
    "inverted_generational_distance",
    "knee_point",
    "nondominated_indices",
    "nondominated_mask",
    "nondominated_ranks",
    "normalise",
    "pick",
    "ranges_of",
    "select_for_extension",
    "simplex_grid",
    "sparsity",
    "sparsity_if_added",
    "store",
    "within_limits",
]
