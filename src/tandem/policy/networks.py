"""Networks that decide and judge: from a fleet's inputs to a distribution over decisions and three values.

A network is a plug: a class with ``__call__(inputs, preference)`` that returns ``Judgement``, and an entry in
``NETWORKS``. The learner knows no more of it.
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from tandem.feel.observation import FLEET_FEATURES, device_features
from tandem.feel.system import System
from tandem.feel.types import Array, RandomKey
from tandem.objectives import NUM_OBJECTIVES
from tandem.policy.distributions import PARAMETERS, ActionDistribution
from tandem.policy.features import NUM_CONSTANTS, Features

Preference = Float[Array, "3"]
Codes = Float[Array, "devices width"]
# Untrained, a network should hold no strong opinion: every mode likely, choices in the middle, values near 0.
FINAL_LAYER_SCALE = 0.01


class ActorCriticOutput(eqx.Module):
    """What a network makes of a state: how to decide, and what to expect of each objective."""

    action_dist: ActionDistribution
    value: Float[Array, "critics 3"]  # of each device, or one row for the fleet as a whole


class ActorCritic(eqx.Module):
    """A policy and its critic. ``preference`` is given to every network; those not conditioned on it ignore it."""

    @classmethod
    @abstractmethod
    def init(cls, system: System, key: RandomKey) -> ActorCritic:
        """A fresh network for fleets like this one."""

    @abstractmethod
    def __call__(self, inputs: Features, preference: Preference) -> ActorCriticOutput:
        """Judge standardised inputs."""


class MLPActorCritic(ActorCritic):
    """The paper's: actor and critic of four layers of 128 on the flat state. It fits one fleet size only."""

    actor: eqx.nn.MLP
    critic: eqx.nn.MLP

    @classmethod
    def init(cls, system: System, key: RandomKey) -> MLPActorCritic:
        actor_key, critic_key = jax.random.split(key)
        size = system.size * len(device_features(system)) + len(FLEET_FEATURES)
        actor = eqx.nn.MLP(size, PARAMETERS * system.size, 128, 4, jnp.tanh, key=actor_key)
        critic = eqx.nn.MLP(size, NUM_OBJECTIVES, 128, 4, jnp.tanh, key=critic_key)
        return cls(_scale_final_layer(actor), _scale_final_layer(critic))

    def __call__(self, inputs: Features, preference: Preference) -> ActorCriticOutput:
        state = jnp.concatenate([inputs.devices.T.reshape(-1), inputs.fleet])
        parameters = self.actor(state).reshape(-1, PARAMETERS)
        return ActorCriticOutput(ActionDistribution.from_parameters(parameters), self.critic(state)[None])


class DeepSetActorCritic(ActorCritic):
    """One encoder for all devices, what they have in common as context, one head and one critic for all devices.

    Permuting devices permutes decisions, on a CPU bit for bit, and one set of weights serves a fleet of any size.
    Conditioned, the preference joins every device's features and the context, so that one network holds a whole front:
    what is worth noting of a device, before the fleet is summed up, depends on what is wanted. The critic judges device
    by device: a fleet of ten teaches it ten times as much as a single number would.
    """

    encoder: eqx.nn.MLP
    context: eqx.nn.MLP
    head: eqx.nn.MLP
    critic: eqx.nn.MLP
    conditioned: bool = eqx.field(static=True)

    @classmethod
    def init(cls, system: System, key: RandomKey, conditioned: bool = False, width: int = 64) -> DeepSetActorCritic:
        encoder_key, context_key, head_key, critic_key = jax.random.split(key, 4)
        wish = NUM_OBJECTIVES if conditioned else 0
        features = len(device_features(system)) + NUM_CONSTANTS + wish
        shared = 2 * width + len(FLEET_FEATURES) + wish
        head = eqx.nn.MLP(2 * width, PARAMETERS, width, 1, jnp.tanh, key=head_key)
        critic = eqx.nn.MLP(2 * width, NUM_OBJECTIVES, width, 1, jnp.tanh, key=critic_key)
        return cls(
            encoder=eqx.nn.MLP(features, width, width, 1, jnp.tanh, jnp.tanh, key=encoder_key),
            context=eqx.nn.MLP(shared, width, width, 1, jnp.tanh, jnp.tanh, key=context_key),
            head=_scale_final_layer(head),
            critic=_scale_final_layer(critic),
            conditioned=conditioned,
        )

    def __call__(self, inputs: Features, preference: Preference) -> ActorCriticOutput:
        hidden, last = self.encoder.layers
        wish = [preference] if self.conditioned else []
        wishes = [jnp.broadcast_to(one, (inputs.devices.shape[0], NUM_OBJECTIVES)) for one in wish]
        features = jnp.concatenate([inputs.devices, inputs.constants, *wishes], axis=-1)
        codes = jnp.tanh(_rows(last, jnp.tanh(_rows(hidden, features))))
        pooled = [jnp.mean(summable(codes), axis=0), jnp.max(codes, axis=0), inputs.fleet, *wish]
        context = self.context(jnp.concatenate(pooled))
        parameters = _in_context(self.head, codes, context)
        return ActorCriticOutput(
            ActionDistribution.from_parameters(parameters), _in_context(self.critic, codes, context)
        )


