"""Bootstrap estimates over seeds. Random numbers are fixed, so that an interval is a function of the data.

This module does not use scipy.stats.bootstrap, because importing scipy.stats takes about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.rng import BOOTSTRAP_SEED

Values = NDArray[np.float64]
RESAMPLES = 10_000
BOUNDS = (0.025, 0.975)  # of a 95 % interval


def basic_interval(
    statistic: Callable[[Values], float], samples: Values, resamples: int = 2000
) -> tuple[float, float] | None:
    """Return the 95 % interval of a statistic of the means over seeds, by the basic bootstrap; None for a single seed.

    ``samples`` has shape [items, seeds, dimensions], and the statistic is given means of shape [items, dimensions]. All
    items are resampled with the same seeds, since they were evaluated on the same ones. The basic bootstrap suits a
    statistic that noise makes larger, such as a hypervolume: resampled values exceed the estimate by as much as the
    estimate exceeds the true value, which it subtracts; a percentile interval would add it once more. The interval
    always contains the estimate.
    """
    count = samples.shape[1]
    if count < 2:
        return None
    estimate = statistic(samples.mean(axis=1))
    shares = np.random.default_rng(BOOTSTRAP_SEED).multinomial(count, np.full(count, 1 / count), size=resamples) / count
    resampled = [statistic(np.einsum("s,psk->pk", share, samples)) for share in shares]
    low, high = np.quantile(resampled, BOUNDS)
    return min(2 * estimate - float(high), estimate), max(2 * estimate - float(low), estimate)


def mean_interval(values: ArrayLike, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean; ``values`` has one value for each seed."""
    samples = np.asarray(values, np.float64)
    picks = np.random.default_rng(BOOTSTRAP_SEED).integers(len(samples), size=(resamples, len(samples)))
    low, high = np.quantile(samples[picks].mean(axis=1), BOUNDS)
    return float(low), float(high)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, by the percentile bootstrap over seeds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = max(0, 3 - len(f"{abs(self.value):.0f}")) if abs(self.value) >= 1 else 3
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def scaled(self, factor: float) -> Estimate:
        """Multiply the estimate by a factor, such as that of another unit; it may be negative."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.value * factor, low, high)

    def shifted(self, amount: float) -> Estimate:
        """Add an amount to the estimate."""
        return Estimate(self.value + amount, self.low + amount, self.high + amount)


def mean(values: ArrayLike) -> Estimate:
    """Estimate a mean from one value for each seed."""
    return Estimate(float(np.mean(np.asarray(values, np.float64))), *mean_interval(values))


def difference(first: ArrayLike, second: ArrayLike) -> Estimate:
    """Estimate the difference of two means, whose seeds are independent of each other."""
    return _estimate(lambda one, other: one - other, [np.asarray(first), np.asarray(second)])


def relative_gain(first: ArrayLike, second: ArrayLike) -> Estimate:
    """Estimate by which share of the second mean the first is larger."""
    return _estimate(lambda one, other: one / other - 1, [np.asarray(first), np.asarray(second)])


def mean_relative_gain(firsts: Sequence[ArrayLike], seconds: Sequence[ArrayLike]) -> Estimate:
    """Estimate the mean of the relative gains of pairs of means."""
    count = len(firsts)

    def mean_gain(*means: Values) -> Values:
        return np.asarray(sum(one / other - 1 for one, other in zip(means[:count], means[count:], strict=True)) / count)

    return _estimate(mean_gain, [np.asarray(values, np.float64) for values in (*firsts, *seconds)])


def _estimate(function: Callable[..., Values], samples: Sequence[Values]) -> Estimate:
    """Estimate a function of the means of samples that are independent of each other."""
    random = np.random.default_rng(BOOTSTRAP_SEED)
    means = [sample[random.integers(len(sample), size=(RESAMPLES, len(sample)))].mean(axis=1) for sample in samples]
    value = float(function(*(np.asarray(sample.mean()) for sample in samples)))
    low, high = np.quantile(function(*means), BOUNDS)
    return Estimate(value, float(low), float(high))
