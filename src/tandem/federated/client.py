"""One federated client: a device's model, the requests that wait, and the samples they became.

All functions are for a single client; a fleet is the same functions under vmap. The simulator counts requests as real
numbers; a client holds whole requests. A request exists when all of it has arrived, a sample when enough requests have
been served for it; fractions are carried over. So the two counts differ by less than one, and no request is lost or
counted twice.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.federated.algorithm import FederatedAlgorithm, Model
from tandem.federated.data import Pool, Samples, sample_requests
from tandem.federated.drift import DeviceDrift, DriftParameters
from tandem.federated.fedavg import count_correct
from tandem.feel.types import Count, Flag, Scalar

ROUNDING = 1e-3  # a count this close below a whole number is whole: single precision rounds


class Counters(eqx.Module):
    """Totals of requests and samples since the start."""

    requests: Count  # that arrived, whole
    unkept_requests: Count  # of those, beyond the padded capacity: served, but not measured or converted to samples
    served: Count
    correct: Count  # of the served requests
    samples: Count  # converted from served requests
    discarded: Count  # samples that did not fit in the buffer
    trained: Count  # samples in a model that was aggregated
    lost: Count  # samples that were trained on, but whose update was too late

    @classmethod
    def init(cls) -> Counters:
        """Return counters of zero."""
        return cls(*(jnp.zeros((), jnp.int32) for _ in range(8)))


class ClientState(eqx.Module):
    """A client between two rounds."""

    model: Model  # w_n, the global model of the client's last training
    waiting: Samples  # requests, with the label that they get when they are served
    waiting_count: Count
    buffer: Samples  # new samples
    buffer_count: Count
    part_request: Scalar  # the fraction of the next request that has arrived
    part_sample: Scalar  # the fraction of the next sample that has been served
    accuracy: Scalar  # share of correct answers in the last round in which the client served
    counters: Counters

    @classmethod
    def init(
        cls, model: Model, accuracy: Scalar, shape: tuple[int, ...], queue_slots: int, buffer_slots: int
    ) -> ClientState:
        """Return a client with a pre-trained model of this accuracy and no requests; images have this shape."""
        zero, fraction = jnp.zeros((), jnp.int32), jnp.zeros(())
        queue, buffer = Samples.init(queue_slots, shape), Samples.init(buffer_slots, shape)
        accuracy = jnp.asarray(accuracy, float)
        return cls(model, queue, zero, buffer, zero, fraction, fraction, accuracy, Counters.init())


def enqueue(
    client: ClientState,
    pool: Pool,
    parameters: DriftParameters,
    drift: DeviceDrift,
    admitted: Scalar,
    time_s: Scalar,
    max_arrivals: int,
) -> ClientState:
    """Add the requests that the queue admits, drawn at ``time_s``; at most ``max_arrivals`` are drawn."""
    arrived = client.part_request + admitted
    whole = jnp.floor(arrived + ROUNDING).astype(jnp.int32)
    serial = client.counters.requests + jnp.arange(max_arrivals)
    new = sample_requests(pool, parameters, drift, serial, time_s)
    kept = jnp.minimum(jnp.minimum(whole, max_arrivals), client.waiting.slots - client.waiting_count)
    return _replace(
        client,
        waiting=client.waiting.append(client.waiting_count, new),
        waiting_count=client.waiting_count + kept,
        part_request=jnp.maximum(arrived - whole, 0.0),
        counters=_count(client.counters, requests=whole, unkept_requests=whole - kept),
    )


def serve(client: ClientState, serving: Flag, samples_per_request: Scalar, data_limit: Scalar) -> ClientState:
    """Answer all waiting requests and keep them as samples, if the client is ``serving``."""
    count = jnp.where(serving, client.waiting_count, 0)
    correct = count_correct(client.model, client.waiting, count)
    after = _convert(client, count, samples_per_request, data_limit)
    return _replace(
        after,
        waiting_count=jnp.where(serving, 0, client.waiting_count),
        accuracy=jnp.where(count > 0, correct / jnp.maximum(count, 1), client.accuracy),
        counters=_count(after.counters, served=count, correct=correct),
    )


def _convert(client: ClientState, served: Count, samples_per_request: Scalar, data_limit: Scalar) -> ClientState:
    """Append the samples F(Q) of the served requests to the buffer, up to its limit."""
    credit = client.part_sample
    total = credit + samples_per_request * served
    made = jnp.floor(total + ROUNDING).astype(jnp.int32)
    room = jnp.floor(jnp.minimum(data_limit, client.buffer.slots) + ROUNDING).astype(jnp.int32) - client.buffer_count
    kept = jnp.clip(room, 0, made)
    # New sample s goes into slot buffer_count + s. It is complete with the request that brings the credit to s + 1: if
    # a sample takes several requests, it has the image of the last of them.
    sample = jnp.arange(client.buffer.slots) - client.buffer_count
    source = jnp.ceil((sample + 1 - credit) / samples_per_request - ROUNDING).astype(jnp.int32) - 1
    source = jnp.clip(source, 0, client.waiting.slots - 1)
    view = sample - jnp.floor(credit + samples_per_request * source + ROUNDING).astype(jnp.int32)
    new = client.waiting.at(source).augment(jnp.maximum(view, 0))
    return _replace(
        client,
        buffer=client.buffer.merge_from(client.buffer_count, new),
        buffer_count=client.buffer_count + kept,
        part_sample=jnp.maximum(total - made, 0.0),
        counters=_count(client.counters, samples=made, discarded=made - kept),
    )


def train(
    client: ClientState, algorithm: FederatedAlgorithm, model: Model, iterations: Scalar, learning_rate: Scalar
) -> Model:
    """Return the client's update: the server's model after U local iterations on the client's samples.

    The client does not change: ``finish_training`` removes its samples when the server has used or rejected the update.
    """
    return algorithm.local_update(model, client.buffer, client.buffer_count, iterations, learning_rate)


def finish_training(client: ClientState, train: Flag, in_time: Flag, model: Model) -> ClientState:
    """Remove the samples that were trained on, and adopt the aggregated model if the update was in time."""
    used = jnp.where(train, client.buffer_count, 0)
    aggregated = jnp.where(in_time, used, 0)
    return _replace(
        client,
        model=jax.tree.map(lambda new, old: jnp.where(in_time, new, old), model, client.model),
        buffer_count=client.buffer_count - used,
        counters=_count(client.counters, trained=aggregated, lost=used - aggregated),
    )


def _replace(client: ClientState, **fields: object) -> ClientState:
    names = list(fields)
    after: ClientState = eqx.tree_at(lambda c: [getattr(c, name) for name in names], client, list(fields.values()))
    return after


def _count(counters: Counters, **more: Count) -> Counters:
    names = list(more)
    totals = [getattr(counters, name) + number for name, number in more.items()]
    after: Counters = eqx.tree_at(lambda c: [getattr(c, name) for name in names], counters, totals)
    return after
