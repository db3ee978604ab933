"""The action distribution of a learned policy: a mode for each device, and power and frequency on (0, 1)."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.feel.state import Action
from tandem.feel.types import ActionMask, DeviceFlags, PerDevice, RandomKey, Scalar

NUM_PARAMETERS = 5  # outputs of a network for each device
STRETCH = 0.1  # of (0, 1) at either end, see ``_stretched_sigmoid``
LOG_SCALE_LIMITS = (-5.0, 1.5)  # of the log standard deviation: from nearly certain to nearly uniform on (0, 1)

# The logistic distribution as a mixture of three normal ones: weights and standard deviations, fitted so that the error
# of softplus, the integral of its distribution function, is below 4e-5 (a form due to Monahan and Stefanski).
_LOGISTIC = ((0.32319846, 1.15264559), (0.56607049, 1.84100945), (0.11073105, 2.91591854))


class RawAction(eqx.Module):
    """An action as it was sampled: modes, and power and frequency before they are squashed into (0, 1).

    In this form its probability can be computed again exactly, however near a choice is to 0 or 1.
    """

    train: DeviceFlags
    power_logit: PerDevice
    frequency_logit: PerDevice

    def action(self) -> Action:
        """Return the action of the environment. The power of a serving device is 0: it does not transmit."""
        power = jnp.where(self.train, _stretched_sigmoid(self.power_logit), 0.0)
        return Action(train=self.train, power=power, frequency=_stretched_sigmoid(self.frequency_logit))


class LogitNormal(eqx.Module):
    """The distribution on (0, 1) of sigmoid(x) for a normal x. Samples and arguments are x."""

    location: PerDevice
    log_scale: PerDevice

    def sample(self, key: RandomKey) -> PerDevice:
        """Sample x."""
        noise = jax.random.normal(key, self.location.shape, self.location.dtype)
        return self.location + jnp.exp(self.log_scale) * noise

    def log_prob(self, x: PerDevice) -> PerDevice:
        """Compute log p(a) at a = sigmoid(x): log density of the normal, minus log |da/dx| = log a + log(1 - a)."""
        deviation = (x - self.location) * jnp.exp(-self.log_scale)
        normal = -0.5 * deviation * deviation - self.log_scale - 0.5 * math.log(2 * math.pi)
        return normal + jnp.abs(x) + 2 * jnp.log1p(jnp.exp(-jnp.abs(x)))

    def entropy(self) -> PerDevice:
        """Compute -E[log p(a)]: the normal's entropy, minus E[softplus(x) + softplus(-x)]; at most 0, if a is uniform.

        That expectation has no closed form, but has one for each part of the mixture, whose variance adds to that of x.
        The error is below 1e-4 for any location and scale.
        """
        normal = self.log_scale + 0.5 * math.log(2 * math.pi * math.e)
        squashing = jnp.zeros_like(normal)
        for share, spread in _LOGISTIC:
            wide = jnp.sqrt(spread**2 + jnp.exp(2 * self.log_scale))
            z = self.location / (math.sqrt(2) * wide)
            squashing += share * (self.location * jax.lax.erf(z) + math.sqrt(2 / math.pi) * wide * jnp.exp(-z * z))
        return normal - squashing


class ActionDistribution(eqx.Module):
    """Independent decisions for every device: a masked Bernoulli mode, and power and frequency on (0, 1).

    Only devices that train choose a power, so it contributes only to their probability.
    """

    mode_logit: PerDevice
    power: LogitNormal
    frequency: LogitNormal

    @classmethod
    def from_parameters(cls, parameters: PerDevice) -> ActionDistribution:
        """Create the distribution from a network's output, [devices, 5]."""
        mode, power, power_scale, frequency, frequency_scale = jnp.moveaxis(parameters, -1, 0)
        return cls(
            mode_logit=mode,
            power=LogitNormal(power, _bounded_log_scale(power_scale)),
            frequency=LogitNormal(frequency, _bounded_log_scale(frequency_scale)),
        )

    def sample(self, key: RandomKey, action_mask: ActionMask) -> RawAction:
        """Sample an action; a device whose mask allows one mode only has that mode."""
        mode_key, power_key, frequency_key = jax.random.split(key, 3)
        train = jax.random.bernoulli(mode_key, jax.nn.sigmoid(self.mode_logit))
        return RawAction(
            _masked(train, action_mask), self.power.sample(power_key), self.frequency.sample(frequency_key)
        )

    def mode(self, action_mask: ActionMask) -> RawAction:
        """Return the deterministic action, for deployment: the more likely mode and the medians."""
        return RawAction(_masked(self.mode_logit > 0, action_mask), self.power.location, self.frequency.location)

    def log_prob(self, raw_action: RawAction, action_mask: ActionMask) -> PerDevice:
        """Compute log pi(a_n|s) of each device; devices are independent, so the sum is that of the fleet."""
        mode = jax.nn.log_sigmoid(jnp.where(raw_action.train, self.mode_logit, -self.mode_logit))
        power = self.power.log_prob(raw_action.power_logit)
        return (
            jnp.where(_is_free(action_mask), mode, 0.0)
            + jnp.where(raw_action.train, power, 0.0)
            + self.frequency.log_prob(raw_action.frequency_logit)
        )

    def entropy(self, action_mask: ActionMask) -> Scalar:
        """Compute the entropy of the whole fleet's action; that of power is weighted by the probability of training."""
        free = _is_free(action_mask)
        p = jnp.where(free, jax.nn.sigmoid(self.mode_logit), action_mask[..., 1].astype(self.mode_logit.dtype))
        mode = p * -jax.nn.log_sigmoid(self.mode_logit) + (1 - p) * -jax.nn.log_sigmoid(-self.mode_logit)
        by_device = jnp.where(free, mode, 0.0) + p * self.power.entropy() + self.frequency.entropy()
        return jnp.sum(by_device)


def mode_uniforms(key: RandomKey, size: int) -> PerDevice:
    """Return the numbers in [0, 1) by which ``ActionDistribution.sample`` chooses modes: a lower one is to train."""
    return jax.random.uniform(jax.random.split(key, 3)[0], (size,))


def _masked(train: DeviceFlags, action_mask: ActionMask) -> DeviceFlags:
    """Replace modes that the mask does not allow."""
    return (train | ~action_mask[..., 0]) & action_mask[..., 1]


def _is_free(action_mask: ActionMask) -> DeviceFlags:
    """Return the devices that may choose between both modes."""
    return action_mask[..., 0] & action_mask[..., 1]


def _stretched_sigmoid(logit: PerDevice) -> PerDevice:
    """Apply the sigmoid, stretched by ``STRETCH`` and clipped to [0, 1].

    The best clock frequency is often the lowest, which a plain sigmoid only approaches.
    """
    return jnp.clip((1 + 2 * STRETCH) * jax.nn.sigmoid(logit) - STRETCH, 0.0, 1.0)


def _bounded_log_scale(parameter: PerDevice) -> PerDevice:
    """Map a network's output smoothly into ``LOG_SCALE_LIMITS``; 0 is mapped to 0, a useful initial value."""
    low, high = LOG_SCALE_LIMITS
    return low + (high - low) * jax.nn.sigmoid(parameter + math.log((0.0 - low) / (high - 0.0)))
