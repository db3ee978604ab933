"""Learned policies in NumPy: observation, normalisation, networks and deterministic or sampled modes.

Each function is the version of the function of the same name in ``tandem.feel.observation``, ``tandem.policy.networks``
or ``tandem.policy.distributions``. Whatever depends only on the fleet and the preference is computed once: the part of
the first layer that belongs to the constants of the devices and to the preference.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from tandem.serving.fleet import Fleet
from tandem.serving.numpy_shield import (
    FIRST,
    Flags,
    FleetConstants,
    Mask,
    RequestedAction,
    Single,
    top_k_mask,
    uplink_room,
)
from tandem.serving.policy_file import OUTPUTS, USED_OUTPUTS, PolicyFile

# The columns of a report in the order of the network's features; ``waited_s`` and ``last_gain`` become ``waiting_s``
# and ``last_gain_db``.
COLUMNS = (
    *("last_train", "last_power_w", "last_frequency_hz", "queue", "data"),
    *("data_age_s", "model_age_s", "waited_s", "model_accuracy", "last_gain"),
)
POWER, FREQUENCY, QUEUE, DATA, WAITED, GAIN = 1, 2, 3, 4, 7, 9
TOLERANCE = 1e-3  # relative, of a reported value above its capacity: devices round
LONGEST_S = 1e9  # about thirty years; a longer duration or age is a mistake
FRESH_AGE_S = 1.0  # ``feel.queues.FRESH_AGE_S``
BLOCK = 4096  # devices whose hidden layer fits into the cache of a core
MAX_DEVIATION = np.float32(10.0)  # normalised inputs are clipped to this many standard deviations
_SIGNIFICAND = int(np.finfo(np.float32).nmant)
_LEAST_GAIN = np.float32(1e-30)
_HALF, _ONE, _ZERO = np.float32(0.5), np.float32(1), np.float32(0)
_STRETCHED = np.float32(0.6)  # (1 + 2 STRETCH) / 2 of ``policy.distributions``


class NumpyPolicy:
    """A network with its normalisation and the preference it follows, prepared for one fleet."""

    def __init__(self, policy_file: PolicyFile, network: int, preference: Single, fleet: Fleet) -> None:
        """Prepare the policy with index ``network`` of the file."""
        self.policy_file = policy_file
        self.network = network
        self.preference = np.asarray(preference, np.float32)
        self.fleet = fleet
        self.constants = FleetConstants(fleet)
        self.highest = highest_columns(fleet)[: len(policy_file.features)]
        self.highest_bits = self.highest.view(np.uint32)
        self.largest_fleet: int | None = policy_file.network["largest_fleet"]
        self.random_modes = bool(policy_file.network["random_modes"])
        self.samples_modes = policy_file.network["sampling"] == "sample-modes"
        self._mean, self._scale = _fold_normaliser(self.constants, *policy_file.normaliser(network, "devices"))
        self._fleet_mean, self._fleet_scale = (float(part[0]) for part in policy_file.normaliser(network, "fleet"))

    @abstractmethod
    def forward(self, devices: Single, fleet: np.float32) -> Single:
        """Apply the network to normalised features: [features, devices], and the feature of the fleet.

        Returns the logits of mode, power and frequency, [3, devices].
        """

    def normalise(self, observed: Single, last_duration_s: float) -> tuple[Single, np.float32]:
        """Normalise the observation of the devices (see ``observe``), in place, and the feature of the fleet."""
        observed -= self._mean
        observed *= self._scale
        np.maximum(observed, -MAX_DEVIATION, out=observed)
        np.minimum(observed, MAX_DEVIATION, out=observed)
        fleet = (last_duration_s - self._fleet_mean) * self._fleet_scale
        return observed, np.float32(min(max(fleet, -10.0), 10.0))

    def act(
        self, observed: Single, last_duration_s: float, data: Single, mask: Mask, uniform: Single | None = None
    ) -> RequestedAction:
        """Return the action that the policy asks the shield for.

        ``uniform`` are numbers in [0, 1) for a policy that samples its modes. ``observed`` is overwritten.
        """
        output = self.forward(*self.normalise(observed, last_duration_s))
        mode_logit, room = output[0], None
        if uniform is not None:
            probability = _HALF if self.random_modes else _HALF * (_ONE + np.tanh(_HALF * mode_logit))
            wished = uniform < probability
            train = mask.apply(wished)
        else:
            wished = self.constants.nothing if self.random_modes else mode_logit > 0
            train = mask.apply(wished)
            if self.ranks:
                train, room = _fit_uplink(self.constants, data, mode_logit, train, mask)
        power, frequency = _stretched_sigmoid(output[1:])
        power *= train  # a device that serves does not transmit
        return RequestedAction(wished, train, power, frequency, room)

    @property
    def ranks(self) -> bool:
        """Whether the policy itself limits the trainers: in a shielded fleet larger than any of its training."""
        return self.largest_fleet is not None and self.fleet.size > self.largest_fleet and self.fleet.system.shielded


class DeepSetPolicy(NumpyPolicy):
    """``policy.networks.DeepSetActorCritic``: one encoder for all devices, a pooled context, and one head."""

    def __init__(self, policy_file: PolicyFile, network: int, preference: Single, fleet: Fleet) -> None:
        """Compute the parts of the first layers that do not depend on the state of the fleet."""
        super().__init__(policy_file, network, preference, fleet)
        weights = policy_file.weights(network)
        features = len(policy_file.features)
        preference = self.preference if policy_file.network["conditioned"] else self.preference[:0]
        mean, scale = policy_file.normaliser(network, "constants")
        constants = np.clip((device_constants(fleet) - mean) * scale, -MAX_DEVIATION, MAX_DEVIATION)

        first = weights["encoder.layers.0.weight"].T
        fixed = np.concatenate([constants, np.broadcast_to(preference, (fleet.size, len(preference)))], axis=1)
        self._first = np.ascontiguousarray(first[:features])
        self._base = fixed @ first[features:] + weights["encoder.layers.0.bias"]
        self._second = _affine(weights, "encoder.layers.1")

        width = self._base.shape[1]
        context = weights["context.layers.0.weight"].T
        self._pooled = np.ascontiguousarray(context[: 2 * width + 1])
        self._context_base = preference @ context[2 * width + 1 :] + weights["context.layers.0.bias"]
        self._context = _affine(weights, "context.layers.1")
        head, self._head_bias = _affine(weights, "head.layers.0")
        self._own, self._shared = np.ascontiguousarray(head[:width]), np.ascontiguousarray(head[width:])
        last, bias = _affine(weights, "head.layers.1")
        used = list(USED_OUTPUTS)
        self._last, self._last_bias = np.ascontiguousarray(last[:, used]), bias[used]
        self._places = np.float32(2.0 ** (_SIGNIFICAND - (fleet.size - 1).bit_length()))
        self._total_of_one = self._places * np.float32(fleet.size)  # the total of codes whose mean is 1

    def forward(self, devices: Single, fleet: np.float32) -> Single:
        if self.fleet.size <= BLOCK:
            codes, own_total, own_highest = self._encode(devices, self._base)
            return self._decode(codes, self._contextualise(own_total, own_highest, fleet))
        # In blocks that fit into the cache of a core: this takes half the time for 100,000 devices.
        blocks = [slice(begin, begin + BLOCK) for begin in range(0, self.fleet.size, BLOCK)]
        parts = [self._encode(devices[:, block], self._base[block]) for block in blocks]
        total: Single = np.add.reduce([part[1] for part in parts])
        highest: Single = np.maximum.reduce([part[2] for part in parts])
        context = self._contextualise(total, highest, fleet)
        return np.concatenate([self._decode(part[0], context) for part in parts], axis=1)

    def _encode(self, devices: Single, base: Single) -> tuple[Single, Single, Single]:
        """Return the codes of devices, their sum, rounded as in ``summable`` and in units of it, and their maximum."""
        hidden: Single = devices.T @ self._first
        hidden += base
        np.tanh(hidden, out=hidden)
        codes: Single = hidden @ self._second[0]
        codes += self._second[1]
        np.tanh(codes, out=codes)
        # Whole numbers whose sum fits the significand: it is exact in any order, and in blocks.
        np.multiply(codes, self._places, out=hidden)
        np.rint(hidden, out=hidden)
        total: Single = np.add.reduce(hidden, axis=0)
        highest: Single = np.maximum.reduce(codes, axis=0)
        return codes, total, highest

    def _contextualise(self, total: Single, highest: Single, fleet: np.float32) -> Single:
        """Return the part of the head's first layer that the devices share."""
        pooled = np.concatenate([total / self._total_of_one, highest, [fleet]], dtype=np.float32)
        context = np.tanh(pooled @ self._pooled + self._context_base)
        context = np.tanh(context @ self._context[0] + self._context[1])
        shared: Single = context @ self._shared + self._head_bias
        return shared

    def _decode(self, codes: Single, shared: Single) -> Single:
        hidden: Single = codes @ self._own
        hidden += shared
        np.tanh(hidden, out=hidden)
        outputs: Single = (hidden @ self._last + self._last_bias).T
        return outputs


