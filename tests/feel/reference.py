"""A second, slow model of one round, written from the paper alone: plain floats, loops, and a kept history.

Nothing here is clever on purpose. Waiting times are the paper's double sum over the rounds since a device last served,
the age of data is a mean over the cohorts still held, and a device's accuracy looks up the round t-tilde it last
synchronised in. What the paper leaves open (an idle round, the cut at L_max, full queues and buffers) follows the
documented conventions of the model.
"""

import math
from dataclasses import dataclass, field
from typing import Any

SLACK = 1e-5
"""Relative slack of every comparison with a limit."""


def one_to_one(requests: float, _ratio: float) -> float:
    """F: each request becomes one training sample."""
    return requests


def many_to_one(requests: float, ratio: float) -> float:
    """F: several requests (``ratio`` of them) are merged into one training sample."""
    return requests / ratio


def one_to_many(requests: float, ratio: float) -> float:
    """F: one request becomes several (``ratio``) training samples."""
    return requests * ratio


CONVERSIONS = {"one-to-one": one_to_one, "many-to-one": many_to_one, "one-to-many": one_to_many}


def log_exponential(kappa: tuple[float, float, float], samples: float, age: float) -> float:
    """G, the paper's default: volume pays logarithmically, age costs exponentially."""
    return kappa[0] * math.log(1.0 + kappa[1] * samples) * math.exp(-kappa[2] * age)


def power_law_exponential(kappa: tuple[float, float, float], samples: float, age: float) -> float:
    """G with a power law of the volume."""
    return kappa[0] * samples ** kappa[1] * math.exp(-kappa[2] * age)


def log_rational(kappa: tuple[float, float, float], samples: float, age: float) -> float:
    """G with a rational decay of the age."""
    return kappa[0] * math.log(1.0 + kappa[1] * samples) / (1.0 + kappa[2] * age)


MAPPINGS = {
    "log-exponential": log_exponential,
    "power-law-exponential": power_law_exponential,
    "log-rational": log_rational,
}


def exceeds(value: float, limit: float) -> bool:
    return value > limit * (1.0 + SLACK)


def outside(choice: float) -> bool:
    """Whether a normalised power or frequency is none of [0, 1]: C7 and C8."""
    return math.isnan(choice) or choice < 0.0 or choice > 1.0


def bounded(choice: float) -> float:
    return 0.0 if math.isnan(choice) else min(max(choice, 0.0), 1.0)


@dataclass
class Device:
    """The constants of one device, in SI units (hertz, watts, cycles, joules), and how it converts requests."""

    train_cycles: float
    infer_cycles: float
    capacitance: float
    power_min: float
    power_max: float
    frequency_min: float
    frequency_max: float
    switch_energy: float
    request_rate: float
    conversion: str
    ratio: float
    queue_limit: float
    data_limit: float
    """What the buffer admits: D_max, or less where the scenario says so."""
    data_max: float
    """D_max of constraint C3; infinite where a full buffer is no violation."""


@dataclass
class Fleet:
    """The constants all devices share."""

    iterations: float
    update_bits: float
    bandwidth: float
    round_max: float
    round_floor: float
    idle_round: float
    mapping: str
    kappa: tuple[float, float, float]
    staleness: float
    penalty: tuple[float, float, float]
    pretrained: float


@dataclass
class Batch:
    """Requests admitted together: they wait for every round from ``first`` on, on top of ``waited``."""

    count: float
    first: int
    waited: float = 0.0


@dataclass
class Cohort:
    """Samples converted together: they had ``age`` when round ``first`` began, and age on from there."""

    count: float
    first: int
    age: float = 1.0


@dataclass
class History:
    """What is remembered of one device."""

    queue: list[Batch] = field(default_factory=list)
    buffer: list[Cohort] = field(default_factory=list)
    synchronised: int | None = None
    """t-tilde: the round this device was last aggregated in; None before its first time."""
    model_accuracy: float = 0.0
    """The accuracy of the model it holds if t-tilde is None."""
    model_age: float = 0.0
    """The age its model had when round ``model_first`` began, if t-tilde is None."""
    model_first: int = 0
    trained: bool = False
    """The mode of the round before (alpha of t-1)."""


