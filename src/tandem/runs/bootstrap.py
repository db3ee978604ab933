"""How sure a mean over few seeds is, and a hypervolume whose points are such means."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tandem.pareto import hypervolume
from tandem.runs.front import Values

RESAMPLES = 2000


def hypervolume_interval(
    rewards: Values, reference: ArrayLike, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
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
    shares = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=resamples) / count
    volumes = [hypervolume(np.einsum("s,psk->pk", share, rewards), reference) for share in shares]
    low, high = np.quantile(volumes, (0.025, 0.975))
    return min(2 * estimate - float(high), estimate), max(2 * estimate - float(low), estimate)


def mean_interval(values: ArrayLike, resamples: int = 10_000) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean of one value a seed."""
    seen = np.asarray(values, np.float64)
    picks = np.random.default_rng(0).integers(len(seen), size=(resamples, len(seen)))
    low, high = np.quantile(seen[picks].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)
