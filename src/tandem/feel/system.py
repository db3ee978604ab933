"""A scenario as arrays: everything the dynamics need, ready to be traced, stacked and swept."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from tandem.feel.accuracy import Mapping, build_mapping
from tandem.feel.arrivals import ArrivalProcess, build_arrivals
from tandem.feel.channel import ChannelModel, build_channel
from tandem.feel.feasibility import check_servable
from tandem.feel.measured_accuracy import GroundTruth, build_truth
from tandem.feel.numerics import rounded
from tandem.feel.types import Objectives, PerDevice, Scalar
from tandem.feel.worst_case import Envelope, build_envelope
from tandem.scenario.device_table import device_table
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
        """The clock a choice in [0, 1] stands for."""
        return self.frequency_min_hz + rounded(normalised * (self.frequency_max_hz - self.frequency_min_hz))

    def power_w(self, normalised: PerDevice) -> PerDevice:
        """The transmission power a choice in [0, 1] stands for."""
        return self.power_min_w + rounded(normalised * (self.power_max_w - self.power_min_w))


class System(eqx.Module):
    """A fleet-scheduling problem. Leaves may be swept by vmap; what shapes the program is static."""

    devices: Devices
    arrivals: ArrivalProcess
    channel: ChannelModel
    mapping: Mapping
    envelope: Envelope
    iterations: Scalar  # U
    update_bits: Scalar  # G
    bandwidth_hz: Scalar  # B
    round_max_s: Scalar  # L_max
    round_floor_s: Scalar
    idle_round_s: Scalar
    queue_max: Scalar  # Q_max
    data_max: Scalar  # D_max
    data_limit: PerDevice  # what a buffer admits: D_max, or less under the shield
    model_decay_per_s: Scalar  # rho
    pretrained_accuracy: Scalar
    penalty: Objectives
    size: int = eqx.field(static=True)  # N
    rounds: int = eqx.field(static=True)  # T
    shielded: bool = eqx.field(static=True)
    observation: str = eqx.field(static=True)
    truth: GroundTruth | None = None  # measures accuracy, where the mapping is not to be believed


def build_system(scenario: Scenario) -> System:
    """Draw the fleet, derive what the shield needs, and refuse a scenario that no policy can serve."""
    table = device_table(scenario)
    arrivals = build_arrivals(scenario, table)
    channel = build_channel(scenario, table)
    envelope = build_envelope(scenario, table, arrivals, channel)
    check_servable(scenario, table, arrivals, channel, envelope)
    # Under the shield a buffer admits only what the device can train on within a round (its first rule).
    most_data = np.asarray(envelope.trainable_data) if scenario.shield.enabled else np.inf
    data_limit = np.broadcast_to(np.minimum(scenario.limits.data_max, most_data), len(table))

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
        mapping=build_mapping(scenario.accuracy.mapping),
        envelope=envelope,
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
        observation=scenario.observation,
    )
    return dataclasses.replace(system, truth=build_truth(scenario, system))
