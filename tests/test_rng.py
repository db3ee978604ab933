"""Streams of randomness: no two uses may share a key."""

from itertools import pairwise

import jax
import pytest

from tandem.rng import (
    EVALUATION_SEED_START,
    FINAL_EVALUATION_SEEDS,
    MAX_SEED,
    REFERENCE_FRONT_SEEDS,
    DriftStream,
    EpisodeStream,
    FleetStream,
    LearnerStream,
    SeedStream,
    fold_stream,
    stream_key,
)
from tandem.scenario.schema import MAX_ROUNDS

KEYS_PER_SPLIT = 100  # more than any key is split into that a stream is folded into, but for a learner's
MAX_EPOCHS = 10_000


def test_streams_of_one_key_are_distinct() -> None:
    for streams in (SeedStream, FleetStream, EpisodeStream, DriftStream, LearnerStream):
        numbers = [int(stream) for stream in streams.__members__.values()]
        assert len(set(numbers)) == len(numbers), streams
        assert all(0 < number < 2**31 for number in numbers), streams


def test_a_range_of_streams_reaches_no_other_stream() -> None:
    epochs = range(SeedStream.PRETRAINING_EPOCH, SeedStream.PRETRAINING_EPOCH + MAX_EPOCHS)
    assert not [stream for stream in SeedStream if stream in epochs and stream != epochs.start]


def test_streams_are_out_of_reach_of_splitting() -> None:
    for streams in (SeedStream, FleetStream, DriftStream):
        assert min(streams) > KEYS_PER_SPLIT, streams


def test_streams_of_an_episode_are_out_of_reach_of_round_numbers() -> None:
    assert min(EpisodeStream) > MAX_ROUNDS


@pytest.mark.parametrize("number", [0, 1])
def test_splitting_is_folding_in_small_numbers(number: int) -> None:
    """Why streams start where they do."""
    key = jax.random.key(7)
    assert jax.random.split(key)[number] == jax.random.fold_in(key, number)


def test_stream_keys_fold_in_the_streams_number() -> None:
    key = jax.random.key(3)
    assert stream_key(3, SeedStream.TRAINING) == jax.random.fold_in(key, 101)
    assert stream_key(3, SeedStream.PRETRAINING_EPOCH, 5) == jax.random.fold_in(key, 1_005)
    assert fold_stream(key, FleetStream.MEASURED_ACCURACY) == jax.random.fold_in(key, 103)


def test_ranges_of_seeds_do_not_overlap() -> None:
    evaluated = range(EVALUATION_SEED_START, EVALUATION_SEED_START + 10_000)  # the most 'tandem evaluate' takes
    for before, after in pairwise((FINAL_EVALUATION_SEEDS, evaluated, REFERENCE_FRONT_SEEDS)):
        assert before.stop <= after.start
    assert REFERENCE_FRONT_SEEDS.stop <= MAX_SEED
