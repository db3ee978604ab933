"""The shield: no constraint is violated under it, it changes no more than it must, and no state is a dead end."""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from marks import slow_after
from tandem.errors import InputError
from tandem.feel import Action, FleetState, RoundOutcome, System, action_mask, build_system, reset, serve_all, step
from tandem.feel.channel import ChannelModel, StaticChannel
from tandem.feel.shield import project, top_k_mask
from tandem.scenario import load_scenario

ROUNDS = 100
RANDOM_SIZE = 5


class NoWorse(ChannelModel):
    """A channel that keeps what the shield was promised: never below the gain planned for."""

    inner: ChannelModel
    least: jax.Array

    def gain(self, clock_s: Any, key: Any) -> Any:
        return jnp.maximum(self.inner.gain(clock_s, key), self.least)

    def worst_gain(self, outage: float) -> Any:
        return np.asarray(self.least, np.float64)


def no_worse(system: System) -> System:
    return eqx.tree_at(lambda s: s.channel, system, NoWorse(system.channel, system.worst_case.worst_gain))


def at_worst(system: System) -> System:
    """The same system in the worst channel planned for, in every round."""
    return eqx.tree_at(lambda s: s.channel, system, StaticChannel(system.worst_case.worst_gain))


# Devices that cannot train on all their samples, so that the shield discards some.
DISCARDING = {
    "limits.overflow": "discard",
    "limits.data_max": 200,
    "training.iterations": 3,
    "fleet.defaults.distance_m": {"uniform": [600, 1000]},
}


@cache
def discarding_fleet(size: int) -> System:
    return build_system(load_scenario("paper", {**DISCARDING, "fleet.size": size}))


# Devices that can train before their buffers overflow, where no sample is discarded (C3).
KEEPING = {
    "limits.overflow": "violation",
    "limits.data_max": 400,
    "training.iterations": 1,
    "fleet.defaults.distance_m": {"uniform": [400, 800]},
}


@cache
def keeping_fleet(size: int, rate: float = 6.0) -> System:
    """The paper's fleet with C3; beyond 20 devices updates are smaller, so that the uplink has room for all."""
    paper = load_scenario("paper", KEEPING)
    update_bits = paper.training.update_bits * min(1.0, 20 / size)
    changes = {"fleet.size": size, "workload.request_rate_per_s": rate, "training.update_bits": update_bits}
    return build_system(load_scenario("paper", {**KEEPING, **changes}))


# ---- what a scheduler may ask for, from the reasonable to the malicious


def random_choice(system: System, key: jax.Array, t: jax.Array) -> Action:
    mode_key, power_key, frequency_key, eager_key = jax.random.split(key, 4)
    shape = system.devices.power_max_w.shape
    return Action(
        train=jax.random.uniform(mode_key, shape) < jax.random.uniform(eager_key),
        power=jax.random.uniform(power_key, shape),
        frequency=jax.random.uniform(frequency_key, shape),
    )


def constant_choice(mode: Callable[[Any], Any], power: float, frequency: float) -> Callable[..., Action]:
    def choose(system: System, key: jax.Array, t: jax.Array) -> Action:
        device = jnp.arange(system.size)
        ones = jnp.ones_like(system.devices.power_max_w)
        return Action(
            train=jnp.broadcast_to(mode((t, device)), device.shape), power=power * ones, frequency=frequency * ones
        )

    return choose


CHOICES: dict[str, Callable[..., Action]] = {
    "random": random_choice,
    "everybody trains, weakly": constant_choice(lambda at: at[0] >= 0, 0.0, 0.0),
    "everybody trains, strongly": constant_choice(lambda at: at[0] >= 0, 1.0, 1.0),
    "everybody alternates": constant_choice(lambda at: at[0] % 2 == 1, 0.0, 0.0),
    "half and half": constant_choice(lambda at: (at[0] + at[1]) % 2 == 0, 0.0, 0.0),
    "serve nine rounds, then all train": constant_choice(lambda at: at[0] % 10 == 9, 0.0, 0.0),
    "all but the first train": constant_choice(lambda at: at[1] > 0, 0.0, 0.0),
    "nobody trains": constant_choice(lambda at: at[0] < 0, 0.0, 0.0),
}


