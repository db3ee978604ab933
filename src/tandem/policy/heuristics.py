"""Heuristics: hand-written policies, the baseline that every learned policy must beat.

A heuristic is a small pytree of its parameters. It uses only the information of the edge server at the start of a
round. Parameters are leaves, so that a sweep over them is a ``vmap``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from tandem.feel.accuracy import device_accuracy
from tandem.feel.channel import uplink_rate
from tandem.feel.costs import compute_energy, compute_latency, inference_latency, upload_latency
from tandem.feel.environment import Environment
from tandem.feel.numerics import packed_uniforms
from tandem.feel.queues import converted_data, waiting_time
from tandem.feel.shield import top_k_mask
from tandem.feel.state import Action, FleetState
from tandem.feel.system import System
from tandem.feel.types import Array, PerDevice, RandomKey

Parameter = float | Array
FULL_BUFFER = 0.999  # share of the limit at which a buffer counts as full: sums of samples are rounded
# The reference point of the paper's hypervolume, which makes latency and energy comparable with accuracy.
REFERENCE_LATENCY_S = 5.0
REFERENCE_ENERGY_J = 44.0


class Heuristic(eqx.Module):
    """A policy with a few parameters. ``summary`` is its description on the command line."""

    summary: ClassVar[str]

    @abstractmethod
    def __call__(self, environment: Environment, state: FleetState, key: RandomKey) -> Action:
        """Return the action of every device."""


class RandomHeuristic(Heuristic):
    """Training with a fixed probability; power and frequency are uniform. Violates constraints without the shield."""

    summary: ClassVar[str] = "each device trains with a fixed probability; power and frequency are uniform"
    train_chance: Parameter = 0.5

    def __call__(self, environment: Environment, state: FleetState, key: RandomKey) -> Action:
        mode, power, frequency = packed_uniforms(key, environment.size, (12, 10, 10), state.queue.dtype)
        return Action(train=mode < self.train_chance, power=power, frequency=frequency)


class ServeUntilFull(Heuristic):
    """Serving until the buffer is full, then training: the fewest switches and the oldest models."""

    summary: ClassVar[str] = "a device serves until its buffer is full, then trains once"
    power: Parameter = 1.0
    frequency: Parameter = 1.0

    def __call__(self, environment: Environment, state: FleetState, key: RandomKey) -> Action:
        full = FULL_BUFFER * environment.system.worst_case.max_data
        return _same_for_all(state.data >= full, self.power, self.frequency)


class RoundRobin(Heuristic):
    """Training by the next ``trainers`` devices in each round, in turn, whatever their state."""

    summary: ClassVar[str] = "a fixed number of devices train each round, in turn"
    trainers: Parameter = 2.0
    power: Parameter = 0.5
    frequency: Parameter = 0.5

    def __call__(self, environment: Environment, state: FleetState, key: RandomKey) -> Action:
        size = environment.size
        first = jnp.mod(state.round * self.trainers, size)
        turns_away = jnp.mod(jnp.arange(size) - first, size)
        return _same_for_all(
            (turns_away < self.trainers) & environment.action_mask(state)[:, 1], self.power, self.frequency
        )


class Threshold(Heuristic):
    """Training as soon as the buffer holds a given share of the samples that a device can train on in one round."""

    summary: ClassVar[str] = "a device trains as soon as its buffer holds a share of what it can train on in one round"
    data_share: Parameter = 0.3
    power: Parameter = 0.5
    frequency: Parameter = 0.5

    def __call__(self, environment: Environment, state: FleetState, key: RandomKey) -> Action:
        enough = self.data_share * environment.system.worst_case.max_data
        return _same_for_all(state.data >= enough, self.power, self.frequency)


class Urgency(Heuristic):
    """Training by the ``trainers`` devices whose buffers are nearest to overflow, if they are filled to ``fill``.

    The fill is D + F(Q), the data after one more round of serving, as a share of what the device may hold: D_max, or
    what it can train on within a round beside the uploads of the others. Without a shield this rule keeps C1 to C5
    wherever ``trainers`` devices a round are enough.
    """

    summary: ClassVar[str] = "the devices whose buffers are nearest to overflow train, a few each round"
    trainers: Parameter = 2.0
    fill: Parameter = 0.5
    power: Parameter = 1.0
    frequency: Parameter = 1.0

    def __call__(self, environment: Environment, state: FleetState, key: RandomKey) -> Action:
        system = environment.system
        devices, worst_case = system.devices, system.worst_case
        left_s = jnp.maximum(system.round_max_s - self.trainers * worst_case.upload_s, 0.0)
        trainable = devices.frequency_max_hz * left_s / (system.iterations * devices.training_cycles_per_sample)
        limit = jnp.maximum(jnp.minimum(system.data_max, trainable), 1.0)
        fill = (state.data + converted_data(devices.samples_per_request, state.queue)) / limit
        urgent = (fill >= self.fill) & environment.action_mask(state)[:, 1]
        train = top_k_mask(urgent, fill, jnp.asarray(self.trainers).astype(jnp.int32))
        return _same_for_all(train, self.power, self.frequency)


class DriftPlusPenalty(Heuristic):
    """Lyapunov optimisation: in each round the action that least increases backlogs plus weighted cost.

    Backlogs are the request queue and the data buffer, relative to a device's capacities; drift is the change of half
    their squares. Costs are the objectives of the round, relative to the paper's reference point (1, 5 s, 44 J).
    Training changes the accuracy of later rounds, of which ``horizon`` are counted, from that of the present model to
    what the accuracy mapping gives for the device's data: with little data it lowers accuracy.
    """

    summary: ClassVar[str] = "Lyapunov optimisation: in each round the least growth of backlogs plus weighted cost"
    accuracy: Parameter = 1.0
    latency: Parameter = 1.0
    energy: Parameter = 1.0
    horizon: Parameter = 8.0
    backlog: Parameter = 0.5

    def __call__(self, environment: Environment, state: FleetState, key: RandomKey) -> Action:
        system = environment.system
        devices = system.devices
        # The price of a second and of a joule.
        second, joule = self.latency / REFERENCE_LATENCY_S, self.energy / REFERENCE_ENERGY_J

        # A clock f costs second * cycles / f + joule * e f^2 * cycles: least at f^3 = second / (2 e joule). The whole
        # fleet waits until training ends; only a device's own requests wait for its inference.
        server_hz = jnp.cbrt(second / (2 * devices.capacitance * jnp.maximum(joule, 1e-9)))
        server_hz = jnp.clip(server_hz, devices.frequency_min_hz, devices.frequency_max_hz)
        trainer_hz = jnp.clip(
            server_hz * jnp.cbrt(jnp.asarray(system.size, float)), devices.frequency_min_hz, devices.frequency_max_hz
        )
        power = self._cheapest_power(system, second * system.size, joule)
        power_w = devices.power_w(power)

        inference_s = inference_latency(devices.inference_cycles_per_request, state.queue, server_hz)
        compute_s = compute_latency(system.iterations, devices.training_cycles_per_sample, state.data, trainer_hz)
        trainers = jnp.clip(jnp.min(system.worst_case.max_trainers), 1, system.size)
        rate = uplink_rate(system.bandwidth_hz, trainers, power_w, state.last_gain)
        upload_s = upload_latency(system.update_bits, rate)
        # The whole fleet waits as long as training exceeds the minimum of a round; the trainers share that cost.
        delay_s = jnp.maximum(compute_s + upload_s - system.round_floor_s, 0.0) * system.size / trainers
        switching_j = devices.switch_energy_j * jnp.where(state.last_action.train, -1.0, 1.0)
        training_j = compute_energy(devices.capacitance, trainer_hz, compute_s) + power_w * upload_s + switching_j
        serving_j = compute_energy(devices.capacitance, server_hz, inference_s)

        current = device_accuracy(system.model_decay_per_s, state.model_age_s, state.model_accuracy)
        # A lower bound, G of the device's own data: others that train in the same round add to it.
        trained = jnp.clip(jax.vmap(system.accuracy_mapping)(state.data, state.data_age_s), 0.0, 1.0)
        gained = self.horizon * (trained - current)
        # Training avoids this round's latency, but its requests are only delayed: the next batch contains them and as
        # many new ones, so half of their waiting time remains in the mean.
        saved_s = (waiting_time(state.waited_s, state.queue) + inference_s) / 2
        serving_value = self.accuracy * current - second * saved_s - joule * serving_j
        training_value = self.accuracy * gained - second * delay_s - joule * training_j

        queue_fill = state.queue * jnp.reciprocal(system.worst_case.queue_limit)
        data_fill = state.data * jnp.reciprocal(system.worst_case.max_data)
        drift_of_training = queue_fill * queue_fill - data_fill * data_fill
        worthwhile = training_value - serving_value > self.backlog * drift_of_training
        train = worthwhile & environment.action_mask(state)[:, 1]
        frequency_hz = jnp.where(train, trainer_hz, server_hz)
        per_hz = jnp.reciprocal(jnp.maximum(devices.frequency_max_hz - devices.frequency_min_hz, 1.0))
        return Action(train=train, power=power, frequency=(frequency_hz - devices.frequency_min_hz) * per_hz)

    @staticmethod
    def _cheapest_power(system: System, second: Parameter, joule: Parameter) -> PerDevice:
        """Return the power, of nine levels, whose upload costs least in the worst channel that is planned for."""
        levels = jnp.linspace(0.0, 1.0, 9)

        def cost(level: Array) -> PerDevice:
            power_w = system.devices.power_w(level)
            rate = uplink_rate(system.bandwidth_hz, jnp.ones((), int), power_w, system.worst_case.worst_gain)
            return (second + joule * power_w) * upload_latency(system.update_bits, rate)

        return levels[jnp.argmin(jax.vmap(cost)(levels), axis=0)]


def _same_for_all(train: Array, power: Parameter, frequency: Parameter) -> Action:
    """Return an action with the same power and frequency for every device."""
    ones = jnp.ones(train.shape)
    return Action(train=train, power=ones * power, frequency=ones * frequency)


HEURISTICS: dict[str, type[Heuristic]] = {
    "random": RandomHeuristic,
    "serve-until-full": ServeUntilFull,
    "round-robin": RoundRobin,
    "threshold": Threshold,
    "urgency": Urgency,
    "drift-plus-penalty": DriftPlusPenalty,
}
