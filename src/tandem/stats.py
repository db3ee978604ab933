"""How sure a mean over few seeds is, and a hypervolume whose points are such means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.pareto import hypervolume
from tandem.rng import BOOTSTRAP_SEED

Values = NDArray[np.float64]
RESAMPLES = 10_000


def hypervolume_interval(rewards: Values, reference: ArrayLike, resamples: int = 2000) -> tuple[float, float] | None:
    """The 95 % interval of the hypervolume of mean rewards, [policies, seeds, 3], by the basic bootstrap over seeds.

    A seed is drawn for all policies at once, since they were played on the same ones. Noisier points make larger
    volumes, so resampled fronts lie above the estimate by as much as that lies above the truth; the basic bootstrap
    takes this off, where percentiles would add it again. The estimate is always inside. None for a single seed.
    """
    count = rewards.shape[1]
    if count < 2:
        return None
    estimate = hypervolume(rewards.mean(axis=1), reference)
    # Always the same draws: who asks twice gets the same answer.
    shares = np.random.default_rng(BOOTSTRAP_SEED).multinomial(count, np.full(count, 1 / count), size=resamples) / count
    volumes = [hypervolume(np.einsum("s,psk->pk", share, rewards), reference) for share in shares]
    low, high = np.quantile(volumes, (0.025, 0.975))
    return min(2 * estimate - float(high), estimate), max(2 * estimate - float(low), estimate)


def mean_interval(values: ArrayLike, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean of one value a seed."""
    seen = np.asarray(values, np.float64)
    picks = np.random.default_rng(BOOTSTRAP_SEED).integers(len(seen), size=(resamples, len(seen)))
    low, high = np.quantile(seen[picks].mean(axis=1), (0.025, 0.975))
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
        """In another unit; a negative one turns it around."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.value * factor, low, high)

    def shifted(self, amount: float) -> Estimate:
        """From another zero."""
        return Estimate(self.value + amount, self.low + amount, self.high + amount)


def mean(values: ArrayLike) -> Estimate:
    """Of one value a seed."""
    return Estimate(float(np.mean(np.asarray(values, np.float64))), *mean_interval(values))


def difference(first: ArrayLike, second: ArrayLike) -> Estimate:
    """Of two means; the seeds of one have nothing to do with those of the other."""
    return _estimate(lambda one, other: one - other, [np.asarray(first), np.asarray(second)])


def relative_gain(first: ArrayLike, second: ArrayLike) -> Estimate:
    """How much larger the first mean is, as a share of the second."""
    return _estimate(lambda one, other: one / other - 1, [np.asarray(first), np.asarray(second)])


def mean_relative_gain(firsts: Sequence[ArrayLike], seconds: Sequence[ArrayLike]) -> Estimate:
    """The gain of each pair of means, and of these the mean."""
    count = len(firsts)

    def gained(*means: Values) -> Values:
        return np.asarray(sum(one / other - 1 for one, other in zip(means[:count], means[count:], strict=True)) / count)

    return _estimate(gained, [np.asarray(values, np.float64) for values in (*firsts, *seconds)])


def _estimate(function: Callable[..., Values], samples: Sequence[Values]) -> Estimate:
    """A function of the means of samples that are independent of each other."""
    random = np.random.default_rng(BOOTSTRAP_SEED)  # always the same draws: who asks twice gets the same answer
    drawn = [sample[random.integers(len(sample), size=(RESAMPLES, len(sample)))].mean(axis=1) for sample in samples]
    value = float(function(*(np.asarray(sample.mean()) for sample in samples)))
    low, high = np.quantile(function(*drawn), (0.025, 0.975))
    return Estimate(value, float(low), float(high))
