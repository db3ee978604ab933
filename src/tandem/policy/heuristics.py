"""Hand-written policies: what a practitioner would try first, and the floor every learned policy must beat.

A rule is a small pytree of its settings, called with the system, the state and a key; it uses only what the edge server
knows at the start of a round. Settings are leaves, so a sweep over them is a vmap.
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
from tandem.feel.numerics import packed_uniforms
from tandem.feel.queues import waiting_time
from tandem.feel.shield import action_mask
from tandem.feel.state import Action, FleetState
from tandem.feel.system import System
from tandem.feel.types import Array, PerDevice, RandomKey

Setting = float | Array


class Heuristic(eqx.Module):
    """A policy of few settings. ``summary`` is what the command line says of it."""

    summary: ClassVar[str]

    @abstractmethod
    def __call__(self, system: System, state: FleetState, key: RandomKey) -> Action:
        """Decide for every device."""


class RandomHeuristic(Heuristic):
    """Train with a fixed chance; power and frequency uniform. May break constraints where there is no shield."""

    summary: ClassVar[str] = "each device trains with a fixed chance, power and frequency uniform"
    train_chance: Setting = 0.5

    def __call__(self, system: System, state: FleetState, key: RandomKey) -> Action:
        mode, power, frequency = packed_uniforms(key, system.size, (12, 10, 10), state.queue.dtype)
        return Action(train=mode < self.train_chance, power=power, frequency=frequency)


class ServeUntilFull(Heuristic):
    """Serve until the buffer is full, then train: fewest switches, oldest models."""

    summary: ClassVar[str] = "a device serves until its buffer is full, then trains once"
    power: Setting = 1.0
    frequency: Setting = 1.0

    def __call__(self, system: System, state: FleetState, key: RandomKey) -> Action:
        return _alike(state.data >= 0.999 * system.data_limit, self.power, self.frequency)


class RoundRobin(Heuristic):
    """The next ``trainers`` devices train in each round, in turn, whatever their state."""

    summary: ClassVar[str] = "a fixed number of devices train each round, in turn"
    trainers: Setting = 2.0
    power: Setting = 0.5
    frequency: Setting = 0.5

    def __call__(self, system: System, state: FleetState, key: RandomKey) -> Action:
        first = jnp.mod(state.round * self.trainers, system.size)
        turns_away = jnp.mod(jnp.arange(system.size) - first, system.size)
        return _alike((turns_away < self.trainers) & action_mask(system, state), self.power, self.frequency)


class Threshold(Heuristic):
    """Train once the buffer holds a share of what a round can train on."""

    summary: ClassVar[str] = "a device trains once its buffer holds a share of what one round can train on"
    data_share: Setting = 0.3
    power: Setting = 0.5
    frequency: Setting = 0.5

    def __call__(self, system: System, state: FleetState, key: RandomKey) -> Action:
        return _alike(state.data >= self.data_share * system.data_limit, self.power, self.frequency)


class DriftPlusPenalty(Heuristic):
    """Lyapunov: each round take the action that least increases backlog plus weighted cost.

    Backlogs are the request queue and the data buffer, relative to what a device can hold; drift is the change of half
    their squares. Costs are the round's objectives, relative to the paper's reference box (1, 5 s, 44 J). What training
    gives back, accuracy, comes in later rounds, and counts for ``horizon`` of them.
    """

    summary: ClassVar[str] = "Lyapunov: least growth of backlogs plus weighted cost, round by round"
    accuracy: Setting = 1.0
    latency: Setting = 1.0
    energy: Setting = 1.0
    horizon: Setting = 8.0
    backlog: Setting = 0.5

    def __call__(self, system: System, state: FleetState, key: RandomKey) -> Action:
        devices = system.devices
        second, joule = self.latency / 5.0, self.energy / 44.0  # the price of a second and of a joule

        # A clock f costs second * cycles / f + joule * e f^2 * cycles: least at f^3 = second / (2 e joule). The length
        # of a training round is waited out by the whole fleet, an inference by its own requests.
        server_hz = jnp.cbrt(second / (2 * devices.capacitance * jnp.maximum(joule, 1e-9)))
        server_hz = jnp.clip(server_hz, devices.frequency_min_hz, devices.frequency_max_hz)
        trainer_hz = jnp.clip(
            server_hz * jnp.cbrt(jnp.asarray(system.size, float)), devices.frequency_min_hz, devices.frequency_max_hz
        )
        power = self._cheapest_power(system, second * system.size, joule)
        power_w = devices.power_w(power)

        inference_s = inference_latency(devices.inference_cycles_per_request, state.queue, server_hz)
        compute_s = compute_latency(system.iterations, devices.training_cycles_per_sample, state.data, trainer_hz)
        company = jnp.clip(jnp.min(system.worst_case.max_trainers), 1, system.size)
        rate = uplink_rate(system.bandwidth_hz, company, power_w, state.last_gain)
        upload_s = upload_latency(system.update_bits, rate)
        # What it makes the round longer than the slot, the whole fleet waits; the trainers share the blame.
        delay_s = jnp.maximum(compute_s + upload_s - system.round_floor_s, 0.0) * system.size / company
        switching_j = devices.switch_energy_j * jnp.where(state.last_action.train, -1.0, 1.0)
        training_j = compute_energy(devices.capacitance, trainer_hz, compute_s) + power_w * upload_s + switching_j
        serving_j = compute_energy(devices.capacitance, server_hz, inference_s)

        current = device_accuracy(system.model_decay_per_s, state.model_age_s, state.model_accuracy)
        regained = self.horizon * (1 - current)
        # Training instead spares this round's latency, but the requests are only put off: in the mean of the next
        # batch, joined by as many new ones, half of what they have waited shows after all.
        saved_s = (waiting_time(state.waited_s, state.queue) + inference_s) / 2
        serving_value = self.accuracy * current - second * saved_s - joule * serving_j
        training_value = self.accuracy * regained - second * delay_s - joule * training_j

        queue_fill = state.queue * jnp.reciprocal(system.worst_case.queue_limit)
        data_fill = state.data * jnp.reciprocal(system.data_limit)
        drift_of_training = queue_fill * queue_fill - data_fill * data_fill
        worthwhile = training_value - serving_value > self.backlog * drift_of_training
        train = worthwhile & action_mask(system, state)
        frequency_hz = jnp.where(train, trainer_hz, server_hz)
        per_hz = jnp.reciprocal(jnp.maximum(devices.frequency_max_hz - devices.frequency_min_hz, 1.0))
        return Action(train=train, power=power, frequency=(frequency_hz - devices.frequency_min_hz) * per_hz)

    @staticmethod
    def _cheapest_power(system: System, second: Setting, joule: Setting) -> PerDevice:
        """The power, of a few levels, whose upload costs least in the worst channel planned for."""
        levels = jnp.linspace(0.0, 1.0, 9)

        def cost(level: Array) -> PerDevice:
            power_w = system.devices.power_w(level)
            rate = uplink_rate(system.bandwidth_hz, jnp.ones((), int), power_w, system.worst_case.worst_gain)
            return (second + joule * power_w) * upload_latency(system.update_bits, rate)

        return levels[jnp.argmin(jax.vmap(cost)(levels), axis=0)]


def _alike(train: Array, power: Setting, frequency: Setting) -> Action:
    """The same power and frequency for every device."""
    ones = jnp.ones(train.shape)
    return Action(train=train, power=ones * power, frequency=ones * frequency)


HEURISTICS: dict[str, type[Heuristic]] = {
    "random": RandomHeuristic,
    "serve-until-full": ServeUntilFull,
    "round-robin": RoundRobin,
    "threshold": Threshold,
    "drift-plus-penalty": DriftPlusPenalty,
}