@jax.custom_jvp
def summable(codes: Codes) -> Codes:
    """Codes in [-1, 1], rounded so that their sum over devices is exact, whatever the order of addition.

    Multiples of 2^-k, with N 2^k within the significand, add up without rounding, so that a permuted fleet has the same
    mean to the last bit. The mean is off by 2^-(k+1) at most: in single precision 1e-6 with N = 10, 6e-5 with N = 1000.
    For derivatives it is the identity: a staircase has none that would be of use.
    """
    places = 2.0 ** int(np.finfo(codes.dtype).nmant - (codes.shape[0] - 1).bit_length())
    return jnp.round(codes * places) / places


summable.defjvps(lambda tangent, rounded, codes: tangent)


def _in_context(network: eqx.nn.MLP, codes: Codes, context: Float[Array, " width"]) -> Float[Array, "devices out"]:
    """The network for each device's code followed by the context, which all share: its part is worked out once."""
    hidden, last = network.layers
    weight, bias = _affine(hidden)
    own, shared = jnp.split(weight, 2)
    return _rows(last, jnp.tanh(codes @ own + (context @ shared + bias)))


def _rows(layer: eqx.nn.Linear, rows: Float[Array, "devices features"]) -> Float[Array, "devices out"]:
    """The layer for each row. Rows come first: a compiler that is left to choose may round them by their position."""
    weight, bias = _affine(layer)
    return rows @ weight + bias


def _affine(layer: eqx.nn.Linear) -> tuple[Float[Array, "features out"], Float[Array, " out"]]:
    assert layer.bias is not None
    return layer.weight.T, layer.bias


class RandomModeActorCritic(ActorCritic):
    """Another network's choices of power and frequency, with modes by the toss of a coin: the paper's R+PPO."""

    choices: ActorCritic

    @classmethod
    def init(cls, system: System, key: RandomKey) -> RandomModeActorCritic:
        return cls(MLPActorCritic.init(system, key))

    def __call__(self, inputs: Features, preference: Preference) -> ActorCriticOutput:
        judged = self.choices(inputs, preference)
        fair = jnp.zeros_like(judged.action_dist.mode_logit)
        return ActorCriticOutput(eqx.tree_at(lambda how: how.mode_logit, judged.action_dist, fair), judged.value)


def _scale_final_layer(network: eqx.nn.MLP) -> eqx.nn.MLP:
    """The network with its last layer scaled down."""
    quieter = jax.tree.map(lambda weights: FINAL_LAYER_SCALE * weights, network.layers[-1])
    scaled: eqx.nn.MLP = eqx.tree_at(lambda net: net.layers[-1], network, quieter)
    return scaled


NETWORKS: dict[str, type[ActorCritic]] = {"mlp": MLPActorCritic, "deep-set": DeepSetActorCritic}
