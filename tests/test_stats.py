"""Bootstrap intervals contain what they should, and shrink with the number of seeds."""

import itertools

import moocore
import numpy as np
import pytest

from tandem.runs.evaluation import hypervolume_interval
from tandem.stats import mean_interval


def noisy(rng: np.random.Generator, truth: np.ndarray, seeds: int) -> np.ndarray:
    """Rewards of shape [policies, seeds, 3], with noise of the seed, which all policies share, and of each policy."""
    shared = rng.normal(0, [0.02, 0.2, 2.0], (1, seeds, 3))
    own = rng.normal(0, [0.01, 0.1, 1.0], (len(truth), seeds, 3))
    return truth[:, None] + shared + own


TRUTH = np.array([[0.8, -2.0, -20.0], [0.6, -1.0, -22.0], [0.5, -2.5, -8.0], [0.7, -1.6, -15.0]])
CORNER = np.array([0.0, -5.0, -44.0])


def test_the_interval_of_a_hypervolume_contains_the_estimate_and_shrinks_with_seeds() -> None:
    widths = []
    for seeds in (16, 64, 256):
        rewards = noisy(np.random.default_rng(1), TRUTH, seeds)
        interval = hypervolume_interval(rewards, CORNER, resamples=500)
        assert interval is not None
        low, high = interval
        assert low <= moocore.hypervolume(rewards.mean(axis=1), ref=CORNER, maximise=True) <= high
        widths.append(high - low)
    assert all(wide > 1.4 * narrow for wide, narrow in itertools.pairwise(widths))  # 2, were it not for chance


def test_the_interval_of_a_hypervolume_mostly_contains_the_true_value() -> None:
    truth = float(moocore.hypervolume(TRUTH, ref=CORNER, maximise=True))
    rng = np.random.default_rng(2)
    contained = 0
    for _ in range(60):
        low, high = hypervolume_interval(noisy(rng, TRUTH, 16), CORNER, resamples=300) or (0, 0)
        contained += low <= truth <= high
    assert contained >= 50  # 57 are expected of 95 %; 16 seeds promise a little more than they keep


def test_intervals_are_deterministic_and_need_two_seeds() -> None:
    rewards = noisy(np.random.default_rng(3), TRUTH, 8)
    assert hypervolume_interval(rewards[:, :1], CORNER) is None
    assert hypervolume_interval(rewards, CORNER) == hypervolume_interval(rewards, CORNER)


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, 400)
    low, high = mean_interval(values)
    assert (low + high) / 2 == pytest.approx(values.mean(), abs=0.02)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.05)
    assert mean_interval([3.0]) == (3.0, 3.0)
