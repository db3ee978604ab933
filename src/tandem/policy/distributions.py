"""How a learned policy draws its decisions: a mode for each device, and choices that live on (0, 1)."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.feel.state import Action
from tandem.feel.types import DeviceFlags, PerDevice, RandomKey, Scalar

PARAMETERS = 5  # numbers a network gives for each device
STRETCH = 0.1  # of (0, 1) at either end, see ``_reaching_the_ends``
SCALE_LIMITS = (-5.0, 1.5)  # of the logarithm of a spread: from nearly certain to nearly uniform on (0, 1)

# The logistic distribution as a mixture of three normal ones: shares and spreads, fitted so that softplus, its
# integral, is met within 4e-5 (a form due to Monahan and Stefanski).
_LOGISTIC = ((0.32319846, 1.15264559), (0.56607049, 1.84100945), (0.11073105, 2.91591854))


class RawAction(eqx.Module):
    """A decision as it was drawn: modes, and power and frequency before they are squashed into (0, 1).

    Kept in this form, a probability can be worked out again exactly, however near a choice is to 0 or 1.
    """

    train: DeviceFlags
    power_logit: PerDevice
    frequency_logit: PerDevice

    def action(self) -> Action:
        """The decision as the fleet understands it. A server does not transmit: its power is no decision, and is 0."""
        power = jnp.where(self.train, _reaching_the_ends(self.power_logit), 0.0)
        return Action(train=self.train, power=power, frequency=_reaching_the_ends(self.frequency_logit))


class LogitNormal(eqx.Module):
    """The distribution on (0, 1) of sigmoid(x), x normal. Values are given as x."""

    location: PerDevice
    log_scale: PerDevice

    def sample(self, key: RandomKey) -> PerDevice:
        """A draw of x."""
        noise = jax.random.normal(key, self.location.shape, self.location.dtype)
        return self.location + jnp.exp(self.log_scale) * noise

    def log_prob(self, x: PerDevice) -> PerDevice:
        """log p(a) at a = sigmoid(x): that of the normal, less log |da/dx| = log a + log(1 - a)."""
        deviation = (x - self.location) * jnp.exp(-self.log_scale)
        normal = -0.5 * deviation * deviation - self.log_scale - 0.5 * math.log(2 * math.pi)
        return normal + jnp.abs(x) + 2 * jnp.log1p(jnp.exp(-jnp.abs(x)))

    def entropy(self) -> PerDevice:
        """-E[log p(a)]: the normal's, less E[softplus(x) + softplus(-x)]. The uniform distribution has the highest: 0.

        That mean has no closed form, but it has one for each part of the mixture, whose variance adds to that of x.
        Within 1e-4 for any location and scale.
        """
        normal = self.log_scale + 0.5 * math.log(2 * math.pi * math.e)
        squashing = jnp.zeros_like(normal)
        for share, spread in _LOGISTIC:
            wide = jnp.sqrt(spread**2 + jnp.exp(2 * self.log_scale))
            z = self.location / (math.sqrt(2) * wide)
            squashing += share * (self.location * jax.lax.erf(z) + math.sqrt(2 / math.pi) * wide * jnp.exp(-z * z))
        return normal - squashing


class ActionDistribution(eqx.Module):
    """Independent decisions for every device: a Bernoulli mode, masked, and two choices on (0, 1).

    Power is a decision of trainers alone, so it counts only where a device trains.
    """

    mode_logit: PerDevice
    power: LogitNormal
    frequency: LogitNormal

    @classmethod
    def from_parameters(cls, parameters: PerDevice) -> ActionDistribution:
        """From a network's output, [devices, 5]."""
        mode, power, power_scale, frequency, frequency_scale = jnp.moveaxis(parameters, -1, 0)
        return cls(
            mode_logit=mode,
            power=LogitNormal(power, _bounded_scale(power_scale)),
            frequency=LogitNormal(frequency, _bounded_scale(frequency_scale)),
        )

    def sample(self, key: RandomKey, may_train: DeviceFlags) -> RawAction:
        """Draw a decision; who may not train serves."""
        mode_key, power_key, frequency_key = jax.random.split(key, 3)
        wants = jax.random.bernoulli(mode_key, jax.nn.sigmoid(self.mode_logit))
        return RawAction(wants & may_train, self.power.sample(power_key), self.frequency.sample(frequency_key))

    def mode(self, may_train: DeviceFlags) -> RawAction:
        """The deterministic decision, for deployment: the likelier mode, the medians."""
        return RawAction((self.mode_logit > 0) & may_train, self.power.location, self.frequency.location)

    def log_prob(self, draw: RawAction, may_train: DeviceFlags) -> PerDevice:
        """log pi(a_n|s) of a draw, by device; decisions are independent, so the fleet's is the sum."""
        mode = jax.nn.log_sigmoid(jnp.where(draw.train, self.mode_logit, -self.mode_logit))
        power = self.power.log_prob(draw.power_logit)
        return (
            jnp.where(may_train, mode, 0.0)
            + jnp.where(draw.train, power, 0.0)
            + self.frequency.log_prob(draw.frequency_logit)
        )

    def entropy(self, may_train: DeviceFlags) -> Scalar:
        """Of the decision, over the whole fleet; power counts as likely as training is."""
        chance = jnp.where(may_train, jax.nn.sigmoid(self.mode_logit), 0.0)
        mode = chance * -jax.nn.log_sigmoid(self.mode_logit) + (1 - chance) * -jax.nn.log_sigmoid(-self.mode_logit)
        by_device = jnp.where(may_train, mode, 0.0) + chance * self.power.entropy() + self.frequency.entropy()
        return jnp.sum(by_device)


def _reaching_the_ends(logit: PerDevice) -> PerDevice:
    """The choice that sigmoid(x) stands for: a little stretched and cut to [0, 1].

    The best clock is often the lowest, and sigmoid alone comes near 0 ever more slowly without reaching it.
    """
    return jnp.clip((1 + 2 * STRETCH) * jax.nn.sigmoid(logit) - STRETCH, 0.0, 1.0)


def _bounded_scale(parameter: PerDevice) -> PerDevice:
    """The logarithm of a spread, kept within ``SCALE_LIMITS`` smoothly; 0 stays near the middle of what is useful."""
    low, high = SCALE_LIMITS
    return low + (high - low) * jax.nn.sigmoid(parameter + math.log((0.0 - low) / (high - 0.0)))
