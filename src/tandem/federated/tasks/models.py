"""The classifiers that devices run, called with a batch of images.

A fleet has one model for each device, all of the same shape, stacked leaf by leaf. So a layer must be fast when every
device has different weights, as matrix products are and grouped convolutions are not.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.types import Array, RandomKey

Images = Float[Array, "batch height width channels"]
Logits = Float[Array, "batch classes"]


class Dense(eqx.Module):
    """A dense layer x W + b. The initial W has He's normal distribution, which is the same under vmap."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    @classmethod
    def init(cls, inputs: int, outputs: int, key: RandomKey) -> Dense:
        """Draw initial weights."""
        return cls(jax.random.normal(key, (inputs, outputs)) * math.sqrt(2 / inputs), jnp.zeros(outputs))

    def __call__(self, x: Array) -> Array:
        return x @ self.weight + self.bias


class Perceptron(eqx.Module):
    """A perceptron with one hidden layer."""

    hidden: Dense
    head: Dense

    @classmethod
    def init(cls, pixels: int, width: int, classes: int, key: RandomKey) -> Perceptron:
        """Draw initial weights."""
        first, second = jax.random.split(key)
        return cls(Dense.init(pixels, width, first), Dense.init(width, classes, second))

    def __call__(self, images: Images) -> Logits:
        centred = 2 * images.reshape(images.shape[0], -1) - 1
        return self.head(jax.nn.relu(self.hidden(centred)))


class Convolution(eqx.Module):
    """A 3 by 3 convolution as one matrix product: nine shifted images side by side, times the kernel."""

    product: Dense  # [9 channels, outputs]

    @classmethod
    def init(cls, channels: int, outputs: int, key: RandomKey) -> Convolution:
        """Draw initial weights."""
        return cls(Dense.init(9 * channels, outputs, key))

    def __call__(self, images: Images) -> Images:
        height, width = images.shape[1:3]
        # The barrier keeps XLA from fusing the input's computation into each of the nine shifts.
        padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        padded = jax.lax.optimization_barrier(padded)  # type: ignore[no-untyped-call]
        shifts = [padded[:, row : row + height, column : column + width] for row in range(3) for column in range(3)]
        return self.product(jnp.concatenate(shifts, axis=-1))


class GroupNorm(eqx.Module):
    """Group normalisation: each image by itself, so there are no batch statistics to share between devices."""

    scale: Float[Array, " channels"]
    shift: Float[Array, " channels"]
    groups: int = eqx.field(static=True)

    @classmethod
    def init(cls, channels: int, groups: int) -> GroupNorm:
        """Return scale 1 and shift 0."""
        return cls(jnp.ones(channels), jnp.zeros(channels), groups)

    def __call__(self, images: Images) -> Images:
        grouped = images.reshape(*images.shape[:3], self.groups, -1)
        mean = jnp.mean(grouped, axis=(1, 2, 4), keepdims=True)
        variance = jnp.mean((grouped - mean) ** 2, axis=(1, 2, 4), keepdims=True)
        standard = (grouped - mean) * jax.lax.rsqrt(variance + 1e-5)
        return standard.reshape(images.shape) * self.scale + self.shift


class Block(eqx.Module):
    """Convolution, normalisation and ReLU, ``depth`` times; then max pooling to half the resolution."""

    convolutions: tuple[Convolution, ...]
    norms: tuple[GroupNorm, ...]

    @classmethod
    def init(cls, channels: int, outputs: int, depth: int, key: RandomKey) -> Block:
        """Draw initial weights."""
        inputs = (channels, *(outputs,) * (depth - 1))
        keys = jax.random.split(key, depth)
        made = tuple(Convolution.init(count, outputs, one) for count, one in zip(inputs, keys, strict=True))
        return cls(made, tuple(GroupNorm.init(outputs, 8) for _ in inputs))

    def __call__(self, images: Images) -> Images:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            images = jax.nn.relu(norm(convolution(images)))
        batch, height, width, channels = images.shape
        return images.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


class ConvolutionalNetwork(eqx.Module):
    """Three convolutional blocks and a light classifier, as in the paper: 50,154 weights, an update of 201 KB."""

    blocks: tuple[Block, Block, Block]
    head: Dense

    @classmethod
    def init(cls, key: RandomKey, channels: int = 3, classes: int = 10) -> ConvolutionalNetwork:
        """Draw initial weights."""
        one, two, three, last = jax.random.split(key, 4)
        blocks = (Block.init(channels, 24, 2, one), Block.init(24, 40, 2, two), Block.init(40, 56, 1, three))
        return cls(blocks, Dense.init(56, classes, last))

    def __call__(self, images: Images) -> Logits:
        features = 4 * images - 2  # pixels of photographs to numbers of order one
        for block in self.blocks:
            features = block(features)
        return self.head(jnp.mean(features, axis=(1, 2)))


def weight_count(model: eqx.Module) -> int:
    """Return the number of weights of a model."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
