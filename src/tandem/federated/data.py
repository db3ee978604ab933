"""Labelled images: padded lists of requests and samples, and the pool that requests are drawn from.

A padded list has a fixed capacity, and a count is kept beside it; entries past the count are padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray

from tandem.federated.drift import DeviceDrift, DriftParameters, drift_at
from tandem.federated.image_drift import apply_drift, shifted_view
from tandem.feel.types import Array, Count, Scalar

WHITE = 255.0  # value of the brightest pixel


class Samples(eqx.Module):
    """A padded list of 8-bit images with their labels."""

    images: UInt8[Array, "slots height width channels"]
    labels: Int[Array, " slots"]

    @classmethod
    def init(cls, slots: int, shape: tuple[int, ...]) -> Samples:
        """Return an empty list of this capacity, for images of this shape."""
        return cls(jnp.zeros((slots, *shape), jnp.uint8), jnp.zeros(slots, jnp.int32))

    @property
    def slots(self) -> int:
        """The capacity of the list."""
        return self.labels.shape[0]

    @property
    def pixels(self) -> Float[Array, "slots height width channels"]:
        """The images scaled to [0, 1], the input of models."""
        return self.images.astype(jnp.float32) / WHITE

    def at(self, index: Int[Array, " chosen"]) -> Samples:
        """Return the entries at these indices."""
        chosen: Samples = jax.tree.map(lambda leaf: leaf[index], self)
        return chosen

    def append(self, count: Count, others: Samples) -> Samples:
        """Return the first ``count`` entries followed by the others, up to the capacity."""
        # By a scatter: with a selection for each slot, the compiler would compute ``others`` again for every slot.
        slots = count + jnp.arange(others.slots)

        def put(old: Array, new: Array) -> Array:
            return old.at[slots].set(new, mode="drop", unique_indices=True, indices_are_sorted=True)

        both: Samples = jax.tree.map(put, self, others)
        return both

    def merge_from(self, count: Count, others: Samples) -> Samples:
        """Return the first ``count`` entries, and in all later slots the entries of ``others`` in the same slots."""

        def choose(old: Array, new: Array) -> Array:
            return jnp.where((jnp.arange(self.slots) < count).reshape(-1, *(1,) * (old.ndim - 1)), old, new)

        both: Samples = jax.tree.map(choose, self, others)
        return both

    def augment(self, view: Int[Array, " slots"]) -> Samples:
        """Return shifted views of the images, for requests that become several samples."""
        return Samples(shifted_view(self.images, view), self.labels)


@dataclass(frozen=True)
class LabelledImages:
    """The images of a data set with their labels."""

    images: NDArray[np.uint8]  # [images, height, width, channels]
    labels: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


class Pool(eqx.Module):
    """The images that requests are drawn from, sorted by class."""

    images: UInt8[Array, "images height width channels"]
    labels: Int[Array, " images"]
    first: Int[Array, " classes+1"]  # index of the first image of each class, and one past the last image

    @classmethod
    def from_images(cls, data: LabelledImages, classes: int) -> Pool:
        """Sort the images by class; every class must occur."""
        order = np.argsort(data.labels, kind="stable")
        labels = data.labels[order]
        first = np.searchsorted(labels, np.arange(classes + 1))
        return cls(jnp.asarray(data.images[order]), jnp.asarray(labels), jnp.asarray(first, jnp.int32))

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.first.shape[0] - 1


def sample_requests(
    pool: Pool, parameters: DriftParameters, drift: DeviceDrift, serial: Int[Array, " slots"], time_s: Scalar
) -> Samples:
    """Draw the requests with these serial numbers that arrive at a device at this time, with their labels."""
    shares, appearance = drift_at(drift, parameters, pool.classes, time_s)

    def draw(number: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(drift.requests, number), (2,))

    uniform = jax.vmap(draw)(serial)
    label = jnp.searchsorted(jnp.cumsum(shares)[:-1], uniform[:, 0], method="compare_all")
    size = pool.first[label + 1] - pool.first[label]
    index = pool.first[label] + jnp.minimum((uniform[:, 1] * size).astype(jnp.int32), size - 1)
    images = apply_drift(pool.images[index].astype(jnp.float32) / WHITE, appearance)
    return Samples(jnp.round(images * WHITE).astype(jnp.uint8), pool.labels[index])
