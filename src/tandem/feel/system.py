"""A scenario as arrays: all parameters of the dynamics, which can be traced, stacked and swept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from tandem.errors import InputError
from tandem.feel.accuracy import AccuracyMapping, build_accuracy_mapping
from tandem.feel.arrivals import ArrivalProcess, build_arrivals
from tandem.feel.channel import ChannelModel, build_channel
from tandem.feel.feasibility import check_feasible
from tandem.feel.measured_accuracy import MeasuredAccuracy
from tandem.feel.numerics import no_fma
from tandem.feel.shield_plan import plan_shield
from tandem.feel.types import Objectives, PerDevice, Scalar
from tandem.feel.worst_case import WorstCase, build_worst_case
from tandem.scenario.device_table import build_device_table
from tandem.scenario.schema import Scenario


class Devices(eqx.Module):
    """The constants of each device."""

    training_cycles_per_sample: PerDevice  # chi_tr
    inference_cycles_per_request: PerDevice  # chi_in
    frequency_min_hz: PerDevice
    frequency_max_hz: PerDevice
    power_min_w: PerDevice
    power_max_w: PerDevice
    capacitance: PerDevice  # e
    switch_energy_j: PerDevice  # E_sw
    samples_per_request: PerDevice  # F

    def frequency_hz(self, normalised: PerDevice) -> PerDevice:
        """Return the frequency of a normalised choice in [0, 1]."""
        return self.frequency_min_hz + no_fma(normalised * (self.frequency_max_hz - self.frequency_min_hz))

    def power_w(self, normalised: PerDevice) -> PerDevice:
        """Return the transmission power of a normalised choice in [0, 1]."""
        return self.power_min_w + no_fma(normalised * (self.power_max_w - self.power_min_w))


class System(eqx.Module):
    """A fleet-scheduling problem. Leaves may be swept by vmap; fields that determine the program are static."""

    devices: Devices
    arrivals: ArrivalProcess
    channel: ChannelModel
    accuracy_mapping: AccuracyMapping
    worst_case: WorstCase
    iterations: Scalar  # U
    update_bits: Scalar  # G
    bandwidth_hz: Scalar  # B
    round_max_s: Scalar  # L_max
    round_floor_s: Scalar
    idle_round_s: Scalar
    queue_max: Scalar  # Q_max
    data_max: Scalar  # D_max
    data_limit: PerDevice  # samples that a buffer admits: D_max, or less if the shield discards samples
    model_decay_per_s: Scalar  # rho
    pretrained_accuracy: Scalar
    penalty: Objectives
    size: int = eqx.field(static=True)  # N
    rounds: int = eqx.field(static=True)  # T
    shielded: bool = eqx.field(static=True)
    discards: bool = eqx.field(static=True)  # whether the shield discards samples instead of keeping C3
    observation: str = eqx.field(static=True)
    measured_accuracy: MeasuredAccuracy | None = (
        None  # measures accuracy with real models; None: the mapping estimates it
    )


MeasuredAccuracyBuilder = Callable[[Scenario, System], MeasuredAccuracy]
SystemBuilder = Callable[[Scenario], System]


def build_system(scenario: Scenario, measured_accuracy: MeasuredAccuracyBuilder | None = None) -> System:
    """Draw the fleet, derive the limits of the shield, and reject a scenario that no policy can serve.

    ``measured_accuracy`` builds the measured-accuracy model; without one the mapping estimates accuracy. A scenario
    with a task needs one: ``tandem.build_system`` passes the federated simulation of the task.
    """
    if scenario.accuracy.task is not None and measured_accuracy is None:
        raise InputError(
            f"accuracy.task is {scenario.accuracy.task.kind!r}, but this function got no model that measures accuracy; "
            "call tandem.build_system (or tandem.train, tandem.open_run), or remove the task."
        )
    table = build_device_table(scenario)
    arrivals = build_arrivals(scenario, table)
    channel = build_channel(scenario, table)
    plan = plan_shield(scenario, table, arrivals, channel)
    check_feasible(scenario, table, arrivals, channel, plan)
    discards = scenario.shield.enabled and scenario.limits.overflow == "discard"
    data_limit = plan.max_data if discards else np.full(len(table), scenario.limits.data_max)

    def array(value: Any) -> Any:
        return jnp.asarray(value, float)

    system = System(
        devices=Devices(
            training_cycles_per_sample=array(table.training_cycles_per_sample),
            inference_cycles_per_request=array(table.inference_cycles_per_request),
            frequency_min_hz=array(table.frequency_min_hz),
            frequency_max_hz=array(table.frequency_max_hz),
            power_min_w=array(table.power_min_w),
            power_max_w=array(table.power_max_w),
            capacitance=array(table.capacitance),
            switch_energy_j=array(table.switch_energy_j),
            samples_per_request=array(table.samples_per_request),
        ),
        arrivals=arrivals,
        channel=channel,
        accuracy_mapping=build_accuracy_mapping(scenario.accuracy.mapping),
        worst_case=build_worst_case(plan),
        iterations=array(scenario.training.iterations),
        update_bits=array(scenario.training.update_bits),
        bandwidth_hz=array(scenario.channel.bandwidth_hz),
        round_max_s=array(scenario.limits.round_max_s),
        round_floor_s=array(scenario.limits.round_floor_s),
        idle_round_s=array(scenario.limits.idle_round_s),
        queue_max=array(scenario.limits.queue_max),
        data_max=array(scenario.limits.data_max),
        data_limit=array(data_limit),
        model_decay_per_s=array(scenario.accuracy.model_decay_per_s),
        pretrained_accuracy=array(scenario.accuracy.pretrained),
        penalty=array(scenario.rewards.penalty),
        size=len(table),
        rounds=scenario.rounds,
        shielded=scenario.shield.enabled,
        discards=discards,
        observation=scenario.observation,
    )
    if measured_accuracy is None:
        return system
    return dataclasses.replace(system, measured_accuracy=measured_accuracy(scenario, system))
