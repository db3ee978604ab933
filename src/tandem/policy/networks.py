"""Actor-critic networks: from the features of a fleet to a distribution over actions and three values.

A network is a class with ``init(environment, key)`` and ``__call__(features, preference)``, which returns an
``ActorCriticOutput``, and an entry in ``NETWORKS``. Learners use only these two methods.
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from tandem.feel.environment import Environment
from tandem.feel.observation import FLEET_FEATURES, NUM_CONSTANTS
from tandem.feel.types import Array, RandomKey
from tandem.objectives import NUM_OBJECTIVES
from tandem.policy.distributions import NUM_PARAMETERS, ActionDistribution
from tandem.policy.features import Features

Preference = Float[Array, "3"]
Codes = Float[Array, "devices width"]
# A small final layer: an untrained network gives both modes about the same probability, choices near the middle of
# their range and values near 0.
FINAL_LAYER_SCALE = 0.01


class ActorCriticOutput(eqx.Module):
    """The output of a network for one state."""

    action_dist: ActionDistribution
    value: Float[Array, "critics 3"]  # a row for each device, or one row for the whole fleet


class ActorCritic(eqx.Module):
    """A policy and its critic. Every network is given the preference; those not conditioned on it ignore it."""

    @classmethod
    @abstractmethod
    def init(cls, environment: Environment, key: RandomKey) -> ActorCritic:
        """Create an untrained network for an environment."""

    @abstractmethod
    def __call__(self, features: Features, preference: Preference) -> ActorCriticOutput:
        """Apply the network to normalised features."""


class MLPActorCritic(ActorCritic):
    """The paper's network: actor and critic of four layers of 128 on the flat state. It fits one fleet size only."""

    actor: eqx.nn.MLP
    critic: eqx.nn.MLP

    @classmethod
    def init(cls, environment: Environment, key: RandomKey) -> MLPActorCritic:
        actor_key, critic_key = jax.random.split(key)
        size = environment.size * len(environment.device_features) + len(FLEET_FEATURES)
        actor = eqx.nn.MLP(size, NUM_PARAMETERS * environment.size, 128, 4, jnp.tanh, key=actor_key)
        critic = eqx.nn.MLP(size, NUM_OBJECTIVES, 128, 4, jnp.tanh, key=critic_key)
        return cls(_scale_final_layer(actor), _scale_final_layer(critic))

    def __call__(self, features: Features, preference: Preference) -> ActorCriticOutput:
        state = jnp.concatenate([features.devices.T.reshape(-1), features.fleet])
        parameters = self.actor(state).reshape(-1, NUM_PARAMETERS)
        return ActorCriticOutput(ActionDistribution.from_parameters(parameters), self.critic(state)[None])


class DeepSetActorCritic(ActorCritic):
    """One encoder for all devices, a pooled context of the fleet, and one head and one critic for all devices.

    Permuting devices permutes decisions, on a CPU bit for bit, and one set of weights fits a fleet of any size. A
    conditioned network receives the preference with the features of every device and with the pooled fleet, so that
    one network represents a whole front: which features of a device matter depends on the preference. The critic gives
    a value for each device: a fleet of ten provides ten times as many targets as one value for the fleet would.
    """

    encoder: eqx.nn.MLP
    context: eqx.nn.MLP
    head: eqx.nn.MLP
    critic: eqx.nn.MLP
    conditioned: bool = eqx.field(static=True)

    @classmethod
    def init(
        cls, environment: Environment, key: RandomKey, conditioned: bool = False, width: int = 64
    ) -> DeepSetActorCritic:
        encoder_key, context_key, head_key, critic_key = jax.random.split(key, 4)
        preference = NUM_OBJECTIVES if conditioned else 0
        features = len(environment.device_features) + NUM_CONSTANTS + preference
        pooled = 2 * width + len(FLEET_FEATURES) + preference
        head = eqx.nn.MLP(2 * width, NUM_PARAMETERS, width, 1, jnp.tanh, key=head_key)
        critic = eqx.nn.MLP(2 * width, NUM_OBJECTIVES, width, 1, jnp.tanh, key=critic_key)
        return cls(
            encoder=eqx.nn.MLP(features, width, width, 1, jnp.tanh, jnp.tanh, key=encoder_key),
            context=eqx.nn.MLP(pooled, width, width, 1, jnp.tanh, jnp.tanh, key=context_key),
            head=_scale_final_layer(head),
            critic=_scale_final_layer(critic),
            conditioned=conditioned,
        )

    def __call__(self, features: Features, preference: Preference) -> ActorCriticOutput:
        hidden, last = self.encoder.layers
        for_fleet = [preference] if self.conditioned else []
        for_devices = [jnp.broadcast_to(one, (features.devices.shape[0], NUM_OBJECTIVES)) for one in for_fleet]
        rows = jnp.concatenate([features.devices, features.constants, *for_devices], axis=-1)
        codes = jnp.tanh(_apply_rows(last, jnp.tanh(_apply_rows(hidden, rows))))
        pooled = [jnp.mean(summable(codes), axis=0), jnp.max(codes, axis=0), features.fleet, *for_fleet]
        context = self.context(jnp.concatenate(pooled))
        parameters = _apply_with_context(self.head, codes, context)
        values = _apply_with_context(self.critic, codes, context)
        return ActorCriticOutput(ActionDistribution.from_parameters(parameters), values)


