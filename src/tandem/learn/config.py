"""What a user may set of an algorithm. The defaults are the preset ``default``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.learn.ppo.ppo import Ratio, Settings
from tandem.scenario.base import Part

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=100_000)]


class Options(Part):
    """Of every algorithm that learns by PPO."""

    rounds: Annotated[int, Field(ge=1, le=10**12)] = 1_000_000  # environment rounds in all, validation included
    learning_rate: Positive = 4e-3
    anneal: bool = True  # let the learning rate fall to a twentieth by the end of a stage
    discount: Annotated[float, Field(gt=0, lt=1)] = 0.99  # gamma
    trace: Share = 0.95  # lambda of the advantage estimate
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.1  # epsilon
    ratio: Ratio = "device"  # whose probability ratio is clipped
    credit: Share = 0.3  # how much of what other devices gained a device's decision is credited with
    entropy: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.03
    episodes: Count = 32  # in each training step
    epochs: Count = 4
    minibatches: Count = 4
    validation_episodes: Count = 4  # for each candidate for the front
    tolerance: Share = 0.01  # share of rounds in violation that a delivered policy may have
    reference: tuple[float, float, float] = (0.0, 5.0, 44.0)  # of the hypervolume: accuracy, latency (s), energy (J)
    shield: bool | None = None  # on or off; as the scenario has it if not given

    def settings(self, steps: int, concentration: float | None = None) -> Settings:
        """For a learner that will make this many steps."""
        updates = steps * self.epochs * self.minibatches
        return Settings(
            learning_rate=self.learning_rate,
            discount=self.discount,
            trace=self.trace,
            clip=self.clip,
            entropy=self.entropy,
            credit=self.credit,
            decay=1 / updates if self.anneal else 0.0,
            concentration=concentration,
            episodes=self.episodes,
            epochs=self.epochs,
            minibatches=self.minibatches,
            ratio=self.ratio,
        )


class PopulationOptions(Options):
    """Of algorithms that train a policy for each of several preferences."""

    network: Literal["fleet", "paper"] = "fleet"
    preferences: Annotated[int, Field(ge=1, le=1000)] = 10  # |Omega|
    lowest_weight: Annotated[float, Field(gt=0, lt=1 / 3)] = 0.05  # in any of them
    archive: Annotated[int, Field(ge=1, le=2000)] = 100  # most policies kept
    episodes: Count = 4


class ExtensionOptions(PopulationOptions):
    """Of C-MOPPO."""

    initialisation: Annotated[float, Field(gt=0, lt=1)] = 0.6  # share of the rounds
    extended: Annotated[int, Field(ge=1, le=1000)] = 4  # N_ext, policies selected in each iteration
    extension_steps: Count = 20  # K', training steps for each of them and each objective
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.9
    mu: Positive = 80.0
    barrier: Literal["step", "selected", "none"] = "step"  # the policy whose returns the barrier guards


class GuidedOptions(PopulationOptions):
    """Of PG-MORL."""

    initialisation: Annotated[float, Field(gt=0, lt=1)] = 0.6  # share of the rounds, the warm-up
    tasks: Annotated[int, Field(ge=1, le=1000)] = 10  # policies trained in each generation
    generation_steps: Annotated[int, Field(ge=2, le=100_000)] = 10  # of training, for each of them
    weights: Annotated[int, Field(ge=1, le=1000)] = 36  # that each policy might be trained under
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0  # what sparsity counts, on rescaled objectives
    buffer_count: Annotated[int, Field(ge=1, le=1000)] = 50  # directions of objective space
    buffer_size: Annotated[int, Field(ge=1, le=100)] = 2  # policies to go on from in each of them
    radius: Positive = 0.1  # of the neighbourhood that a prediction rests on, on rescaled objectives
    neighbours: Annotated[int, Field(ge=1, le=10_000)] = 20  # records, to find which the neighbourhood widens
    history: Annotated[int, Field(ge=1, le=100_000)] = 500  # latest records of training to predict from


class EvolutionOptions(PopulationOptions):
    """Of the evolutionary algorithms. What they share with PPO is for the warm start."""

    warm_start: Annotated[float, Field(gt=0, lt=1)] = 0.6  # share of the rounds
    population: Annotated[int, Field(ge=3, le=2000)] = 36  # policies in a generation
    judged_by: Count = 1  # episodes for each of them
    variation: Literal["differential", "simulated-binary"] = "differential"
    mutation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05  # deviation, as a share of a layer's weights
    mutated: Share = 0.1  # share of the weights that mutate


class DecompositionOptions(EvolutionOptions):
    """Of MOEA/D."""

    neighbours: Annotated[int, Field(ge=2, le=2000)] = 12  # subproblems that mate with each other
    nearby: Share = 0.9  # probability that a mate is a neighbour, not anyone
    replaced: Annotated[int, Field(ge=1, le=2000)] = 2  # most neighbours that a child takes the place of


class ConditionedOptions(Options):
    """Of the conditioned policy."""

    concentration: Positive = 0.7  # of the Dirichlet distribution that preferences are drawn from
    width: Annotated[int, Field(ge=1, le=4096)] = 64  # of the network
    divisions: Annotated[int, Field(ge=1, le=60)] = 19  # of the grid of preferences that are candidates for the front
    validation_episodes: Count = 3  # of 210 candidates
    fleet_sizes: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] = ()  # to train on; the scenario's if not given
