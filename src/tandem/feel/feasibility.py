"""Check that a policy can serve the fleet of a scenario; otherwise the scenario is rejected, with device and cause."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tandem.errors import InputError
from tandem.feel.shield_plan import SAFETY_MARGIN, ArrivalBounds, ChannelBounds, ShieldPlan
from tandem.scenario.device_table import Column, DeviceTable
from tandem.scenario.plugins import TraceArrivalsConfig, TraceFadingConfig
from tandem.scenario.schema import Scenario

Refusal = Callable[..., None]

_NOTHING = 1e-30  # stands for a capacity of 0 in a division
_ROUNDING = 1e-6  # of the planned length of a round


def check_feasible(
    scenario: Scenario,
    devices: DeviceTable,
    arrivals: ArrivalBounds,
    channel: ChannelBounds,
    plan: ShieldPlan,
) -> None:
    """Raise InputError if a device cannot be kept stable, and name the worst one."""
    limits = scenario.limits
    rate = arrivals.mean_rate()
    recorded = isinstance(scenario.workload.arrivals, TraceArrivalsConfig)
    fewer = "lower the rates in workload.arrivals.path" if recorded else "lower workload.request_rate_per_s"

    def refuse(load: Column, capacity: Column | float, reason: str, fix: str, *, surely: bool = False) -> None:
        """Raise InputError for the device with the highest load per capacity, if it is above 1 or ``surely`` is set."""
        capacities = np.broadcast_to(capacity, load.shape)
        over = load / np.maximum(capacities, _NOTHING)
        worst = int(np.argmax(over))
        if over[worst] <= 1 and not surely:
            return
        group = f"fleet.devices[{devices.groups[worst]}]"
        sentence = f"{reason}; {fix}".format(
            group=group,
            load=f"{load[worst]:.3g}",
            capacity=f"{capacities[worst]:.3g}",
            rate=f"{rate[worst]:.3g}",
            window=f"{1 / load[worst]:.0f}" if load[worst] else "",
            cycles_in=f"{devices.inference_cycles_per_request[worst] / 1e6:.3g}",
            cycles_tr=f"{devices.training_cycles_per_sample[worst] / 1e6:.3g}",
        )
        raise InputError(
            f"{scenario.source}: {group}: device {worst} ({devices.names[worst]}) cannot be served: {sentence}."
        )

    refuse(
        rate * devices.inference_cycles_per_request / 1e9,
        devices.frequency_max_hz / 1e9,
        "{rate} requests/s of {cycles_in} Mcycles need {load} GHz and it has {capacity} GHz",
        f"{fewer} or {{group}}.inference_cycles_per_request, or raise {{group}}.frequency_max_hz",
    )
    shortest = "limits.round_floor_s" if limits.round_floor_s else "limits.idle_round_s"
    refuse(
        rate * (limits.round_floor_s or limits.idle_round_s),
        limits.queue_max,
        "{load} requests arrive in the shortest round and its queue holds {capacity}",
        f"{fewer} or {shortest}, or raise limits.queue_max",
    )
    if scenario.shield.enabled:
        _check_shielded(scenario, devices, arrivals, plan, refuse, fewer)
    else:
        _check_unshielded(scenario, devices, channel, rate, refuse, fewer)


def _check_shielded(
    scenario: Scenario,
    devices: DeviceTable,
    arrivals: ArrivalBounds,
    plan: ShieldPlan,
    refuse: Refusal,
    fewer: str,
) -> None:
    limits, shield, training = scenario.limits, scenario.shield, scenario.training
    queue_limit = plan.device.queue_limit
    least_s = max(limits.round_floor_s, limits.idle_round_s)
    round_limit_s = plan.round_limit_s / (1 - SAFETY_MARGIN)
    if round_limit_s < least_s * (1 - _ROUNDING):
        refuse(
            arrivals.upper_quantile(least_s, shield.outage),
            queue_limit,
            f"up to {{load}} requests arrive in a round of {least_s:g} s and it is sure to hold and serve only "
            "{capacity} in the shortest",
            f"{fewer} or limits.idle_round_s, or raise limits.queue_max or {{group}}.frequency_max_hz",
            surely=True,
        )
    if np.any(plan.max_trainers < 1):
        refuse(
            _upload_s(scenario, devices, plan.device.worst_gain),
            shield.upload_share * round_limit_s,
            "its upload takes {load} s in a bad channel, even alone at full power, and {capacity} s of a round are "
            "kept for uploads",
            f"{_better_upload(scenario)}, raise shield.upload_share, or plan for a better channel with shield.outage",
            surely=True,
        )
    sample_s = training.iterations * devices.training_cycles_per_sample / devices.frequency_max_hz
    if np.any(sample_s > (1 - shield.upload_share) * round_limit_s):
        refuse(
            sample_s,
            (1 - shield.upload_share) * round_limit_s,
            f"training on one sample ({{cycles_tr}} Mcycles, {training.iterations} times) takes {{load}} s and "
            "{capacity} s of a round are kept for it",
            "lower training.iterations, {group}.training_cycles_per_sample or shield.upload_share, or raise "
            "{group}.frequency_max_hz or limits.round_max_s",
            surely=True,
        )
    if limits.overflow == "discard":
        refuse(
            arrivals.upper_quantile(least_s, shield.outage) + plan.arrivals,
            queue_limit,
            "it could never train, since {load} requests may be waiting after an idle and a training round and it is "
            "sure to hold and serve only {capacity} in the shortest",
            f"{fewer}, limits.idle_round_s or limits.round_max_s, or raise limits.round_floor_s, limits.queue_max or "
            "{group}.frequency_max_hz",
        )
    else:
        _check_timetable(scenario, devices, plan, refuse, fewer)


def _check_timetable(scenario: Scenario, devices: DeviceTable, plan: ShieldPlan, refuse: Refusal, fewer: str) -> None:
    """Reject a fleet whose devices cannot all train before their buffers overflow (C3)."""
    accept = "accept that samples are discarded (limits.overflow: discard)"
    if scenario.limits.round_floor_s == 0:
        raise InputError(
            f"{scenario.source}: limits.round_floor_s is 0, so a round may be shorter than an inference and the shield "
            f"cannot keep C3 and C5 together; set it to limits.idle_round_s, turn the shield off, or {accept}."
        )
    per_round = devices.samples_per_request * plan.arrivals
    refuse(
        2 * per_round,
        plan.max_data,
        f"up to {{load}} samples come from two rounds of {plan.round_limit_s:.3g} s and it may hold only {{capacity}}: "
        "limits.data_max, or what it can train on within a round",
        f"{fewer}, training.iterations or {{group}}.training_cycles_per_sample, raise limits.data_max or "
        f"{{group}}.frequency_max_hz, or {accept}",
    )
    if plan.timetable is None:
        demand, fitting = 1 / np.maximum(plan.windows, 1), np.min(plan.max_trainers)
        # The plan has the fewest places: with more of them computing has less time, and devices train more often.
        room = (
            f"at most {fitting:.0f} uploads fit"
            if np.sum(demand) > fitting
            else "so many leave too little time for computing"
        )
        refuse(
            demand,
            float(fitting),
            f"it must train in one of {{window}} rounds of {plan.round_limit_s:.3g} s, and all devices need "
            f"{np.sum(demand):.3g} trainers a round or more, while {room}",
            f"{fewer}, training.iterations or fleet.size, {_better_upload(scenario)}, or {accept}",
            surely=True,
        )


def _check_unshielded(
    scenario: Scenario, devices: DeviceTable, channel: ChannelBounds, rate: Column, refuse: Refusal, fewer: str
) -> None:
    training = scenario.training
    # Stable only if U chi lambda F <= f_max, even if the device trained all the time.
    samples_per_s = rate * devices.samples_per_request
    refuse(
        training.iterations * devices.training_cycles_per_sample * samples_per_s / 1e9,
        devices.frequency_max_hz / 1e9,
        "training on its {rate} requests/s takes {load} GHz and it has {capacity} GHz, so its data grow without bound",
        f"{fewer} or training.iterations, raise {{group}}.frequency_max_hz, or discard samples "
        "(shield.enabled: true, limits.overflow: discard)",
    )
    refuse(
        _upload_s(scenario, devices, channel.worst_gain(0.49)),
        scenario.limits.round_max_s,
        "its upload takes {load} s, even alone at full power, and a round lasts {capacity} s at most",
        f"{_better_upload(scenario)}, or raise limits.round_max_s",
    )


def _upload_s(scenario: Scenario, devices: DeviceTable, gain: Column) -> Column:
    """Compute how long each device's upload takes alone at full power."""
    bits_per_s = scenario.channel.bandwidth_hz * np.log1p(devices.power_max_w * gain) / math.log(2.0)
    return np.asarray(scenario.training.update_bits / np.maximum(bits_per_s, _NOTHING))


def _better_upload(scenario: Scenario) -> str:
    stronger = "raise channel.bandwidth_hz or {group}.power_max_w"
    if isinstance(scenario.channel.fading, TraceFadingConfig):
        return f"{stronger}, lower training.update_bits, record better gains in channel.fading.path"
    return f"{stronger}, lower training.update_bits or {{group}}.distance_m"
