"""Whether anybody could schedule this fleet: a scenario no policy can serve is refused, with device and cause."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tandem.errors import InputError
from tandem.feel.arrivals import ArrivalProcess
from tandem.feel.channel import ChannelModel
from tandem.feel.envelope import MARGIN, Envelope
from tandem.scenario.schema import Scenario
from tandem.scenario.table import Column, DeviceTable

Refusal = Callable[[Column, Column, str, str], None]


def check_servable(
    scenario: Scenario, devices: DeviceTable, arrivals: ArrivalProcess, channel: ChannelModel, envelope: Envelope
) -> None:
    """Raise InputError for the worst device that could not be kept stable."""
    limits = scenario.limits
    rate = arrivals.mean_rate()
    frequency = devices.frequency_max_hz

    def refuse(load: Column, capacity: Column, reason: str, fix: str) -> None:
        """Name the device whose load is furthest above its capacity; both may appear in the sentence."""
        over = np.asarray(load / np.maximum(capacity, 1e-300))
        worst = int(np.argmax(over))
        if over[worst] > 1:
            group = f"fleet.devices[{devices.groups[worst]}]"
            numbers = {"load": load[worst], "capacity": np.broadcast_to(capacity, load.shape)[worst]}
            sentence = f"{reason}; {fix}".format(
                rate=rate[worst],
                cycles_in=devices.inference_cycles_per_request[worst] / 1e6,
                cycles_tr=devices.training_cycles_per_sample[worst] / 1e6,
                frequency=frequency[worst] / 1e9,
                group=group,
                **numbers,
            )
            raise InputError(
                f"{scenario.source}: {group}: device {worst} ({devices.names[worst]}) cannot be served: {sentence}."
            )

    refuse(
        rate * devices.inference_cycles_per_request / 1e9,
        frequency / 1e9,
        "{rate:.3g} requests/s of {cycles_in:.3g} Mcycles need {load:.3g} GHz and it has {capacity:.3g} GHz",
        "lower workload.request_rate_per_s or raise {group}.frequency_max_hz",
    )
    shortest_s = max(limits.round_floor_s, 0.0) or limits.idle_round_s
    refuse(
        rate * shortest_s,
        np.full(len(devices), limits.queue_max),
        "{load:.3g} requests arrive in the shortest round and its queue holds {capacity:.3g}",
        "lower workload.request_rate_per_s or limits.round_floor_s, or raise limits.queue_max",
    )
    if not scenario.shield.enabled:
        _check_unshielded(scenario, devices, channel, rate, refuse)
        return
    refuse(
        np.full(len(devices), max(limits.round_floor_s, limits.idle_round_s)),
        np.full(len(devices), float(envelope.round_limit_s) / (1 - MARGIN)),
        "a round lasts at least {load:.3g} s, but some queue takes the arrivals of {capacity:.3g} s only",
        "lower workload.request_rate_per_s or limits.idle_round_s, or raise limits.queue_max or frequency_max_hz",
    )
    refuse(
        np.full(len(devices), 1.0),
        np.asarray(envelope.most_trainers),
        "its upload does not fit into the part of a round kept for uploads even alone at full power in a bad channel",
        "raise channel.bandwidth_hz or {group}.power_max_w, lower training.update_bits or {group}.distance_m, "
        "or plan for a better channel with shield.outage",
    )
    refuse(
        np.full(len(devices), 1.0),
        np.asarray(envelope.trainable_data),
        "it can train on {capacity:.3g} samples within a round, less than one ({cycles_tr:.3g} Mcycles each)",
        "lower training.iterations or {group}.training_cycles_per_sample, or raise {group}.frequency_max_hz",
    )
    idle_arrivals = arrivals.most(limits.idle_round_s, scenario.shield.outage)
    refuse(
        idle_arrivals + np.asarray(envelope.worst_arrivals),
        np.asarray(envelope.queue_limit),
        "it could never train, since {load:.3g} requests may be waiting after an idle and a training round and it can "
        "serve {capacity:.3g} in the shortest",
        "lower workload.request_rate_per_s or limits.round_max_s, or raise limits.round_floor_s, limits.queue_max or "
        "{group}.frequency_max_hz",
    )


def _check_unshielded(
    scenario: Scenario, devices: DeviceTable, channel: ChannelModel, rate: Column, refuse: Refusal
) -> None:
    training = scenario.training
    # Stable only if U chi lambda F <= f_max, even if the device trained in every second instant.
    samples_per_s = rate * devices.samples_per_request
    refuse(
        training.iterations * devices.training_cycles_per_sample * samples_per_s / 1e9,
        devices.frequency_max_hz / 1e9,
        "training on its {rate:.3g} requests/s takes {load:.3g} GHz and it has {capacity:.3g} GHz, so its data grow "
        "without bound",
        "lower workload.request_rate_per_s or training.iterations, raise {group}.frequency_max_hz, or let the shield "
        "discard what it cannot train on (shield.enabled: true)",
    )
    bits_per_s = scenario.channel.bandwidth_hz * np.log2(1 + devices.power_max_w * channel.worst_gain(0.49))
    refuse(
        training.update_bits / bits_per_s,
        np.full(len(devices), scenario.limits.round_max_s),
        "its upload takes {load:.3g} s even alone at full power, and a round lasts {capacity:.3g} s at most",
        "raise channel.bandwidth_hz or {group}.power_max_w, or lower training.update_bits or {group}.distance_m",
    )
