"""One device: its model, the requests that wait, the samples they became. A fleet is these functions under vmap.

The simulator counts requests as a fluid, to the fraction; a device here holds whole ones. A request is there when it
has arrived to the end, a sample when enough requests have been served for it; fractions are carried over. So whole and
fluid counts differ by less than one, and nothing is lost or made up.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.federated.data import Pool, Samples, sample_requests
from tandem.federated.drift import DeviceDrift, DriftParameters
from tandem.federated.fedavg import Model, count_correct, local_update
from tandem.feel.types import Count, Flag, Scalar

SLACK = 1e-3  # single precision rounds; what is whole but for that counts as whole


class Counters(eqx.Module):
    """What has become of all requests and samples since the start."""

    requests: Count  # that came in, whole
    unkept_requests: Count  # of those, beyond the padded capacity: answered, but neither measured nor made samples of
    served: Count
    correct: Count  # of those, answered rightly
    samples: Count  # made of served requests
    discarded: Count  # of those, found the buffer full
    trained: Count  # went into a model that was aggregated
    lost: Count  # were trained on, and their update came too late

    @classmethod
    def init(cls) -> Counters:
        """At the start."""
        return cls(*(jnp.zeros((), jnp.int32) for _ in range(8)))


class ClientState(eqx.Module):
    """A device between two rounds."""

    model: Model  # w_n, as old as the device's last training
    waiting: Samples  # requests, labelled for when they are served
    waiting_count: Count
    buffer: Samples  # new samples
    buffer_count: Count
    part_request: Scalar  # of the next request, what has arrived
    part_sample: Scalar  # of the next sample, what has been served
    accuracy: Scalar  # of its answers when it last served
    counters: Counters

    @classmethod
    def init(
        cls, model: Model, accuracy: Scalar, shape: tuple[int, ...], queue_slots: int, buffer_slots: int
    ) -> ClientState:
        """With a pre-trained model of this accuracy and nothing to do; images have this shape."""
        none, nothing = jnp.zeros((), jnp.int32), jnp.zeros(())
        queue, buffer = Samples.init(queue_slots, shape), Samples.init(buffer_slots, shape)
        return cls(model, queue, none, buffer, none, nothing, nothing, jnp.asarray(accuracy, float), Counters.init())


def enqueue(
    device: ClientState,
    pool: Pool,
    drift: DriftParameters,
    world: DeviceDrift,
    admitted: Scalar,
    time_s: Scalar,
    most_at_once: int,
) -> ClientState:
    """Requests arrive about ``time_s``, as many as the queue admits; slots for ``most_at_once`` are worked on."""
    arrived = device.part_request + admitted
    whole = jnp.floor(arrived + SLACK).astype(jnp.int32)
    serial = device.counters.requests + jnp.arange(most_at_once)
    new = sample_requests(pool, drift, world, serial, time_s)
    kept = jnp.minimum(jnp.minimum(whole, most_at_once), device.waiting.slots - device.waiting_count)
    tally = _counted(device.counters, requests=whole, unkept_requests=whole - kept)
    return _changed(
        device,
        waiting=device.waiting.append(device.waiting_count, new),
        waiting_count=device.waiting_count + kept,
        part_request=jnp.maximum(arrived - whole, 0.0),
        counters=tally,
    )


def serve(device: ClientState, serving: Flag, samples_per_request: Scalar, data_limit: Scalar) -> ClientState:
    """Answer all that wait and keep them as samples, if the device is ``serving``."""
    count = jnp.where(serving, device.waiting_count, 0)
    right = count_correct(device.model, device.waiting, count)
    after = _converted(device, count, samples_per_request, data_limit)
    return _changed(
        after,
        waiting_count=jnp.where(serving, 0, device.waiting_count),
        accuracy=jnp.where(count > 0, right / jnp.maximum(count, 1), device.accuracy),
        counters=_counted(after.counters, served=count, correct=right),
    )


def _converted(device: ClientState, served: Count, samples_per_request: Scalar, data_limit: Scalar) -> ClientState:
    """F(Q): the served requests as samples behind those of the buffer, as far as it admits them."""
    credit = device.part_sample
    made_of_all = credit + samples_per_request * served
    made = jnp.floor(made_of_all + SLACK).astype(jnp.int32)
    room = jnp.floor(jnp.minimum(data_limit, device.buffer.slots) + SLACK).astype(jnp.int32) - device.buffer_count
    kept = jnp.clip(room, 0, made)
    # Sample s comes into the slot s behind what is there. It is complete with the request that brings the credit to
    # s + 1: of many requests, the latest.
    sample = jnp.arange(device.buffer.slots) - device.buffer_count
    source = jnp.ceil((sample + 1 - credit) / samples_per_request - SLACK).astype(jnp.int32) - 1
    source = jnp.clip(source, 0, device.waiting.slots - 1)
    view = sample - jnp.floor(credit + samples_per_request * source + SLACK).astype(jnp.int32)
    new = device.waiting.at(source).augment(jnp.maximum(view, 0))
    return _changed(
        device,
        buffer=device.buffer.merge_from(device.buffer_count, new),
        buffer_count=device.buffer_count + kept,
        part_sample=jnp.maximum(made_of_all - made, 0.0),
        counters=_counted(device.counters, samples=made, discarded=made - kept),
    )


def train(device: ClientState, model: Model, iterations: Scalar, learning_rate: Scalar) -> Model:
    """The device's update: the server's model after U full-batch steps on its new samples. The device stays as it is.

    Its samples go when the server has the update, or has given it up: ``trained``.
    """
    return local_update(model, device.buffer, device.buffer_count, iterations, learning_rate)


def finish_training(device: ClientState, train: Flag, in_time: Flag, model: Model) -> ClientState:
    """After a training round: the samples are gone; the averaged model is the device's if its update was in time."""
    gone = jnp.where(train, device.buffer_count, 0)
    taken = jnp.where(in_time, gone, 0)
    return _changed(
        device,
        model=jax.tree.map(lambda new, old: jnp.where(in_time, new, old), model, device.model),
        buffer_count=device.buffer_count - gone,
        counters=_counted(device.counters, trained=taken, lost=gone - taken),
    )


def _changed(device: ClientState, **fields: object) -> ClientState:
    names = list(fields)
    changed: ClientState = eqx.tree_at(lambda d: [getattr(d, name) for name in names], device, list(fields.values()))
    return changed


def _counted(tally: Counters, **more: Count) -> Counters:
    names = list(more)
    counts = [getattr(tally, name) + number for name, number in more.items()]
    counted: Counters = eqx.tree_at(lambda t: [getattr(t, name) for name in names], tally, counts)
    return counted
