"""What holds whatever happens: the books balance, every number is finite, and a seed means the same everywhere."""

from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from marks import slow_after
from tandem.feel import Action, FleetState, RoundOutcome, System, build_system, reset, step
from tandem.feel.arrivals import PoissonProcess
from tandem.feel.channel import RayleighChannel, RicianChannel, StaticChannel, build_channel
from tandem.scenario import build_device_table, load_scenario

ROUNDS = 100
SIZES = (1, 7, 257)
KINDS = {
    "paper": {},
    "unshielded": {"shield.enabled": False, "channel.fading": "rayleigh"},
    "poisson": {"workload.arrivals": "poisson", "accuracy.mapping": {"kind": "log-rational", "kappa": [0.2, 0.5, 0.1]}},
}


@cache
def fleet(kind: str, size: int = 10) -> System:
    return build_system(load_scenario("paper", {"fleet.size": size, **KINDS[kind]}))


def random_action(system: System, key: jax.Array) -> Action:
    mode_key, power_key, frequency_key, eager_key = jax.random.split(key, 4)
    shape = system.devices.power_max_w.shape
    return Action(
        train=jax.random.uniform(mode_key, shape) < jax.random.uniform(eager_key),
        power=jax.random.uniform(power_key, shape),
        frequency=jax.random.uniform(frequency_key, shape),
    )


def episode(system: System, key: jax.Array) -> tuple[FleetState, FleetState, RoundOutcome]:
    """The first state, then the states after each round and the outcomes, of an episode of random actions."""
    action_key, start_key = jax.random.split(key)

    def body(state: FleetState, t: jax.Array) -> tuple[FleetState, tuple[FleetState, RoundOutcome]]:
        after, outcome = step(system, state, random_action(system, jax.random.fold_in(action_key, t)))
        return after, (after, outcome)

    first = reset(system, start_key)
    _, (states, outcomes) = jax.lax.scan(body, first, jnp.arange(ROUNDS))
    return first, states, outcomes


one_episode = jax.jit(episode)
many_episodes = jax.jit(jax.vmap(episode, in_axes=(None, 0)))


def keys(count: int) -> jax.Array:
    return jax.vmap(jax.random.key)(jnp.arange(count))