class MLPPolicy(NumpyPolicy):
    """``policy.networks.MLPActorCritic``: four hidden layers on the flat state, for one size of fleet."""

    def __init__(self, policy_file: PolicyFile, network: int, preference: Single, fleet: Fleet) -> None:
        """Read the layers."""
        super().__init__(policy_file, network, preference, fleet)
        weights = policy_file.weights(network)
        self._layers = [_affine(weights, f"actor.layers.{n}") for n in range(5)]

    def forward(self, devices: Single, fleet: np.float32) -> Single:
        values = np.append(devices, fleet)  # each feature over all devices, then the fleet's
        *hidden, (last, bias) = self._layers
        for weight, offset in hidden:
            values = np.tanh(values @ weight + offset)
        outputs: Single = (values @ last + bias).reshape(-1, OUTPUTS)
        return outputs.T[list(USED_OUTPUTS)]


def build_policy(policy_file: PolicyFile, network: int, preference: Single, fleet: Fleet) -> NumpyPolicy:
    """Build the policy of a network of the file for a fleet."""
    kind = DeepSetPolicy if policy_file.network["kind"] == "deep-set" else MLPPolicy
    return kind(policy_file, network, preference, fleet)


def highest_columns(fleet: Fleet) -> Single:
    """Return the highest value that a report may have in each column, [columns, devices]; the lowest is 0."""
    highest = np.empty((len(COLUMNS), fleet.size), np.float32)
    highest[0], highest[5:7], highest[8], highest[GAIN] = 1, LONGEST_S, 1, 1e30
    highest[POWER], highest[FREQUENCY] = fleet.devices.power_max_w, fleet.devices.frequency_max_hz
    highest[QUEUE], highest[DATA] = fleet.system.queue_max, fleet.system.data_max
    highest[WAITED] = LONGEST_S * fleet.system.queue_max
    highest[1:5] *= 1 + TOLERANCE
    return highest


