"""The choice of a policy by hand: knee, preference, limits, and what is said when there is none."""

import math
import re

import numpy as np
import pytest
from brute_force import point_sets, sphere, spread, tied, tried_on
from hypothesis import strategies as st

from tandem.errors import InputError
from tandem.objectives import to_user_units
from tandem.pareto import Ranges, best_for_preference, knee_point, nondominated_indices, pick, spread_subset

# accuracy, -latency, -energy
FOUR = np.array([[0.9, -3.0, -9.0], [0.7, -1.0, -5.0], [0.5, -0.5, -4.0], [0.8, -1.2, -5.5]])


def test_knee_by_hand_in_two_objectives() -> None:
    # Energy is constant. Normalised: (0, 1), (0.5, 0.9), (0.8, 0.7), (1, 0); from the line x + y = 1 they are
    # 0, 0.4, 0.5 and 0 over sqrt(2) away: the third.
    points = [[0, 10, 7], [5, 9, 7], [8, 7, 7], [10, 0, 7]]
    assert knee_point(points) == 2


def test_knee_by_hand_in_three_objectives() -> None:
    # The ends are the corners of x + y + z = 1; the sums of the others are 1.8, 1.5 and 0.9.
    points = [[1, 0, 0], [0.5, 0.5, 0.5], [0, 1, 0], [0.6, 0.6, 0.6], [0, 0, 1], [0.3, 0.3, 0.3]]
    assert knee_point(points) == 3
    # Units do not matter.
    assert knee_point(np.array(points) * [0.01, 1e3, 1e6] + [5, -7, 1e5]) == 3


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([[0.9, -1, -2]], 0),  # one point
        ([[0.9, -1, -2]] * 3, 0),  # the same three times
        ([[math.nan, 0, 0], [0.9, -1, -2]], 1),
        ([[1, 0, 0], [0, 1, 0]], 0),  # two ends and nothing between
        ([[0, 4, 0], [1, 3, 0], [2, 2, 0], [4, 0, 0]], 2),  # flat: the middle
        ([[0, 4, 0], [0.5, 1, 0], [1, 0.6, 0], [4, 0, 0]], 2),  # hollow: no knee, the balanced one (0.25, 0.15)
        ([[1, 1, 0], [0.5, 0.5, 0.5], [0, 0, 1]], 1),  # one point is the best of two objectives: no plane; balanced
        ([[1, 1, 0], [0.9, 0.9, 0.9], [0, 0, 1]], 1),
        # The plane through the first three, -0.8 x + y + z = 1, would call the last best and the first no better
        # than its neighbours; seen from the ends of the axes the first is far out.
        ([[1, 0.9, 0.9], [0, 1, 0], [0, 0, 1], [0, 0.95, 0.95]], 0),
    ],
)
def test_knee_of_poor_fronts(points: list[list[float]], expected: int) -> None:
    assert knee_point(points) == expected


@tried_on(point_sets(tied | spread))
def test_choices_are_on_the_front_and_do_not_depend_on_order(points: np.ndarray) -> None:
    before = points.copy()
    knee, best = knee_point(points), best_for_preference((0.5, 0.3, 0.2), points)
    assert {knee, best} <= set(nondominated_indices(points).tolist())
    assert pick(points).index == knee
    assert pick(points, (5, 3, 2)).index == best
    np.testing.assert_array_equal(points, before)


def test_knee_does_not_depend_on_order() -> None:
    points = sphere(30, dtype=np.float64)
    shuffle = np.random.default_rng(0).permutation(30)
    np.testing.assert_array_equal(points[knee_point(points)], points[shuffle][knee_point(points[shuffle])])


def test_preference_by_hand() -> None:
    # Normalised: (1, 0, 0), (0.5, 0.8, 0.8), (0, 1, 1), (0.75, 0.72, 0.7). Equal weights: 1, 2.1, 2, 2.17 thirds.
    assert best_for_preference((1, 1, 1), FOUR) == 3
    assert best_for_preference((1, 0, 0), FOUR) == 0
    assert best_for_preference((0, 0.5, 0.5), FOUR) == 2
    # 0.4, 0.3, 0.3 times: 0.4, 0.68, 0.6, 0.726; 0.2, 0.4, 0.4: 0.2, 0.74, 0.8, 0.718.
    assert best_for_preference((0.4, 0.3, 0.3), FOUR) == 3
    assert best_for_preference((0.2, 0.4, 0.4), FOUR) == 2


def test_a_weight_of_zero_does_not_choose_badly() -> None:
    # Accuracy alone cannot tell the first three apart; the third has the best of the rest, and the first is dominated.
    points = [[0.9, -5, -5], [0.9, -4, -5], [0.9, -1, -5.5], [0.1, -0.5, -3]]
    assert best_for_preference((1, 0, 0), points) == 2


def test_ranges_set_the_scale() -> None:
    points = [[1, 0, 0], [0, 1, 0]]
    wide, narrow = ([0, 0, 0], [10, 1, 1]), ([0, 0, 0], [1, 10, 1])
    assert best_for_preference((1, 1, 1), points, Ranges.from_points(wide)) == 1
    assert best_for_preference((1, 1, 1), points, Ranges.from_points(narrow)) == 0


