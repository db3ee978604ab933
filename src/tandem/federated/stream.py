"""Requests: which image, of which class, looking how. User feedback makes a served request a labelled sample."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt8
from numpy.typing import NDArray

from tandem.federated.appearance import seen
from tandem.federated.drift import DeviceWorld, DriftSettings, conditions
from tandem.federated.samples import WHITE, Samples
from tandem.feel.types import Array, Scalar


@dataclass(frozen=True)
class LabelledImages:
    """Images as a data set has them."""

    images: NDArray[np.uint8]  # [images, height, width, channels]
    labels: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


class Pool(eqx.Module):
    """The images that requests are made of, sorted by class."""

    images: UInt8[Array, "images height width channels"]
    labels: Int[Array, " images"]
    first: Int[Array, " classes+1"]  # of each class, and one past the last

    @classmethod
    def of(cls, data: LabelledImages, classes: int) -> Pool:
        """Sorted; every class must be there."""
        order = np.argsort(data.labels, kind="stable")
        labels = data.labels[order]
        first = np.searchsorted(labels, np.arange(classes + 1))
        return cls(jnp.asarray(data.images[order]), jnp.asarray(labels), jnp.asarray(first, jnp.int32))

    @property
    def classes(self) -> int:
        """How many there are."""
        return self.first.shape[0] - 1


def requests_at(
    pool: Pool, drift: DriftSettings, world: DeviceWorld, serial: Int[Array, " slots"], time_s: Scalar
) -> Samples:
    """The requests with these serial numbers of a device, if they come at this time, with the label they will get."""
    shares, look = conditions(world, drift, pool.classes, time_s)

    def draw(number: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(world.requests, number), (2,))

    uniform = jax.vmap(draw)(serial)
    label = jnp.searchsorted(jnp.cumsum(shares)[:-1], uniform[:, 0], method="compare_all")
    size = pool.first[label + 1] - pool.first[label]
    which = pool.first[label] + jnp.minimum((uniform[:, 1] * size).astype(jnp.int32), size - 1)
    images = seen(pool.images[which].astype(jnp.float32) / WHITE, look)
    return Samples(jnp.round(images * WHITE).astype(jnp.uint8), pool.labels[which])