@jax.custom_jvp
def summable(codes: Codes) -> Codes:
    """Round codes in [-1, 1] so that their sum over devices is exact, whatever the order of addition.

    Multiples of 2^-k, with N 2^k within the significand, add up without rounding, so that a permuted fleet has the same
    mean to the last bit. The mean is off by 2^-(k+1) at most: in single precision 1e-6 with N = 10, 6e-5 with N = 1000.
    Its derivative is that of the identity, since the derivative of a step function is zero.
    """
    places = 2.0 ** int(np.finfo(codes.dtype).nmant - (codes.shape[0] - 1).bit_length())
    return jnp.round(codes * places) / places


summable.defjvps(lambda tangent, rounded, codes: tangent)


def _apply_with_context(
    network: eqx.nn.MLP, codes: Codes, context: Float[Array, " width"]
) -> Float[Array, "devices out"]:
    """Apply the network to each device's code and the context, whose part is computed once for all devices."""
    hidden, last = network.layers
    weight, bias = _affine(hidden)
    own, shared = jnp.split(weight, 2)
    return _apply_rows(last, jnp.tanh(codes @ own + (context @ shared + bias)))


def _apply_rows(layer: eqx.nn.Linear, rows: Float[Array, "devices features"]) -> Float[Array, "devices out"]:
    """Apply the layer to each row. Rows come first: under vmap, a compiler may round rows by their position."""
    weight, bias = _affine(layer)
    return rows @ weight + bias


def _affine(layer: eqx.nn.Linear) -> tuple[Float[Array, "features out"], Float[Array, " out"]]:
    assert layer.bias is not None
    return layer.weight.T, layer.bias


class RandomModeActorCritic(ActorCritic):
    """R+PPO of the paper: another network chooses power and frequency, and modes are random with probability 1/2."""

    choices: ActorCritic

    @classmethod
    def init(cls, environment: Environment, key: RandomKey) -> RandomModeActorCritic:
        return cls(MLPActorCritic.init(environment, key))

    def __call__(self, features: Features, preference: Preference) -> ActorCriticOutput:
        output = self.choices(features, preference)
        fair = jnp.zeros_like(output.action_dist.mode_logit)
        return ActorCriticOutput(eqx.tree_at(lambda dist: dist.mode_logit, output.action_dist, fair), output.value)


def _scale_final_layer(network: eqx.nn.MLP) -> eqx.nn.MLP:
    """Scale down the weights of the last layer."""
    final = jax.tree.map(lambda weights: FINAL_LAYER_SCALE * weights, network.layers[-1])
    scaled: eqx.nn.MLP = eqx.tree_at(lambda net: net.layers[-1], network, final)
    return scaled


NETWORKS: dict[str, type[ActorCritic]] = {"mlp": MLPActorCritic, "deep-set": DeepSetActorCritic}