@pytest.mark.parametrize("preference", [(1, 1), (0, 0, 0), (-1, 1, 1), (math.nan, 1, 1), 1])
def test_bad_preference(preference: object) -> None:
    with pytest.raises(InputError, match="give three weights"):
        best_for_preference(preference, FOUR)


def test_limits_are_in_the_users_units() -> None:
    # With all weight on one objective, the best policy of those that meet the limits. A limit met exactly is met.
    assert pick(FOUR, (0, 1, 0), min_accuracy=0.7).index == 1
    assert pick(FOUR, (1, 0, 0), max_latency_s=1.0).index == 1
    assert pick(FOUR, (1, 0, 0), max_energy_j=4.5).index == 2
    assert pick(FOUR, min_accuracy=0.75, max_latency_s=2.0, max_energy_j=6.0).index == 3
    assert pick([*FOUR, [math.nan, -0.1, -0.1]], (0, 1, 0), max_latency_s=0.5).index == 2
    with pytest.raises(InputError, match="max_energy_j is not a number"):
        pick(FOUR, max_energy_j=math.nan)


def test_reason() -> None:
    choice = pick(FOUR, (2, 1, 1), max_latency_s=1.1)
    assert choice.index == 1
    assert choice.reason == (
        "Policy 1 has accuracy 0.7, latency 1 s and energy 5 J: the best for weights 0.5, 0.25, 0.25 of accuracy, "
        "latency and energy, among the 2 of 4 policies within the limits."
    )
    assert pick(FOUR).reason.startswith("Policy 3 has accuracy 0.8, latency 1.2 s and energy 5.5 J: the knee")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        # No policy is that fast.
        (
            {"max_latency_s": 0.4},
            "No policy has latency at most 0.4 s; the best attainable is 0.5 s: set max_latency_s to that or more.",
        ),
        # Two limits fail alone: accuracy misses by 0.05 of 0.4, energy by 2 of 5 J.
        (
            {"min_accuracy": 0.95, "max_energy_j": 2},
            "No policy has energy at most 2 J; the best attainable is 4 J: set max_energy_j to that or more.",
        ),
        # Each can be met, together not: accuracy would have to give 0.15 of 0.4, latency 2 of 2.5 s.
        (
            {"min_accuracy": 0.85, "max_latency_s": 1},
            "No policy has accuracy at least 0.85 with latency at most 1 s; the best attainable is 0.7: "
            "set min_accuracy to that or less.",
        ),
        # Of three, the two that go together are held.
        (
            {"min_accuracy": 0.85, "max_latency_s": 0.55, "max_energy_j": 4.1},
            "No policy has accuracy at least 0.85 with latency at most 0.55 s and energy at most 4.1 J; "
            "the best attainable is 0.5: set min_accuracy to that or less.",
        ),
    ],
)
def test_limits_that_cannot_be_met(limits: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as error:
        pick(FOUR, **limits)
    assert str(error.value) == message


def test_three_limits_of_which_no_two_go_together() -> None:
    with pytest.raises(InputError, match=r"No policy has .* with .* the best attainable is"):
        pick(np.eye(3) - 1, min_accuracy=0, max_latency_s=0, max_energy_j=0)


@tried_on(
    point_sets(spread),
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("min_accuracy", "max_latency_s", "max_energy_j"), st.floats(-150, 150))
    ),
)
def test_following_the_message_leads_to_a_policy(points: np.ndarray, limits: dict[str, float]) -> None:
    for _ in range(6):
        try:
            choice = pick(points, **limits)
        except InputError as error:
            message = re.search(r"attainable is (-?[\d.]+).*: set (\w+) to", str(error))
            assert message
            assert limits[message[2]] != float(message[1])
            limits = limits | {message[2]: float(message[1])}
        else:
            accuracy, latency_s, energy_j = to_user_units(points[choice.index])
            assert accuracy >= limits.get("min_accuracy", -math.inf)
            assert latency_s <= limits.get("max_latency_s", math.inf)
            assert energy_j <= limits.get("max_energy_j", math.inf)
            return
    pytest.fail("the messages go in circles")


def test_nothing_to_choose_from() -> None:
    for points in ([], [[math.nan, 0, 0]]):
        for choose in (pick, knee_point, lambda points: best_for_preference((1, 1, 1), points)):
            with pytest.raises(InputError, match="no policy to choose from"):
                choose(points)


def test_spread_subset_covers_a_line_evenly() -> None:
    line = np.column_stack([np.linspace(0, 1, 9), np.linspace(1, 0, 9), np.zeros(9)])
    assert spread_subset(line, 5, include=[0]) == [0, 2, 4, 6, 8]
    assert spread_subset(line, 3, include=[4]) == [0, 4, 8]
    assert spread_subset(line, 20) == list(range(9))


def test_spread_subset_keeps_what_is_included_and_leaves_out_nan() -> None:
    points = sphere(40)
    points[7] = np.nan
    chosen = spread_subset(points, 12, include=[3, 5, 3])
    assert len(chosen) == len(set(chosen)) == 12
    assert {3, 5} <= set(chosen)
    assert 7 not in spread_subset(points, 40)
    assert spread_subset(points, 1, include=[3, 5]) == [3, 5]
