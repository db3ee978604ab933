"""Networks that decide and judge: from a fleet's inputs to a distribution over decisions and three values.

A network is a plug: a class with ``__call__(inputs, preference)`` that returns ``Judgement``, and an entry in
``NETWORKS``. The learner knows no more of it.
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.objectives import OBJECTIVES
from tandem.feel.observation import FLEET_FEATURES, device_features
from tandem.feel.system import System
from tandem.feel.types import Array, Objectives, RandomKey
from tandem.policy.distribution import PARAMETERS, FleetDistribution
from tandem.policy.inputs import CONSTANTS, Inputs

Preference = Float[Array, "3"]
GOALS = len(OBJECTIVES)
# Untrained, a network should hold no strong opinion: every mode likely, choices in the middle, values near 0.
QUIET = 0.01


class Judgement(eqx.Module):
    """What a network makes of a state: how to decide, and what to expect of each objective."""

    decide: FleetDistribution
    values: Objectives


class Network(eqx.Module):
    """A policy and its critic. ``preference`` is given to every network; those not conditioned on it ignore it."""

    @classmethod
    @abstractmethod
    def create(cls, system: System, key: RandomKey) -> Network:
        """A fresh network for fleets like this one."""

    @abstractmethod
    def __call__(self, inputs: Inputs, preference: Preference) -> Judgement:
        """Judge standardised inputs."""


class PaperNetwork(Network):
    """The paper's: actor and critic of four layers of 128 on the flat state. It fits one fleet size only."""

    actor: eqx.nn.MLP
    critic: eqx.nn.MLP

    @classmethod
    def create(cls, system: System, key: RandomKey) -> PaperNetwork:
        actor_key, critic_key = jax.random.split(key)
        size = system.size * len(device_features(system)) + len(FLEET_FEATURES)
        actor = eqx.nn.MLP(size, PARAMETERS * system.size, 128, 4, jnp.tanh, key=actor_key)
        critic = eqx.nn.MLP(size, GOALS, 128, 4, jnp.tanh, key=critic_key)
        return cls(_quiet(actor), _quiet(critic))

    def __call__(self, inputs: Inputs, preference: Preference) -> Judgement:
        state = jnp.concatenate([inputs.devices.T.reshape(-1), inputs.fleet])
        parameters = self.actor(state).reshape(-1, PARAMETERS)
        return Judgement(FleetDistribution.from_parameters(parameters), self.critic(state))


class FleetNetwork(Network):
    """One encoder for all devices, what they have in common as context, one head for all devices.

    Permuting devices permutes decisions, and one set of weights serves a fleet of any size. Conditioned, the
    preference joins the context, so that one network holds a whole front.
    """

    encoder: eqx.nn.MLP
    context: eqx.nn.MLP
    head: eqx.nn.MLP
    critic: eqx.nn.MLP
    conditioned: bool = eqx.field(static=True)

    @classmethod
    def create(cls, system: System, key: RandomKey, conditioned: bool = False, width: int = 64) -> FleetNetwork:
        encoder_key, context_key, head_key, critic_key = jax.random.split(key, 4)
        features = len(device_features(system)) + CONSTANTS
        shared = 2 * width + len(FLEET_FEATURES) + (GOALS if conditioned else 0)
        head = eqx.nn.MLP(2 * width, PARAMETERS, width, 1, jnp.tanh, key=head_key)
        critic = eqx.nn.MLP(width, GOALS, width, 1, jnp.tanh, key=critic_key)
        return cls(
            encoder=eqx.nn.MLP(features, width, width, 1, jnp.tanh, jnp.tanh, key=encoder_key),
            context=eqx.nn.MLP(shared, width, width, 1, jnp.tanh, jnp.tanh, key=context_key),
            head=_quiet(head),
            critic=_quiet(critic),
            conditioned=conditioned,
        )

    def __call__(self, inputs: Inputs, preference: Preference) -> Judgement:
        codes = jax.vmap(self.encoder)(jnp.concatenate([inputs.devices, inputs.constants], axis=-1))
        wish = [preference] if self.conditioned else []
        pooled = [jnp.mean(codes, axis=0), jnp.max(codes, axis=0), inputs.fleet, *wish]
        context = self.context(jnp.concatenate(pooled))
        parameters = jax.vmap(lambda code: self.head(jnp.concatenate([code, context])))(codes)
        return Judgement(FleetDistribution.from_parameters(parameters), self.critic(context))


def _quiet(network: eqx.nn.MLP) -> eqx.nn.MLP:
    """The network with its last layer scaled down."""
    quieter = jax.tree.map(lambda weights: QUIET * weights, network.layers[-1])
    scaled: eqx.nn.MLP = eqx.tree_at(lambda net: net.layers[-1], network, quieter)
    return scaled


NETWORKS: dict[str, type[Network]] = {"paper": PaperNetwork, "fleet": FleetNetwork}