class FleetReference:
    """N devices with their histories; :meth:`step` plays one round and says everything that happened in it."""

    def __init__(self, fleet: Fleet, devices: list[Device]) -> None:
        self.fleet = fleet
        self.devices = devices
        self.round = 0
        self.durations: list[float] = []
        self.server: list[float] = []
        self.histories = [History(model_accuracy=fleet.pretrained) for _ in devices]
        self.server_before = fleet.pretrained

    # ---- where the fleet stands at the beginning of a round

    def begin(self, arrived: list[float]) -> None:
        """Round 0: the queue holds what arrived in one idle round, all of which has waited that round."""
        for history, count, device in zip(self.histories, arrived, self.devices, strict=True):
            history.queue = [Batch(min(count, device.queue_limit), 0, self.fleet.idle_round)]

    def synchronise(self, states: list[dict[str, Any]], server: float) -> None:
        """Forget the histories and start from the given state: one batch, one cohort, one model per device."""
        for n, state in enumerate(states):
            self.histories[n] = History(
                queue=[Batch(state["queue"], self.round, state["waited"])],
                buffer=[Cohort(state["data"], self.round, state["data_age"])] if state["data"] > 0 else [],
                model_accuracy=state["model_accuracy"],
                model_age=state["model_age"],
                model_first=self.round,
                trained=state["trained"],
            )
        self.server_before = server
        self.server = []
        self.durations = [0.0] * self.round

    def queue(self, n: int) -> float:
        return math.fsum(batch.count for batch in self.histories[n].queue)

    def waiting(self, n: int) -> float:
        """Equation of L_wa: the double sum over arrivals and the rounds they have sat through, over Q."""
        queue = self.queue(n)
        if queue <= 0.0:
            return 0.0
        total = 0.0
        for batch in self.histories[n].queue:
            waited = batch.waited
            for later in range(batch.first, self.round):
                waited += self.durations[later]
            total += batch.count * waited
        return total / queue

    def data(self, n: int) -> float:
        return math.fsum(cohort.count for cohort in self.histories[n].buffer)

    def data_age(self, n: int) -> float:
        data = self.data(n)
        if data <= 0.0:
            return 1.0
        total = 0.0
        for cohort in self.histories[n].buffer:
            age = cohort.age
            for later in range(cohort.first, self.round):
                age += self.durations[later]
            total += cohort.count * age
        return total / data

    def model_age(self, n: int) -> float:
        """Delta: the time since the end of the round this device was last aggregated in."""
        history = self.histories[n]
        if history.synchronised is None:
            return history.model_age + math.fsum(self.durations[history.model_first : self.round])
        return math.fsum(self.durations[history.synchronised + 1 : self.round])

    def model_accuracy(self, n: int) -> float:
        """Acc_ser of t-tilde: what the device's model was worth when it was new."""
        history = self.histories[n]
        return history.model_accuracy if history.synchronised is None else self.server_after(history.synchronised)

    def accuracy(self, n: int) -> float:
        return math.exp(-self.fleet.staleness * self.model_age(n)) * self.model_accuracy(n)

    def server_after(self, past: int) -> float:
        return self.server[past - (self.round - len(self.server))]

    def server_accuracy(self) -> float:
        return self.server[-1] if self.server else self.server_before

    def state(self, n: int) -> dict[str, Any]:
        return {
            "queue": self.queue(n),
            "waited": self.waiting(n),
            "data": self.data(n),
            "data_age": self.data_age(n),
            "model_age": self.model_age(n),
            "model_accuracy": self.model_accuracy(n),
            "trained": self.histories[n].trained,
        }

    # ---- one round

    def step(
        self,
        told: list[bool],
        power: list[float],
        frequency: list[float],
        gains: list[float],
        arrivals: list[float] | None = None,
    ) -> dict[str, Any]:
        """Play one round. ``power`` and ``frequency`` are normalised to [0, 1], ``gains`` are SNR per watt.

        Without ``arrivals`` they are the paper's d = lambda L. Latencies are given for every device, as if it trained
        and as if it served; what counts is that of its mode.
        """
        fleet, devices = self.fleet, self.devices
        everyone = range(len(devices))
        bad_power = [outside(choice) for choice in power]
        bad_frequency = [outside(choice) for choice in frequency]
        power = [bounded(choice) for choice in power]
        frequency = [bounded(choice) for choice in frequency]
        watts = [devices[n].power_min + power[n] * (devices[n].power_max - devices[n].power_min) for n in everyone]
        hertz = [
            devices[n].frequency_min + frequency[n] * (devices[n].frequency_max - devices[n].frequency_min)
            for n in everyone
        ]
        queue = [self.queue(n) for n in everyone]
        data = [self.data(n) for n in everyone]
        waiting = [self.waiting(n) for n in everyone]
        accuracy = [self.accuracy(n) for n in everyone]

        train = [told[n] and data[n] > 0.0 for n in everyone]  # a device with nothing to learn from serves
        trainers = [n for n in everyone if train[n]]

        compute, upload, infer = [], [], []
        for n in everyone:
            device = devices[n]
            compute.append(fleet.iterations * device.train_cycles * data[n] / hertz[n])
            rate = fleet.bandwidth / max(len(trainers), 1) * math.log2(1.0 + watts[n] * gains[n])
            upload.append(fleet.update_bits / rate)
            infer.append(device.infer_cycles * queue[n] / hertz[n])

        slowest = max(compute[n] + upload[n] for n in trainers) if trainers else max(fleet.idle_round, *infer)
        wanted = max(slowest, fleet.round_floor)
        duration = min(wanted, fleet.round_max)
        finished = [train[n] and not exceeds(compute[n] + upload[n], fleet.round_max) for n in everyone]

        energy = []
        switch = []
        for n in everyone:
            device = devices[n]
            computing_power = device.capacitance * hertz[n] ** 3
            if finished[n]:
                spent = computing_power * compute[n] + watts[n] * upload[n]
            elif train[n]:
                computed = min(compute[n], duration)
                spent = computing_power * computed + watts[n] * (duration - computed)
            else:
                spent = computing_power * infer[n]
            switch.append(device.switch_energy if train[n] != self.histories[n].trained else 0.0)
            energy.append(spent + switch[n])

        aggregated = [n for n in everyone if finished[n]]
        if aggregated:
            volume = math.fsum(data[n] for n in aggregated)
            age = math.fsum(self.data_age(n) for n in aggregated) / len(aggregated)
            server = min(max(MAPPINGS[fleet.mapping](fleet.kappa, volume, age), 0.0), 1.0)
        else:
            server = self.server_accuracy()

        # The books of the round, with what did not fit.
        arrived = [devices[n].request_rate * duration for n in everyone] if arrivals is None else list(arrivals)
        served = [0.0 if train[n] else queue[n] for n in everyone]
        converted = [CONVERSIONS[devices[n].conversion](served[n], devices[n].ratio) for n in everyone]
        consumed = [data[n] if finished[n] else 0.0 for n in everyone]
        dropped = []
        discarded = []
        queue_wanted = []
        data_wanted = []
        for n in everyone:
            history, device = self.histories[n], devices[n]
            if not train[n]:
                history.queue = []
            before = math.fsum(batch.count for batch in history.queue)
            admitted = max(min(arrived[n], device.queue_limit - before), 0.0)
            dropped.append(arrived[n] - admitted)
            queue_wanted.append(before + arrived[n])
            history.queue.append(Batch(admitted, self.round))
            lost = 0.0
            if train[n]:
                lost = 0.0 if finished[n] else data[n]
                history.buffer = []
            if finished[n]:
                history.synchronised = self.round
            held = math.fsum(cohort.count for cohort in history.buffer)
            kept = max(min(converted[n], device.data_limit - held), 0.0)
            discarded.append(converted[n] - kept + lost)
            data_wanted.append(held + converted[n])
            if kept > 0.0:
                history.buffer.append(Cohort(kept, self.round + 1))  # age 1 when the next round begins
            history.trained = train[n]
        self.durations.append(duration)
        self.server.append(server)
        self.round += 1

        violations = [
            [
                exceeds(compute[n] + upload[n], fleet.round_max)
                if train[n]
                else not trainers and exceeds(infer[n], fleet.round_max)
                for n in everyone
            ],
            [exceeds(queue_wanted[n], devices[n].queue_limit) for n in everyone],
            [exceeds(data_wanted[n], devices[n].data_max) for n in everyone],
            [told[n] and not train[n] for n in everyone],
            [not train[n] and exceeds(infer[n], duration) for n in everyone],
            [False for _ in everyone],
            bad_power,
            bad_frequency,
        ]
        count = len(devices)
        objectives = (
            math.fsum(accuracy[n] for n in everyone if not train[n]) / count,
            -math.fsum(waiting[n] + infer[n] for n in everyone if not train[n]) / count,
            -math.fsum(energy) / count,
        )
        violated = any(any(row) for row in violations)
        return {
            "train": train,
            "finished": finished,
            "watts": watts,
            "hertz": hertz,
            "compute": compute,
            "upload": upload,
            "infer": infer,
            "wanted": wanted,
            "duration": duration,
            "waiting": waiting,
            "accuracy": accuracy,
            "energy": energy,
            "latency": [waiting[n] + infer[n] for n in everyone],
            "switch": switch,
            "server": server,
            "arrived": arrived,
            "served": served,
            "converted": converted,
            "consumed": consumed,
            "dropped": dropped,
            "discarded": discarded,
            "queue_wanted": queue_wanted,
            "data_wanted": data_wanted,
            "violations": violations,
            "objectives": objectives,
            "reward": tuple(fleet.penalty) if violated else objectives,
        }
