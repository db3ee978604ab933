"""What a user may set of an algorithm. The defaults are the preset ``default``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.learn.ppo.ppo import PPOConfig, RatioScope
from tandem.scenario.base import ConfigModel

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=100_000)]


class AlgorithmConfig(ConfigModel):
    """Of every algorithm that learns by PPO."""

    budget: Annotated[int, Field(ge=1, le=10**12)] = 1_000_000  # environment rounds in all, validation included
    learning_rate: Positive = 4e-3
    anneal_lr: bool = True  # let the learning rate fall to a twentieth by the end of a stage
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.99  # gamma
    gae_lambda: Share = 0.95  # lambda of the advantage estimate
    clip_eps: Annotated[float, Field(gt=0, lt=1)] = 0.1  # epsilon
    ratio_scope: RatioScope = "device"  # whose probability ratio is clipped
    shared_credit: Share = 0.3  # how much of what other devices gained a device's decision is credited with
    ent_coef: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.03
    num_envs: Count = 32  # in each training step
    update_epochs: Count = 4
    num_minibatches: Count = 4
    validation_episodes: Count = 4  # for each candidate for the front
    tolerance: Share = 0.01  # share of rounds in violation that a delivered policy may have
    reference_point: tuple[float, float, float] = (
        0.0,
        5.0,
        44.0,
    )  # of the hypervolume: accuracy, latency (s), energy (J)
    shield: bool | None = None  # on or off; as the scenario has it if not given

    def ppo_config(self, steps: int, concentration: float | None = None) -> PPOConfig:
        """For a learner that will make this many steps."""
        updates = steps * self.update_epochs * self.num_minibatches
        return PPOConfig(
            learning_rate=self.learning_rate,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            clip_eps=self.clip_eps,
            ent_coef=self.ent_coef,
            shared_credit=self.shared_credit,
            lr_decay=1 / updates if self.anneal_lr else 0.0,
            dirichlet_alpha=concentration,
            num_envs=self.num_envs,
            update_epochs=self.update_epochs,
            num_minibatches=self.num_minibatches,
            ratio_scope=self.ratio_scope,
        )


class PopulationConfig(AlgorithmConfig):
    """Of algorithms that train a policy for each of several preferences."""

    network: Literal["deep-set", "mlp"] = "deep-set"
    num_preferences: Annotated[int, Field(ge=1, le=1000)] = 10  # |Omega|
    min_weight: Annotated[float, Field(gt=0, lt=1 / 3)] = 0.05  # in any of them
    archive_size: Annotated[int, Field(ge=1, le=2000)] = 100  # most policies kept
    num_envs: Count = 4


class CMOPPOConfig(PopulationConfig):
    """Of C-MOPPO."""

    initialisation: Annotated[float, Field(gt=0, lt=1)] = 0.6  # share of the rounds
    num_extended: Annotated[int, Field(ge=1, le=1000)] = 4  # N_ext, policies selected in each iteration
    extension_steps: Count = 20  # K', training steps for each of them and each objective
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.9
    mu: Positive = 80.0
    barrier: Literal["step", "selected", "none"] = "step"  # the policy whose returns the barrier guards


class PGMORLConfig(PopulationConfig):
    """Of PG-MORL."""

    initialisation: Annotated[float, Field(gt=0, lt=1)] = 0.6  # share of the rounds, the warm-up
    num_tasks: Annotated[int, Field(ge=1, le=1000)] = 10  # policies trained in each generation
    generation_steps: Annotated[int, Field(ge=2, le=100_000)] = 10  # of training, for each of them
    num_weights: Annotated[int, Field(ge=1, le=1000)] = 36  # that each policy might be trained under
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0  # what sparsity counts, on rescaled objectives
    buffer_count: Annotated[int, Field(ge=1, le=1000)] = 50  # directions of objective space
    buffer_size: Annotated[int, Field(ge=1, le=100)] = 2  # policies to go on from in each of them
    radius: Positive = 0.1  # of the neighbourhood that a prediction rests on, on rescaled objectives
    num_neighbours: Annotated[int, Field(ge=1, le=10_000)] = 20  # records, to find which the neighbourhood widens
    history_size: Annotated[int, Field(ge=1, le=100_000)] = 500  # latest records of training to predict from


class EvolutionConfig(PopulationConfig):
    """Of the evolutionary algorithms. What they share with PPO is for the warm start."""

    warm_start: Annotated[float, Field(gt=0, lt=1)] = 0.6  # share of the rounds
    population_size: Annotated[int, Field(ge=3, le=2000)] = 36  # policies in a generation
    episodes_per_eval: Count = 1  # episodes for each of them
    variation: Literal["differential", "simulated-binary"] = "differential"
    mutation_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = (
        0.05  # deviation, as a share of a layer's weights
    )
    mutation_rate: Share = 0.1  # share of the weights that mutate


class MOEADConfig(EvolutionConfig):
    """Of MOEA/D."""

    num_neighbours: Annotated[int, Field(ge=2, le=2000)] = 12  # subproblems that mate with each other
    neighbour_prob: Share = 0.9  # probability that a mate is a neighbour, not anyone
    max_replaced: Annotated[int, Field(ge=1, le=2000)] = 2  # most neighbours that a child takes the place of


class ConditionedPPOConfig(AlgorithmConfig):
    """Of the conditioned policy."""

    dirichlet_alpha: Positive = 0.7  # of the Dirichlet distribution that preferences are drawn from
    width: Annotated[int, Field(ge=1, le=4096)] = 64  # of the network
    preference_divisions: Annotated[int, Field(ge=1, le=60)] = (
        19  # of the grid of preferences that are candidates for the front
    )
    validation_episodes: Count = 3  # of 210 candidates
    fleet_sizes: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] = ()  # to train on; the scenario's if not given