def idle_columns(fleet: Fleet) -> Single:
    """Return the columns of devices that have served an idle round and have neither requests nor samples."""
    columns = np.zeros((len(COLUMNS), fleet.size), np.float32)
    columns[POWER], columns[FREQUENCY] = fleet.devices.power_min_w, fleet.devices.frequency_min_hz
    columns[5], columns[8] = FRESH_AGE_S, fleet.system.pretrained_accuracy
    columns[GAIN] = fleet.worst_case.worst_gain
    return columns


def observe(constants: FleetConstants, columns: Single) -> Single:
    """Return the observation of the devices, [features, devices], from the columns of a report.

    The waiting time becomes its mean, and the gain its logarithm. Power, frequency and gain are still in the units of
    the report: ``_fold_normaliser`` makes their conversion a part of the normalisation.
    """
    observed = columns.copy()
    choices = observed[POWER : FREQUENCY + 1]
    np.maximum(choices, constants.lowest_choices, out=choices)  # a device that did not transmit may report 0 W
    if len(columns) > GAIN:
        queue, waiting, gain = columns[QUEUE], observed[WAITED], observed[GAIN]
        waits = queue > 0
        np.divide(waiting, queue, out=waiting, where=waits)
        waiting *= waits
        np.maximum(gain, _LEAST_GAIN, out=gain)
        np.log10(gain, out=gain)
    return observed


def _fold_normaliser(constants: FleetConstants, mean: Single, scale: Single) -> tuple[Single, Single]:
    """Return mean and scale of the values of ``observe``, [features, devices], for the mean and scale of features.

    A feature is a linear function of the observed value: (power_w - power_min_w) / width, and 10 log10(gain).
    """
    means, scales = (np.repeat(part[:, None], constants.size, axis=1) for part in (mean, scale))
    widths = np.stack([constants.power_width, constants.frequency_width])
    for row, low, width in zip((POWER, FREQUENCY), constants.lowest_choices, widths, strict=True):
        # An empty range is replaced by a wide one, in which every value that may be reported is about 0.
        width = np.where(width > 0, width, 1e3 * np.maximum(low, _ONE))
        means[row], scales[row] = low + mean[row] * width, scale[row] / width
    if len(mean) > GAIN:
        means[GAIN], scales[GAIN] = mean[GAIN] / 10, scale[GAIN] * 10
    return means, scales


def device_constants(fleet: Fleet) -> Single:
    """Return the constants by which a shared network distinguishes devices, as logarithms, [devices, constants]."""
    devices, worst_case = fleet.devices, fleet.worst_case
    columns = (
        devices.training_cycles_per_sample,
        devices.inference_cycles_per_request,
        devices.frequency_min_hz,
        devices.frequency_max_hz,
        devices.capacitance,
        devices.switch_energy_j + np.float32(1e-3),
        devices.samples_per_request,
        worst_case.worst_gain * devices.power_max_w,
        worst_case.worst_arrivals + np.float32(1e-3),
    )
    logarithms: Single = np.log(np.stack(columns, axis=-1))
    return logarithms


def _fit_uplink(
    constants: FleetConstants, data: Single, mode_logit: Single, train: Flags, mask: Mask
) -> tuple[Flags, int]:
    """Keep only as many trainers as fit the uplink: those most likely to train. Returns also how many fit."""
    merit = np.maximum(mode_logit, _ZERO)
    if mask.may_serve is not None:
        merit = np.where(mask.may_serve, merit, FIRST)
    room = uplink_room(constants, data, train.nonzero()[0])
    return top_k_mask(constants, train, merit, room), room


def _stretched_sigmoid(logit: Single) -> Single:
    """Apply the sigmoid, stretched by 0.1 at either end and clipped to [0, 1]; sigmoid(x) = (1 + tanh(x / 2)) / 2."""
    stretched: Single = np.tanh(_HALF * logit)
    stretched *= _STRETCHED
    stretched += _HALF
    np.maximum(stretched, _ZERO, out=stretched)
    np.minimum(stretched, _ONE, out=stretched)
    return stretched


def _affine(weights: dict[str, Single], layer: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the weight of a layer as [inputs, outputs], and its bias."""
    return np.ascontiguousarray(weights[f"{layer}.weight"].T), weights[f"{layer}.bias"]
