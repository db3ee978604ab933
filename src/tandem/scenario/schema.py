"""Fields of a scenario: the fleet, its workload, its channel, its limits, and how accuracy is modelled and rewarded.

A ``Scenario`` is validated and immutable. Every field is documented here; ``tandem scenario show`` prints the values,
and docs/system-model.md gives the reasons for the values of the presets.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, SerializeAsAny, model_validator

from tandem.errors import field_error
from tandem.scenario.base import ConfigModel, Name
from tandem.scenario.devices import Fleet
from tandem.scenario.plugins import (
    AccuracyMappingConfig,
    ArrivalsConfig,
    ConstantArrivalsConfig,
    FadingConfig,
    StaticFadingConfig,
    TaskConfig,
)
from tandem.scenario.units import (
    Bits,
    Count,
    Decay,
    Decibels,
    Hertz,
    NoiseDensity,
    PerSecond,
    Real,
    Seconds,
    SecondsOrZero,
    Spread,
    Whole,
)

MAX_ROUNDS = 1_000_000  # of an episode


class Workload(ConfigModel):
    """The requests that reach the fleet."""

    request_rate_per_s: PerSecond  # the mean of lambda_n over devices
    arrivals: Annotated[SerializeAsAny[ArrivalsConfig], BeforeValidator(ArrivalsConfig.parse)] = (
        ConstantArrivalsConfig()
    )


class Channel(ConfigModel):
    """The shared uplink."""

    bandwidth_hz: Hertz  # B, shared equally by the round's trainers
    noise_dbm_per_hz: NoiseDensity = -174.0
    noise_figure_db: Spread = 0.0
    loss_at_1km_db: Decibels = 128.1
    loss_exponent: Annotated[Real, Field(gt=0, le=10)] = 3.76
    shadowing_db: Spread = 0.0  # standard deviation, drawn once for each device
    fading: Annotated[SerializeAsAny[FadingConfig], BeforeValidator(FadingConfig.parse)] = StaticFadingConfig()


class Training(ConfigModel):
    """The work of one device in a training round."""

    iterations: Annotated[Whole, Field(ge=1, le=10_000)]  # U, full-batch gradient steps
    update_bits: Bits  # G


class Limits(ConfigModel):
    """The bounds of constraints C1 to C3, and the shortest round."""

    round_max_s: Seconds  # L_max
    round_floor_s: SecondsOrZero  # the scheduling slot: no round is shorter; 0 is the paper's
    idle_round_s: Seconds  # a round without trainers lasts this, or as long as its longest inference
    queue_max: Count  # Q_max
    data_max: Count  # D_max
    # Samples that do not fit into a buffer are lost, which violates C3. The shield prevents it, or, with "discard", it
    # limits a buffer to what the device can train on within a round and discards the rest without a violation.
    overflow: Literal["violation", "discard"] = "violation"

    @model_validator(mode="after")
    def _ordered(self) -> Limits:
        for name in ("round_floor_s", "idle_round_s"):
            if getattr(self, name) > self.round_max_s:
                given = f"is {getattr(self, name):g}, above round_max_s = {self.round_max_s:g}"
                raise field_error(name, said=f"{given}; lower it or raise that")
        return self


class Accuracy(ConfigModel):
    """The accuracy of a model, by the data it was trained on and its age."""

    mapping: Annotated[SerializeAsAny[AccuracyMappingConfig], BeforeValidator(AccuracyMappingConfig.parse)]  # G
    model_decay_per_s: Decay  # rho
    pretrained: Annotated[Real, Field(ge=0, le=1)]  # accuracy of the model each device starts with
    # With a task, real models are trained and their accuracy is measured; the mapping is the server's estimate.
    task: Annotated[SerializeAsAny[TaskConfig] | None, BeforeValidator(TaskConfig.parse_or_none)] = None


Penalty = Annotated[Real, Field(ge=-1e9, le=1e9)]


class Rewards(ConfigModel):
    """The reward of a round that violates a constraint: accuracy, -latency (s), -energy (J)."""

    penalty: tuple[Penalty, Penalty, Penalty] = (-0.1, -8.0, -50.0)


class Shield(ConfigModel):
    """The projection of actions onto the feasible ones, with the information of the edge server."""

    enabled: bool = True
    outage: Annotated[Real, Field(gt=0, lt=0.5)] = 1e-5  # probability of a worse channel or more arrivals than planned
    upload_share: Annotated[Real, Field(gt=0, lt=1)] = 0.5  # largest part of the longest round for uploads


class Scenario(ConfigModel):
    """A complete fleet-scheduling problem."""

    name: Name
    description: str = ""
    rounds: Annotated[Whole, Field(ge=1, le=MAX_ROUNDS)] = 100  # T, the length of an episode
    fleet: Fleet
    workload: Workload
    channel: Channel
    training: Training
    limits: Limits
    accuracy: Accuracy
    rewards: Rewards = Rewards()
    shield: Shield = Shield()
    observation: Literal["minimal", "full"] = "full"

    _source: str = PrivateAttr(default="")

    @property
    def source(self) -> str:
        """The file or preset that the scenario was read from, for messages."""
        return self._source

    def __eq__(self, other: object) -> bool:
        """Compare the fields, without the source of the scenarios."""
        return isinstance(other, Scenario) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash((self.name, self.rounds, self.fleet))