@eqx.filter_jit
def rollouts(system: System, seeds: jax.Array) -> dict[str, tuple[FleetState, RoundOutcome]]:
    """For each way to choose, episodes from each seed: states before each round, and outcomes."""

    def episode(choose: Callable[..., Action], seed: jax.Array) -> tuple[FleetState, RoundOutcome]:
        key, start_key = jax.random.split(jax.random.key(seed))

        def body(state: FleetState, t: jax.Array) -> Any:
            after, outcome = step(system, state, choose(system, jax.random.fold_in(key, t), t))
            return after, (state, outcome)

        return jax.lax.scan(body, reset(system, start_key), jnp.arange(ROUNDS))[1]

    def any_choice(which: jax.Array, seed: jax.Array) -> tuple[FleetState, RoundOutcome]:
        def choose(system: System, key: jax.Array, t: jax.Array) -> Action:
            return jax.lax.switch(which, list(CHOICES.values()), system, key, t)

        return episode(choose, seed)

    grid = jax.vmap(jax.vmap(any_choice, in_axes=(None, 0)), in_axes=(0, None))
    return grid(jnp.arange(len(CHOICES)), seeds)


def assert_nothing_broken(outcomes: RoundOutcome) -> None:
    for n in range(1, 9):
        flags = np.asarray(getattr(outcomes.violations, f"c{n}"))
        for name, of_choice in zip(CHOICES, flags, strict=True):
            places = np.argwhere(of_choice)
            assert len(places) == 0, f"C{n}, {name}: (episode, round, device) {places[:3].tolist()} and more"


@pytest.mark.parametrize("size", slow_after(1, [10, 30, 1, 5]))
@pytest.mark.parametrize("channel", [no_worse, at_worst])
def test_nothing_is_ever_broken(size: int, channel: Callable[[System], System]) -> None:
    _, outcomes = rollouts(channel(discarding_fleet(size)), jnp.arange(4))
    assert_nothing_broken(outcomes)
    trained = np.asarray(outcomes.trained)
    assert np.array_equal(trained, np.asarray(outcomes.executed.train)), "a trainer was too late"
    for name, of_choice in zip(CHOICES, trained, strict=True):
        assert np.any(of_choice) == (name != "nobody trains" and (size, name) != (1, "all but the first train")), name


FLEETS = [(30, 6.0), (10, 10.0), (1, 6.0), (2, 6.0), (5, 6.0), (10, 2.0), (20, 6.0), (200, 6.0)]  # size, rate


@pytest.mark.parametrize("channel", [no_worse, at_worst])
@pytest.mark.parametrize("fleet", slow_after(1, FLEETS), ids=str)
def test_no_constraint_is_violated_and_no_sample_discarded(
    fleet: tuple[int, float], channel: Callable[[System], System]
) -> None:
    system = channel(keeping_fleet(*fleet))
    states, outcomes = rollouts(system, jnp.arange(2))
    assert_nothing_broken(outcomes)
    assert np.array_equal(outcomes.trained, outcomes.executed.train), "a trainer was too late"
    assert np.all(np.asarray(outcomes.discarded) == 0)
    assert np.all(np.asarray(states.data) <= np.asarray(system.worst_case.max_data) * (1 + 1e-5))
    trainers = dict(zip(CHOICES, np.asarray(outcomes.trained).mean(axis=(1, 2)).sum(axis=1), strict=True))
    assert trainers["nobody trains"] > 0  # C3 is what makes devices train
    if fleet[0] > 1:
        assert trainers["everybody trains, strongly"] > trainers["nobody trains"] + 0.1