def numbers(tree: Any) -> list[tuple[str, np.ndarray]]:
    """Every leaf by name, keys as their bits."""

    def plain(leaf: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)

    return [(jax.tree_util.keystr(path), plain(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def assert_same_bits(ours: Any, theirs: Any) -> None:
    for (name, one), (_, other) in zip(numbers(ours), numbers(theirs), strict=True):
        assert one.dtype == other.dtype, name
        assert one.tobytes() == other.tobytes(), f"{name} differs by up to {np.max(np.abs(one - other))}"


def first_of(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[:count], tree)


# ---- the books balance


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
def test_requests_and_samples_are_conserved(kind: str) -> None:
    first, states, outcomes = many_episodes(fleet(kind), keys(64))
    total = {name: np.sum(np.asarray(getattr(outcomes, name), np.float64), axis=1) for name in BOOKS}
    # Requests: those at the start and those that came were served, dropped, or are waiting.
    came = np.asarray(first.queue, np.float64) + total["arrived"]
    left = total["served"] + total["dropped"] + np.asarray(states.queue[:, -1], np.float64)
    np.testing.assert_allclose(left, came, rtol=1e-5)
    # Samples: those converted were trained away, discarded, or are held.
    before = np.concatenate([np.asarray(first.data)[:, None], np.asarray(states.data)[:, :-1]], axis=1)
    trained_away = np.sum(np.where(outcomes.trained, before, 0.0).astype(np.float64), axis=1)
    left = trained_away + total["discarded"] + np.asarray(states.data[:, -1], np.float64)
    np.testing.assert_allclose(left, total["converted"], rtol=1e-5, atol=1e-3)


BOOKS = ("arrived", "served", "dropped", "converted", "discarded")


@pytest.mark.parametrize("kind", KINDS)
def test_every_round_keeps_its_bounds(kind: str) -> None:
    system = fleet(kind)
    first, states, outcomes = many_episodes(system, keys(64))
    for name in BOOKS:
        assert np.all(np.asarray(getattr(outcomes, name)) >= 0), name
    for name in ("queue", "waited_s", "data", "model_age_s", "clock_s"):
        assert np.all(np.asarray(getattr(states, name)) >= 0), name
    assert np.all(np.asarray(states.data_age_s) >= 1)
    assert np.all(np.asarray(states.queue) <= system.queue_max)
    assert np.all(np.asarray(states.data) <= system.data_limit * (1 + 1e-6))
    assert np.all((np.asarray(states.model_accuracy) >= 0) & (np.asarray(states.model_accuracy) <= 1))
    assert np.all(np.asarray(outcomes.duration_s) <= system.round_max_s)
    assert np.all(np.asarray(outcomes.duration_s) >= system.round_floor_s)
    before = np.concatenate([np.asarray(first.data)[:, None], np.asarray(states.data)[:, :-1]], axis=1)
    assert not np.any(np.asarray(outcomes.executed.train) & ~(before > 0)), "trained on nothing"
    assert not np.any(np.asarray(outcomes.trained) & ~np.asarray(outcomes.executed.train))
    broke = np.any([np.any(getattr(outcomes.violations, f"c{n}"), axis=-1) for n in range(1, 9)], axis=0)
    reward, objectives = np.asarray(outcomes.reward), np.asarray(outcomes.objectives)
    np.testing.assert_array_equal(reward, np.where(broke[..., None], np.asarray(system.penalty), objectives))


# ---- every number is finite

# What a scenario may say (the bounds of tandem.scenario.units), as powers of ten.
EXTREMES = {
    "devices.training_cycles_per_sample": (3, 14),
    "devices.inference_cycles_per_request": (3, 14),
    "devices.frequency_min_hz": (5, 12),
    "devices.power_min_w": (-9, 5),
    "devices.capacitance": (-40, -18),
    "devices.switch_energy_j": (-9, 9),
    "devices.samples_per_request": (-6, 6),
    "arrivals.rate_per_s": (-9, 6),
    "channel.mean": (-30, 30),
    "accuracy_mapping.k1": (-9, 6),
    "accuracy_mapping.k2": (-9, 6),
    "accuracy_mapping.k3": (-9, 6),
    "worst_case.round_limit_s": (-6, 6),
    "worst_case.worst_gain": (-30, 30),
    "worst_case.worst_arrivals": (-9, 12),
    "worst_case.queue_limit": (-9, 9),
    "worst_case.upload_s": (-6, 9),
    "worst_case.max_trainers": (0, 9),
    "iterations": (0, 4),
    "update_bits": (0, 13),
    "bandwidth_hz": (5, 12),
    "round_max_s": (-6, 6),
    "queue_max": (-9, 9),
    "data_max": (-9, 9),
    "model_decay_per_s": (-9, 3),
}
ZERO_TOO = {
    "accuracy_mapping.k1",
    "accuracy_mapping.k2",
    "accuracy_mapping.k3",
    "model_decay_per_s",
    "devices.switch_energy_j",
}
ODD_CHOICES = np.array([np.nan, np.inf, -np.inf, -1.0, 2.0, -1e38, 1e38, -0.0, 0.0, 1.0, 1e-38])
EXTREME_FLEETS = 1024
EXTREME_DEVICES = 4
EXTREME_ROUNDS = 5


def extreme_systems(template: System, rng: np.random.Generator, count: int) -> System:
    """``count`` systems whose constants lie anywhere a scenario may put them, bounds included; not at all servable."""

    def leaf(name: str, shape: tuple[int, ...]) -> np.ndarray:
        low, high = EXTREMES[name]
        exponent = rng.uniform(low, high, (count, *shape))
        exponent = np.where(rng.random(exponent.shape) < 0.2, rng.choice([low, high], exponent.shape), exponent)
        value = 10.0**exponent
        return np.where(rng.random(value.shape) < 0.1, 0.0, value) if name in ZERO_TOO else value

    values = {}
    for path, old in jax.tree_util.tree_leaves_with_path(template):
        name = jax.tree_util.keystr(path).lstrip(".")
        values[name] = leaf(name, old.shape) if name in EXTREMES else np.broadcast_to(old, (count, *old.shape))
    widths = rng.choice([0.0, 1.0], (2, count, EXTREME_DEVICES)) * 10 ** rng.uniform(-3, 7, (2, count, EXTREME_DEVICES))
    for name, width, most in (("frequency", widths[0], 1e12), ("power", widths[1], 1e5)):
        unit = "hz" if name == "frequency" else "w"
        low = values[f"devices.{name}_min_{unit}"]
        values[f"devices.{name}_max_{unit}"] = np.clip(low * (1 + width), low, np.maximum(most, low))
    longest = values["round_max_s"]
    for name in ("round_floor_s", "idle_round_s"):
        values[name] = longest * rng.choice([1e-12, 1e-3, 0.5, 1.0], count)
    values["round_floor_s"] = np.where(rng.random(count) < 0.3, 0.0, values["round_floor_s"])
    values["worst_case.round_limit_s"] = np.minimum(values["worst_case.round_limit_s"], longest)
    trainable = 10 ** rng.uniform(-9, 9, (count, EXTREME_DEVICES))
    roof = np.broadcast_to(values["data_max"][:, None], trainable.shape)
    values["worst_case.max_data"] = np.minimum(trainable, roof) if template.shielded else roof
    values["data_limit"] = values["worst_case.max_data"] if template.discards else roof
    values["worst_case.period"] = rng.choice([1, 2, 7, 2**20], trainable.shape)
    values["worst_case.offset"] = rng.integers(0, values["worst_case.period"])
    values["worst_case.reserved"] = rng.integers(0, EXTREME_DEVICES + 1, count)
    values["pretrained_accuracy"] = rng.choice([0.0, 0.5, 1.0], count)
    if "channel.direct" in values:
        k = 10 ** rng.uniform(-6, 6, count)
        values["channel.direct"], values["channel.scattered"] = k / (k + 1), 1 / (k + 1)
    names = [jax.tree_util.keystr(path).lstrip(".") for path, _ in jax.tree_util.tree_leaves_with_path(template)]
    assert set(EXTREMES) <= set(names)
    leaves = [jnp.asarray(values[name], old.dtype) for name, old in zip(names, jax.tree.leaves(template), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


@eqx.filter_jit
def extreme_rollout(systems: System, start: jax.Array, actions: Action) -> tuple[FleetState, RoundOutcome]:
    def one(system: System, key: jax.Array, plan: Action) -> Any:
        return jax.lax.scan(lambda state, act: _both(step(system, state, act)), reset(system, key), plan)[1]

    return jax.vmap(one)(systems, start, actions)


def _both(stepped: tuple[FleetState, RoundOutcome]) -> Any:
    return stepped[0], stepped


@pytest.mark.parametrize("shield", slow_after(1, ["violation", None, "discard"]), ids=str)
@pytest.mark.parametrize(
    ("mapping", "fading", "arrivals"),
    [
        ("log-exponential", "rayleigh", "constant"),
        ("log-rational", {"kind": "rician", "k_db": 3}, "poisson"),
        ("power-law-exponential", "static", "constant"),
    ],
)
def test_nothing_is_ever_infinite_or_no_number(mapping: str, fading: Any, arrivals: str, shield: str | None) -> None:
    # 1,024 fleets of 4 devices, 5 rounds, 9 kinds: over 45,000 scenario-action pairs and 180,000 devices.
    fields = {
        "fleet.size": EXTREME_DEVICES,
        "accuracy.mapping": {"kind": mapping, "kappa": [0.2, 0.5, 0.02]},
        "channel.fading": fading,
        "workload.arrivals": arrivals,
        "shield.enabled": shield is not None,
        "limits.overflow": shield or "violation",
        "training.iterations": 1,
        "limits.data_max": 400,
        "shield.outage": 0.3,
    }
    template = build_system(load_scenario("paper", fields))
    rng = np.random.default_rng([len(mapping), len(shield or "")])
    systems = extreme_systems(template, rng, EXTREME_FLEETS)
    shape = (EXTREME_FLEETS, EXTREME_ROUNDS, EXTREME_DEVICES)

    def choices() -> jax.Array:
        odd = rng.random(shape) < 0.3
        return jnp.asarray(np.where(odd, rng.choice(ODD_CHOICES, shape), rng.random(shape)), jnp.float32)

    actions = Action(train=jnp.asarray(rng.random(shape) < 0.6), power=choices(), frequency=choices())
    states, outcomes = extreme_rollout(systems, keys(EXTREME_FLEETS), actions)
    for name, values in numbers((states, outcomes)):
        bad = ~np.isfinite(values)
        where = np.argwhere(bad)[:1].tolist()
        assert not np.any(bad), f"{name}: {int(np.sum(bad))} of {bad.size} are not finite, the first at {where}"
    for name in ("queue", "waited_s", "data", "data_age_s", "model_age_s", "clock_s"):
        assert np.all(np.asarray(getattr(states, name)) >= 0), name
    for name in (*BOOKS, "energy_j", "duration_s", "waiting_s", "latency_s", "accuracy"):
        assert np.all(np.asarray(getattr(outcomes, name)) >= 0), name
    assert np.all(np.asarray(outcomes.executed.power) >= 0)
    assert np.all(np.asarray(outcomes.executed.power) <= 1)


@pytest.mark.parametrize("k_db", [-60.0, 0.0, 12.0, 60.0, 400.0])
def test_the_planned_gain_is_a_true_quantile(k_db: float) -> None:
    """The gain the shield plans with is missed as often as planned, for any direct wave."""
    scenario = load_scenario("paper", {"fleet.size": 4, "channel.fading": {"kind": "rician", "k_db": k_db}})
    channel = build_channel(scenario, build_device_table(scenario))
    outage = 0.02
    worst = channel.worst_gain(outage)
    assert np.all(np.isfinite(worst))
    assert np.all(worst > 0)
    draws = jax.vmap(lambda key: channel.gain(jnp.zeros(()), key))(keys(20_000))
    assert np.all(np.abs(np.mean(np.asarray(draws) < worst, axis=0) - outage) < 0.005)
    np.testing.assert_allclose(np.mean(draws, axis=0), channel.mean, rtol=0.03)


@given(
    rate=st.floats(0.0, 60.0), duration_s=st.floats(0.1, 20.0), outage=st.floats(-12.0, -0.01).map(lambda x: 10.0**x)
)
def test_the_planned_requests_are_a_true_quantile(rate: float, duration_s: float, outage: float) -> None:
    """The requests the shield plans with are exceeded as rarely as planned, and one fewer more often."""
    process = PoissonProcess(jnp.array([rate]))
    most = float(process.upper_quantile(duration_s, outage)[0])
    law = scipy.stats.poisson(float(process.mean_rate()[0]) * duration_s)
    assert most == law.isf(outage)
    assert law.cdf(most) >= 1 - outage
    assert most == 0 or law.cdf(most - 1) < 1 - outage


def rician(mean: jax.Array, k: float) -> RicianChannel:
    return RicianChannel(mean, jnp.asarray(k / (k + 1)), jnp.asarray(1 / (k + 1)))


@pytest.mark.parametrize("k", [0.3, 1.0, 4.0, 12.0])
def test_a_fading_gain_is_never_negative(k: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where direct and scattered wave cancel, rounding must not leave less than nothing: no rate is the log of that."""
    rng, count = np.random.default_rng(0), 1 << 16
    # Draws that are rare and not impossible, as words of 20 and 12 bits: scattered power about the direct one, phase
    # about a half turn.
    scattered = k * (1 + rng.uniform(-2e-3, 2e-3, count))
    turns = 0.5 + rng.uniform(-3e-4, 3e-4, count)
    words = np.floor(np.exp(-scattered) * 2**20).astype(np.uint32) | np.floor(turns * 2**12).astype(np.uint32) << 20
    monkeypatch.setattr(jax.random, "bits", lambda *_: jnp.asarray(words))
    gain = rician(jnp.ones(count), k).gain(jnp.zeros(()), jax.random.key(0))
    assert float(jnp.max(gain)) < 1e-3, "the draws above no longer reach the channel"
    assert float(jnp.min(gain)) >= 0


# ---- a seed means the same everywhere


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
def test_an_episode_is_the_same_alone_and_among_many(kind: str) -> None:
    system = fleet(kind)
    most = many_episodes(system, keys(SIZES[-1]))
    for size in SIZES[:-1]:
        assert_same_bits(many_episodes(system, keys(size)), first_of(most, size))
    for index in range(3):
        alone = one_episode(system, keys(3)[index])
        assert_same_bits(alone, jax.tree.map(lambda leaf, index=index: leaf[index], most))


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
def test_a_compiled_loop_is_a_loop(kind: str) -> None:
    system, key = fleet(kind), jax.random.key(5)
    first, states, outcomes = one_episode(system, key)
    action_key, start_key = jax.random.split(key)
    play, choose = jax.jit(step), jax.jit(random_action)
    state = jax.jit(reset)(system, start_key)
    assert_same_bits(state, first)
    for t in range(ROUNDS):
        state, outcome = play(system, state, choose(system, jax.random.fold_in(action_key, t)))
        assert_same_bits((state, outcome), jax.tree.map(lambda leaf, t=t: leaf[t], (states, outcomes)))


def test_other_seeds_are_other_episodes() -> None:
    _, states, outcomes = many_episodes(fleet("poisson"), keys(64))
    gains = np.asarray(outcomes.gain)
    assert len(np.unique(gains)) > 0.99 * gains.size
    assert len(np.unique(np.asarray(states.queue)[:, -1, 0])) > 3


def test_a_device_is_the_same_in_any_fleet() -> None:
    fields = {"channel.shadowing_db": 4, "fleet.seed": 11, "shield.outage": 0.2}
    large = load_scenario("paper", {**fields, "fleet.size": 300})
    table = build_device_table(large)
    for size in (1, 3, 10, 30):
        small = build_device_table(load_scenario("paper", {**fields, "fleet.size": size}))
        for name, column in vars(small).items():
            assert list(column) == list(getattr(table, name)[:size]), name


@pytest.mark.parametrize("channel_type", [StaticChannel, RayleighChannel, RicianChannel])
def test_a_devices_channel_is_the_same_in_any_fleet(channel_type: type) -> None:
    def gains(size: int) -> np.ndarray:
        mean = jnp.linspace(1.0, 30.0, 30)[:size]
        channel = rician(mean, 4.0) if channel_type is RicianChannel else channel_type(mean)
        return np.asarray(channel.gain(jnp.zeros(()), jax.random.key(9)))

    for size in (1, 2, 7, 10):
        np.testing.assert_array_equal(gains(size), gains(30)[:size])


def test_a_step_compiles_once() -> None:
    traced = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            traced.append(function.__name__)
            return function(*arguments)

        return jax.jit(wrapped)

    start, play = counted(reset), counted(step)
    scenarios = [{}, {"workload.request_rate_per_s": 3, "limits.round_floor_s": 1.5, "fleet.seed": 4}]
    for system in (build_system(load_scenario("paper", fields)) for fields in scenarios):
        for seed in range(3):
            state = start(system, jax.random.key(seed))
            for t in range(4):
                action = random_action(system, jax.random.fold_in(jax.random.key(seed), t))
                state, _ = play(system, state, action)
    assert sorted(traced) == ["reset", "step"]


def test_a_devices_requests_are_the_same_in_any_fleet() -> None:
    def requests(size: int) -> np.ndarray:
        process = PoissonProcess(jnp.linspace(0.5, 30.0, 30)[:size])  # few and many at once: two ways of drawing
        return np.asarray(process.sample(jnp.zeros(()), jnp.asarray(3.0), jax.random.key(9)))

    for size in (1, 2, 7, 10):
        np.testing.assert_array_equal(requests(size), requests(30)[:size])
