"""Hyperparameters of the algorithms. This is the only place with defaults, which are the preset ``default``."""

from __future__ import annotations

from typing import Annotated, Literal

import equinox as eqx
from pydantic import Field

from tandem.feel.environment import Environment
from tandem.feel.rewards import ViolationCredit
from tandem.feel.types import Scalar
from tandem.scenario.base import ConfigModel

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# A coordinate of a reference point: larger ones would make the hypervolume overflow.
Coordinate = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=100_000)]
# The probability ratio that is clipped: that of each device, or, as in the paper, that of the whole fleet's action.
RatioScope = Literal["device", "fleet"]


class PPOConfig(eqx.Module):
    """Hyperparameters of PPO as a pytree, made by ``AlgorithmConfig.ppo_config``.

    Numbers that may be swept are leaves; fields that determine the program are static.
    """

    learning_rate: Scalar | float
    lr_decay: Scalar | float  # share of the learning rate that is lost with every update
    gamma: Scalar | float
    gae_lambda: Scalar | float
    clip_eps: Scalar | float
    ent_coef: Scalar | float
    vf_coef: Scalar | float
    max_grad_norm: Scalar | float
    shared_credit: Scalar | float
    dirichlet_alpha: Scalar | float | None  # None: the preference is fixed
    num_envs: int = eqx.field(static=True)
    update_epochs: int = eqx.field(static=True)
    num_minibatches: int = eqx.field(static=True)
    ratio_scope: RatioScope = eqx.field(static=True)
    violation_credit: ViolationCredit = eqx.field(static=True)

    def rounds_per_step(self, environment: Environment) -> int:
        """Return the environment rounds of one training step of one policy."""
        return self.num_envs * environment.rounds


class AlgorithmConfig(ConfigModel):
    """Hyperparameters of every algorithm that trains by PPO."""

    budget: Annotated[int, Field(ge=1, le=10**12)] = 1_000_000  # environment rounds in total, with validation
    learning_rate: Positive = 4e-3
    anneal_lr: bool = True  # reduce the learning rate linearly to a twentieth by the end of a stage
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.99  # discount
    gae_lambda: Share = 0.95  # lambda of the advantage estimate
    clip_eps: Annotated[float, Field(gt=0, lt=1)] = 0.1  # epsilon of the clipped probability ratio
    ratio_scope: RatioScope = "device"  # scope of the probability ratio that is clipped
    shared_credit: Share = 0.3  # share of the other devices' advantages that a device's action is credited with
    violation_credit: ViolationCredit = "fleet"  # devices that are credited with the penalty of a violation
    ent_coef: NonNegative = 0.03  # weight of the entropy in the loss
    vf_coef: NonNegative = 0.5  # weight of the value error in the loss
    max_grad_norm: Positive = 0.5  # larger gradients are scaled down to this norm
    num_envs: Count = 32  # episodes in each training step
    update_epochs: Count = 4
    num_minibatches: Count = 4
    validation_episodes: Count = 4  # for each candidate for the front
    tolerance: Share = 0.01  # largest share of rounds with a violation that a policy of the front may have
    # Reference point of the hypervolume: accuracy, latency (s), energy (J).
    reference_point: tuple[Coordinate, Coordinate, Coordinate] = (0.0, 5.0, 44.0)
    shield: bool | None = None  # on or off; None: as in the scenario

    def ppo_config(self, steps: int, dirichlet_alpha: float | None = None) -> PPOConfig:
        """Return the hyperparameters of PPO for a policy that is trained for this many steps."""
        updates = steps * self.update_epochs * self.num_minibatches
        return PPOConfig(
            learning_rate=self.learning_rate,
            lr_decay=1 / updates if self.anneal_lr else 0.0,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            clip_eps=self.clip_eps,
            ent_coef=self.ent_coef,
            vf_coef=self.vf_coef,
            max_grad_norm=self.max_grad_norm,
            shared_credit=self.shared_credit,
            dirichlet_alpha=dirichlet_alpha,
            num_envs=self.num_envs,
            update_epochs=self.update_epochs,
            num_minibatches=self.num_minibatches,
            ratio_scope=self.ratio_scope,
            violation_credit=self.violation_credit,
        )


