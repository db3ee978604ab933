"""Every random stream and every range of seeds, in one table.

A stream is a number that is folded into a key: ``jax.random.fold_in(key, stream)`` gives each use of randomness a
separate key. There is one enumeration for each kind of key, since two numbers must differ only if they are folded
into the same key. Two kinds of numbers are already in use:

- 0, 1, 2, ...: splitting a key into n keys gives the same keys as folding in 0 to n - 1. Streams of keys that are also
  split therefore start at 100 (the one exception is ``LearnerStream``).
- round numbers: the key of an episode is folded with the number of each round. Streams of such keys start at
  ``FIRST_EPISODE_STREAM``, which no round number reaches.

How keys descend from a seed:

| key | comes from | is split or folded into |
|---|---|---|
| seed key | ``jax.random.key(seed)`` | ``SeedStream``; for an episode: fleet key, policy key |
| fleet key | seed key, by splitting | start key, episode key; ``FleetStream`` |
| episode key | fleet key, by splitting | a key for each round (channel, arrivals); ``EpisodeStream`` |
| policy key | seed key, by splitting | a key for each round (sampled actions) |
| measurement key | fleet key, ``FleetStream.MEASURED_ACCURACY`` | ``DriftStream``; then device, then request |
| learner key | ``SeedStream.TRAINING``, by splitting | ``LearnerStream``; preferences, episodes, shuffling, next key |

NumPy draws outside of programs: the constants of a fleet's devices from (``fleet.seed``, CRC-32 of the field's name),
bootstrap samples from ``BOOTSTRAP_SEED``, and the Gymnasium environments' episode keys from their ``np_random``.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing JAX takes a second, and commands that only read files need no more than the numbers
    import jax

MAX_SEED = 2**31  # the largest seed a user may give

# Seeds of episodes. Simulations of the user start at seed 0; fronts are evaluated on the separate ranges below.
FINAL_EVALUATION_SEEDS = range(1_000_000, 1_000_016)  # a run's front; the same for every run, so fronts are comparable
EVALUATION_SEED_START = 2_000_000  # 'tandem evaluate', unless --first-seed is given
REFERENCE_FRONT_SEEDS = range(3_000_000, 3_000_064)  # the best known front of a scenario
TUNING_SEED_START = 4_000_000  # comparisons of 'tandem tune'

BOOTSTRAP_SEED = 0  # fixed, so that an interval is a function of the data

FIRST_EPISODE_STREAM = 2**30


@unique
class SeedStream(IntEnum):
    """Streams folded into ``jax.random.key(seed)``."""

    TRAINING = 101  # initial networks and all steps of an algorithm
    VALIDATION = 102  # the episodes that choose a front among the candidates
    ABLATION = 103  # the episodes that studies/ablation.py measures by
    CALIBRATION = 301  # the realisations of the drift that an accuracy mapping is fitted to
    PRETRAINING_EPOCH = 1_000  # plus the number of the epoch: order of the images and augmentation


@unique
class FleetStream(IntEnum):
    """Streams folded into the key that an episode is reset with."""

    MEASURED_ACCURACY = 103  # requests and drift of a task


@unique
class EpisodeStream(IntEnum):
    """Streams folded into the key of an episode, which is also folded with the number of each round."""

    ABSENCE = FIRST_EPISODE_STREAM + 104  # requests that arrive while a device of a fleet is offline


@unique
class DriftStream(IntEnum):
    """Streams folded into the key of a measured accuracy."""

    COMMON = 201  # the drift that all devices share
    OWN = 202  # plus a fold of the device's number: its own drift
    REQUESTS = 203  # plus folds of the device's and the request's number: the image


@unique
class LearnerStream(IntEnum):
    """Streams folded into the key of a learner.

    The same key is split in the learner's first step, so its first episodes share a key with its initial weights. The
    two draw different shapes from different distributions; the number is kept, so that results stay the same.
    """

    NETWORK = 1  # initial weights


def stream_key(seed: int, stream: SeedStream, offset: int = 0) -> jax.Array:
    """Return the key of a stream of a seed; ``offset`` is added where the stream is the first of a range of numbers."""
    import jax

    return jax.random.fold_in(jax.random.key(seed), stream + offset)


def fold_stream(key: jax.Array, stream: FleetStream | EpisodeStream | DriftStream | LearnerStream) -> jax.Array:
    """Return the key of a stream of a key."""
    import jax

    return jax.random.fold_in(key, int(stream))