@st.composite
def keeping_scenarios(draw: Callable[..., Any]) -> dict[str, Any]:
    """Fleets with different devices, whose buffers overflow after a few rounds to many."""
    fields = draw(shielded_scenarios())
    fields["limits.round_floor_s"] = draw(st.floats(0.5, 2.5))
    fields["limits.queue_max"] *= 3
    fields["fleet.defaults.inference_cycles_per_request"] = {"uniform": [1e4, 1e5]}
    fields["fleet.defaults.training_cycles_per_sample"] = draw(uniform(1e5, 40e6))
    return fields | {"limits.overflow": "violation", "limits.data_max": draw(st.floats(50, 2000))}


def uniform(low: float, high: float) -> st.SearchStrategy[dict[str, list[float]]]:
    bound = st.floats(low, high)
    return st.tuples(bound, bound).map(lambda pair: {"uniform": [min(pair), max(pair)]})


@st.composite
def shielded_scenarios(draw: Callable[..., Any]) -> dict[str, Any]:
    """Fleets of every temper; slots from none to longer than an idle round.

    Queues and clocks are drawn by how tight they are: by how much they exceed the least that can be served.
    """
    conversion = st.sampled_from(["one-to-one", {"many-to-one": 3}, {"one-to-many": 4}])
    tightness = st.sampled_from([1.02, 1.1, 1.5, 5.0])
    rate, clock_hz = draw(st.floats(0.05, 10.0)), draw(st.floats(1.5e9, 4e9))
    round_max_s, idle_s = draw(st.floats(3.0, 10.0)), draw(st.floats(0.2, 3.0))
    floor_s = draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 3.0]))
    queued = 1.1 * rate * (max(idle_s, floor_s) + round_max_s)  # what may wait after an idle and a training round
    most_cycles = min(clock_hz * (floor_s or idle_s) / queued / draw(tightness), 1e12)
    return {
        "fleet.size": RANDOM_SIZE,
        "fleet.seed": draw(st.integers(0, 2**32 - 1)),
        "fleet.devices": [{"conversion": draw(conversion)} for _ in range(3)],
        "fleet.defaults.training_cycles_per_sample": draw(uniform(1e6, 200e6)),
        "fleet.defaults.inference_cycles_per_request": {"uniform": [0.3 * most_cycles, most_cycles]},
        "fleet.defaults.frequency_min_hz": draw(uniform(0.1e9, 1.5e9)),
        "fleet.defaults.frequency_max_hz": clock_hz,
        "fleet.defaults.power_min_w": draw(uniform(0.001, 0.2)),
        "fleet.defaults.power_max_w": draw(uniform(0.2, 2.0)),
        "fleet.defaults.rate_factor": {"uniform": [0.5, 1.0]},
        "fleet.defaults.distance_m": draw(uniform(200.0, 1000.0)),
        "workload.request_rate_per_s": rate,
        "channel.bandwidth_hz": draw(st.floats(0.5e6, 10e6)),
        "channel.fading": {"kind": "rician", "k_db": draw(st.floats(6, 15))},
        "training.iterations": draw(st.integers(1, 5)),
        "training.update_bits": draw(st.floats(1e5, 2e6)),
        "limits.round_max_s": round_max_s,
        "limits.round_floor_s": floor_s,
        "limits.idle_round_s": idle_s,
        "limits.queue_max": max(queued * draw(tightness), 1e-3),
        "limits.data_max": draw(st.floats(2, 400)),
        "limits.overflow": "discard",
        "shield.upload_share": draw(st.floats(0.2, 0.8)),
    }