class PopulationConfig(AlgorithmConfig):
    """Hyperparameters of algorithms that train one policy for each of several preferences."""

    network: Literal["deep-set", "mlp"] = "deep-set"
    num_preferences: Annotated[int, Field(ge=1, le=1000)] = 10  # |Omega|
    min_weight: Annotated[float, Field(gt=0, lt=1 / 3)] = 0.05  # smallest weight of an objective in any of them
    archive_size: Annotated[int, Field(ge=1, le=2000)] = 100  # largest number of policies kept
    # Small steps: where few policies are feasible, large ones lose them again (studies/hyperparameter_search.py).
    num_envs: Count = 2
    learning_rate: Positive = 2e-3


class ScalarisedPPOConfig(PopulationConfig):
    """Hyperparameters of S-PPO and R+PPO."""

    # Without an archive only the last policies are candidates, as in the paper.
    archive_size: Annotated[int, Field(ge=0, le=2000)] = 100
    learning_rate: Positive = 1e-3


class CMOPPOConfig(PopulationConfig):
    """Hyperparameters of C-MOPPO."""

    initialisation: Annotated[float, Field(gt=0, lt=1)] = 0.6  # share of the budget
    num_extended: Annotated[int, Field(ge=1, le=1000)] = 4  # N_ext, policies selected in each iteration
    # New episodes for each policy of the archive and each initial policy before a selection; 0: no new evaluation.
    selection_episodes: Annotated[int, Field(ge=0, le=1000)] = 2
    extension_steps: Count = 20  # K', training steps for each of them and each objective
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.9
    mu: Positive = 80.0
    barrier: Literal["step", "selected", "none"] = "step"  # the policy whose returns define the constraints
    # The ranges that normalise returns: from the reference point to the best conceivable values, or those of the front.
    return_range: Literal["box", "front"] = "box"


class PGMORLConfig(PopulationConfig):
    """Hyperparameters of PG-MORL."""

    initialisation: Annotated[float, Field(gt=0, lt=1)] = 0.8  # share of the budget for the warm-up
    num_tasks: Annotated[int, Field(ge=1, le=1000)] = 10  # policies trained in each generation
    generation_steps: Annotated[int, Field(ge=2, le=100_000)] = 10  # training steps of each of them
    num_weights: Annotated[int, Field(ge=1, le=1000)] = 36  # weights that each policy might be trained with
    alpha: NonNegative = 1.0  # weight of sparsity against hypervolume, on normalised objectives
    buffer_count: Annotated[int, Field(ge=1, le=1000)] = 50  # directions of objective space
    buffer_size: Annotated[int, Field(ge=1, le=100)] = 2  # policies kept in each direction
    radius: Positive = 0.1  # of the neighbourhood that a prediction is based on, on normalised objectives
    num_neighbours: Annotated[int, Field(ge=1, le=10_000)] = 20  # fewest records; the neighbourhood grows to have them
    history_size: Annotated[int, Field(ge=1, le=100_000)] = 500  # latest records of training to predict from


class EvolutionConfig(PopulationConfig):
    """Hyperparameters of the evolutionary algorithms. Those of PPO are for the warm start."""

    warm_start: Annotated[float, Field(ge=0, lt=1)] = 0.6  # share of the budget; 0: one step, which observes the fleet
    population_size: Annotated[int, Field(ge=3, le=2000)] = 36  # policies in a generation
    episodes_per_eval: Count = 1  # episodes for each of them
    variation: Literal["differential", "simulated-binary"] = "differential"
    mutation_scale: NonNegative = 0.1  # standard deviation, relative to the weights of a layer
    mutation_rate: Share = 0.1  # share of the weights that mutate


class MOEADConfig(EvolutionConfig):
    """Hyperparameters of MOEA/D."""

    num_neighbours: Annotated[int, Field(ge=2, le=2000)] = 12  # subproblems that mate with each other
    neighbour_prob: Share = 0.9  # probability that a mate is a neighbour, and not any member
    max_replaced: Annotated[int, Field(ge=1, le=2000)] = 2  # largest number of neighbours that a child replaces


class ConditionedPPOConfig(AlgorithmConfig):
    """Hyperparameters of preference-conditioned PPO."""

    violation_credit: ViolationCredit = "device"
    num_envs: Count = 16
    dirichlet_alpha: Positive = 0.7  # of the Dirichlet distribution that preferences are sampled from
    width: Annotated[int, Field(ge=1, le=4096)] = 64  # of the network
    preference_divisions: Annotated[int, Field(ge=1, le=60)] = 19  # of the grid of preferences of the candidates
    validation_episodes: Count = 3  # for each of 210 candidates
    # Fleet sizes to train on; empty: only the scenario's.
    fleet_sizes: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] = ()
