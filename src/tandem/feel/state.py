"""The state of a fleet between two rounds, an action, and the outcome of a round."""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jaxtyping import Int

from tandem.feel.constraints import Violations
from tandem.feel.types import Array, DeviceFlags, Objectives, PerDevice, RandomKey, Scalar


class Action(eqx.Module):
    """One decision for each device: train (else serve), and power and frequency from 0 (lowest) to 1 (highest)."""

    train: DeviceFlags  # alpha
    power: PerDevice  # p, normalised
    frequency: PerDevice  # f, normalised


class FleetState(eqx.Module):
    """The fleet at the start of round t."""

    key: RandomKey  # the episode's randomness; round t uses fold_in(key, t)
    round: Int[Array, ""]  # t, from 0
    clock_s: Scalar  # time since the episode began
    queue: PerDevice  # Q, requests waiting
    waited_s: PerDevice  # Q L_wa, request-seconds they have waited
    data: PerDevice  # D, new training samples
    data_age_s: PerDevice  # Delta, their mean age
    model_age_s: PerDevice  # delta, time since the device last trained
    model_accuracy: PerDevice  # Acc_ser of the round in which it last trained
    last_action: Action  # a of the round before, as executed
    last_duration_s: Scalar  # L of the round before
    last_gain: PerDevice  # h / sigma^2 of the round before
    measured: Any = None  # models and samples, where accuracy is measured


class RoundOutcome(eqx.Module):
    """All quantities of a round, for traces, tests and analysis."""

    executed: Action  # the action after bounds, mask and shield
    frequency_hz: PerDevice
    power_w: PerDevice
    gain: PerDevice
    trained: DeviceFlags  # trainers whose update arrived in time
    duration_s: Scalar  # L
    compute_s: PerDevice  # L_cmp (as if training)
    upload_s: PerDevice  # L_up (as if training)
    inference_s: PerDevice  # L_in (as if serving)
    waiting_s: PerDevice  # L_wa
    latency_s: PerDevice  # L_tot = L_wa + L_in
    accuracy: PerDevice  # Acc_n, estimated by the mapping or measured on a task
    server_accuracy: Scalar  # Acc_ser of this round; meaningful if at least one device trained
    energy_j: PerDevice  # training or inference, and switching
    arrived: PerDevice  # d
    served: PerDevice
    dropped: PerDevice  # requests that did not fit in the queue
    converted: PerDevice  # F(Q)
    discarded: PerDevice  # samples that did not fit in the buffer, or whose update did not arrive in time
    violations: Violations
    objectives: Objectives  # (r1, r2, r3), with or without violations
    reward: Objectives  # the same, or the penalty
    estimated_accuracy: PerDevice | None = None  # the mapping's estimate, where ``accuracy`` is measured
