"""The policies that a run delivers: those of the front within the tolerance, or the one closest to it."""

import numpy as np
import pytest

from tandem.learn.validation import select_front

REWARDS = np.array([(0.9, -2.0, -20.0), (0.5, -0.5, -22.0), (0.5, -2.5, -4.0), (0.4, -2.6, -5.0)])


@pytest.mark.parametrize(
    ("rates", "chosen", "within"),
    [
        ((0.0, 0.0, 0.0, 0.0), [0, 1, 2], True),
        ((0.2, 0.0, 0.01, 0.0), [1, 2], True),
        ((0.0, 0.2, 0.2, 0.0), [0, 3], True),  # what dominates the last one is left out
        ((0.2, 0.02, 0.3, 0.3), [1], False),
        ((0.2, 0.1, 0.1, 0.1), [2], False),  # of those with the lowest rate, the highest sum of rewards
        ((np.nan, 0.2, np.nan, 0.1), [3], False),
        ((np.nan,) * 4, [], False),
    ],
)
def test_only_policies_within_the_tolerance_are_delivered(
    rates: tuple[float, ...], chosen: list[int], within: bool
) -> None:
    found, any_within = select_front(REWARDS, np.array(rates), 0.01)
    assert (found.tolist(), any_within) == (chosen, within)


def test_the_choice_among_equal_candidates_is_the_first() -> None:
    """Rates differ by rounding only: they are sums in single precision."""
    found, _ = select_front(np.tile(REWARDS[:1], (3, 1)), np.array([0.3, 0.2 + 2e-8, 0.2]), 0.01)
    assert found.tolist() == [1]


def test_a_candidate_without_rewards_is_never_delivered() -> None:
    rewards = np.where(np.arange(4)[:, None] == 0, np.nan, REWARDS)
    assert select_front(rewards, np.array([0.0, 0.2, 0.1, 0.3]), 0.01)[0].tolist() == [2]