def exploring(examples: int) -> Callable[[Any], Any]:
    """Always the same examples, and no shrinking: a failure is reported at once, as it was found."""
    return settings(
        deadline=None,
        max_examples=examples,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


def built(fields: dict[str, Any]) -> System:
    try:
        return build_system(load_scenario("paper", fields))
    except InputError:
        assume(False)
        raise


@exploring(40)
@given(fields=shielded_scenarios(), seed=st.integers(0, 2**31 - 1))
def test_nothing_is_ever_broken_in_any_scenario(fields: dict[str, Any], seed: int) -> None:
    _, outcomes = rollouts(at_worst(built(fields)), jnp.asarray([seed]))
    assert_nothing_broken(outcomes)
    assert np.array_equal(outcomes.trained, outcomes.executed.train)


@exploring(25)
@given(fields=keeping_scenarios(), seed=st.integers(0, 2**31 - 1))
def test_no_sample_is_discarded_in_any_scenario(fields: dict[str, Any], seed: int) -> None:
    system = at_worst(built(fields))
    _, outcomes = rollouts(system, jnp.asarray([seed]))
    assert_nothing_broken(outcomes)
    assert np.array_equal(outcomes.trained, outcomes.executed.train)
    assert np.all(np.asarray(outcomes.discarded) == 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"fleet.size": 60},
            r"it must train in one of \d+ rounds of 5 s, and all devices need [\d.]+ trainers a round",
        ),
        (
            {"training.iterations": 3},
            r"2\.\d+ trainers a round or more, while so many leave too little time for computing",
        ),
        ({"training.iterations": 6}, r"up to \d+ samples come from two rounds"),
        ({"limits.data_max": 30}, r"it may hold only 30: limits.data_max, or"),
        ({"limits.round_floor_s": 0}, r"limits.round_floor_s is 0"),
    ],
)
def test_a_fleet_that_cannot_train_in_time_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refusal:
        build_system(load_scenario("paper", {**KEEPING, **changes}))
    assert "limits.overflow: discard" in str(refusal.value)
    build_system(load_scenario("paper", {**KEEPING, **changes, "limits.overflow": "discard"}))


def test_a_device_is_made_to_train_only_at_its_places() -> None:
    """A scheduler that never trains: whoever trains has a place in that round, and could not have waited."""
    system = at_worst(keeping_fleet(10))
    states, outcomes = rollouts(system, jnp.arange(1))
    never = list(CHOICES).index("nobody trains")
    trained, rounds = np.asarray(outcomes.trained)[never, 0], np.arange(ROUNDS)[:, None]
    worst_case = system.worst_case
    place = rounds % np.asarray(worst_case.period) == np.asarray(worst_case.offset)
    assert np.any(trained)
    assert not np.any(trained & ~place)
    assert np.all(trained.sum(axis=1) <= int(worst_case.reserved))
    samples = np.asarray(system.devices.samples_per_request)
    waiting = (np.asarray(worst_case.period) - 1) * np.asarray(worst_case.worst_arrivals)
    later = np.asarray(states.data)[never, 0] + samples * (np.asarray(states.queue)[never, 0] + waiting)
    np.testing.assert_array_equal(trained, place & (later > np.asarray(worst_case.max_data) * (1 + 1e-5)))


# ---- it asks for no more than it must


@cache
def projecting() -> Callable[..., Any]:
    return jax.jit(jax.vmap(project, in_axes=(None, 0, 0)))


def random_states(system: System, rng: np.random.Generator, count: int) -> FleetState:
    """Any queues and buffers there could be, full and empty ones among them."""
    shape = (count, system.size)
    fill = rng.random((2, *shape))
    fill = np.where(rng.random(fill.shape) < 0.2, np.round(fill), fill) * rng.random((2, count, 1)) ** 2
    state = reset(system, jax.random.key(0))
    states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), state)
    queue = jnp.asarray(fill[0] * np.asarray(system.queue_max), jnp.float32)
    data = jnp.asarray(fill[1] * np.asarray(system.data_limit), jnp.float32)
    return eqx.tree_at(lambda s: (s.queue, s.data), states, (queue, data))


def random_actions(rng: np.random.Generator, count: int, size: int) -> Action:
    shape = (count, size)
    power, frequency = (jnp.asarray(rng.random(shape) ** 2, jnp.float32) for _ in range(2))
    return Action(train=jnp.asarray(rng.random(shape) < rng.random((count, 1))), power=power, frequency=frequency)


@exploring(30)
@given(fields=shielded_scenarios(), seed=st.integers(0, 2**31 - 1))
def test_a_projection_only_takes_trainers_away_and_adds_effort(fields: dict[str, Any], seed: int) -> None:
    system, rng = built(fields), np.random.default_rng(seed)
    states, asked = random_states(system, rng, 64), random_actions(rng, 64, system.size)
    given_ = projecting()(system, states, asked)
    assert not np.any(np.asarray(given_.train) & ~np.asarray(asked.train))
    assert not np.any(np.asarray(given_.train) & ~(np.asarray(states.data) > 0))
    for effort in ("power", "frequency"):
        before, after = np.asarray(getattr(asked, effort)), np.asarray(getattr(given_, effort))
        assert np.all(after >= before), effort
        assert np.all(after <= 1), effort
    # Who serves needs no more power; what was projected once is projected already.
    serving = ~np.asarray(given_.train)
    assert np.array_equal(np.asarray(given_.power)[serving], np.asarray(asked.power)[serving])
    again = projecting()(system, states, given_)
    assert np.array_equal(again.train, given_.train)
    for effort in ("power", "frequency"):
        np.testing.assert_allclose(getattr(again, effort), getattr(given_, effort), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", slow_after(2, [1, 10, 5, 30]))
def test_what_is_feasible_passes_unchanged(size: int) -> None:
    """Trainers who may, few enough, and everybody with all the power and frequency there is."""
    system, rng = discarding_fleet(size), np.random.default_rng(size)
    states = random_states(system, rng, 256)
    states = eqx.tree_at(lambda s: s.queue, states, jnp.minimum(states.queue, system.worst_case.queue_limit))
    room = int(np.min(np.asarray(system.worst_case.max_trainers)))
    assert room >= 1
    able = np.asarray(jax.vmap(action_mask, in_axes=(None, 0))(system, states))[..., 1]
    order = np.argsort(np.where(able, rng.random(able.shape), 2.0), axis=1).argsort(axis=1)
    train = able & (order < rng.integers(0, room + 1, (256, 1)))
    assert np.any(train)
    full = jnp.ones((256, size), jnp.float32)
    asked = Action(train=jnp.asarray(train), power=full, frequency=full)
    given_ = projecting()(system, states, asked)
    for name in ("train", "power", "frequency"):
        assert np.array_equal(getattr(given_, name), getattr(asked, name)), name


def kept_by_sorting(willing: list[bool], data: list[float], room: int) -> list[bool]:
    """By sorting: most data first, data that agree in the bits kept count as equal, the lower place goes first."""
    dropped_bits = max(len(data) - 1, 1).bit_length()

    def rank(n: int) -> tuple[int, int]:
        bits = struct.unpack("<i", struct.pack("<f", data[n]))[0]
        return (-(bits >> dropped_bits), n)

    first = sorted((n for n in range(len(data)) if willing[n]), key=rank)[:room]
    return [n in first for n in range(len(data))]


keep = jax.jit(top_k_mask)


@pytest.mark.parametrize("size", slow_after(3, [1, 3, 33, 2, 8, 10]))
def test_those_with_most_data_stay(size: int) -> None:
    rng = np.random.default_rng(size)
    draws = [
        lambda: rng.random(size) * 200,
        lambda: rng.integers(0, 4, size).astype(float),  # many ties
        lambda: np.full(size, 17.5),
        lambda: 100 * (1 + rng.integers(0, 3, size) * 2.0**-22),  # ties by their leading bits
        lambda: 10.0 ** rng.uniform(-30, 9, size),
        lambda: np.zeros(size),
    ]
    for draw in draws:
        for room in range(size + 2):
            data = np.asarray(draw(), np.float32)
            willing = rng.random(size) < rng.choice([0.3, 0.8, 1.0])
            kept = np.asarray(keep(jnp.asarray(willing), jnp.asarray(data), jnp.asarray(room, jnp.int32)))
            assert list(kept) == kept_by_sorting(list(willing), [float(d) for d in data], room)
            assert np.sum(kept) == min(room, np.sum(willing))


# ---- it leaves a way out


@eqx.filter_jit
def one_at_a_time(system: System, states: FleetState) -> tuple[Any, RoundOutcome, Action]:
    """From each state, a round in which all serve; then, for each device, a round in which it alone trains, weakly."""

    def from_state(state: FleetState) -> Any:
        rested, _ = step(system, state, serve_all(system))
        zero = jnp.zeros_like(system.devices.power_max_w)

        def alone(device: jax.Array) -> tuple[RoundOutcome, Action]:
            asked = Action(train=jnp.arange(system.size) == device, power=zero, frequency=zero)
            return step(system, rested, asked)[1], asked

        return action_mask(system, rested)[:, 1], *jax.vmap(alone)(jnp.arange(system.size))

    return jax.vmap(from_state)(states)


def visited(states: FleetState, every: int) -> FleetState:
    """States along the episodes, in one row."""
    return jax.tree.map(lambda leaf: leaf[:, :, ::every].reshape(-1, *leaf.shape[3:]), states)


def assert_no_trap(system: System) -> tuple[np.ndarray, np.ndarray]:
    states, _ = rollouts(system, jnp.arange(1))
    able, outcomes, asked = one_at_a_time(system, visited(states, 9))
    assert np.all(np.asarray(able)), "after a round of serving, a device may not train"
    for n in range(1, 9):
        assert not np.any(getattr(outcomes.violations, f"c{n}")), f"C{n}"
    return np.asarray(outcomes.executed.train), np.asarray(asked.train)


@pytest.mark.parametrize("size", slow_after(1, [10, 1, 5]))
def test_no_state_is_a_trap(size: int) -> None:
    executed, asked = assert_no_trap(at_worst(discarding_fleet(size)))
    assert np.array_equal(executed, asked)


@exploring(20)
@given(fields=shielded_scenarios())
def test_no_state_is_a_trap_in_any_scenario(fields: dict[str, Any]) -> None:
    executed, asked = assert_no_trap(at_worst(built(fields)))
    # With a slot whoever may train does. Without one the servers may need longer than a small training takes, and the
    # training is put off.
    if fields["limits.round_floor_s"] > 0:
        assert np.array_equal(executed, asked)


def test_a_slot_longer_than_an_idle_round_is_no_trap() -> None:
    """Every round lasts the slot of 3 s, so after serving 12 requests wait; with 20 more to come, 26 are too few."""
    fields = {
        "fleet.size": 2,
        "fleet.defaults.rate_factor": 1,
        "workload.request_rate_per_s": 4,
        "limits.round_floor_s": 3,
        "limits.idle_round_s": 0.1,
        "limits.queue_max": 26,
    }
    try:
        system = build_system(load_scenario("paper", fields))
    except InputError:
        return  # refused, as no policy could ever train there
    _, outcomes = rollouts(at_worst(system), jnp.arange(1))
    assert np.any(np.asarray(outcomes.trained)), "accepted, and yet nobody can ever train"


# ---- large fleets, and luck


def test_a_thousand_devices() -> None:
    system = no_worse(discarding_fleet(1000))

    @jax.jit
    def play(system: System, key: jax.Array) -> RoundOutcome:
        def body(state: FleetState, t: jax.Array) -> Any:
            after, outcome = step(system, state, random_choice(system, jax.random.fold_in(key, t), t))
            return after, outcome

        return jax.lax.scan(body, reset(system, key), jnp.arange(30))[1]

    outcomes = play(system, jax.random.key(0))
    for n in range(1, 9):
        assert not np.any(getattr(outcomes.violations, f"c{n}")), f"C{n}"
    assert np.any(outcomes.trained)
    assert np.all(np.sum(outcomes.executed.train, axis=1) <= np.max(np.asarray(system.worst_case.max_trainers)))


@pytest.mark.slow
def test_random_arrivals_and_fading_break_it_no_more_than_planned() -> None:
    fields = {"workload.arrivals": "poisson", "shield.outage": 1e-4}
    system = build_system(load_scenario("paper", fields))
    _, outcomes = rollouts(system, jnp.arange(16))
    broken = np.any([np.any(getattr(outcomes.violations, f"c{n}"), axis=-1) for n in range(1, 9)], axis=0)
    # 1e-4 for each device's channel and for each device's arrivals; a device may then need a round to recover.
    assert np.mean(broken) < 4 * 1e-4 * 10
    assert broken.size > 10_000
