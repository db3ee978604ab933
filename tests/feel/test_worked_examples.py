"""Rounds worked out with pencil and paper: two devices, three rounds, and one small case for each rule."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tandem.feel import Action, Environment, FleetState, RoundOutcome, System, build_system, reset, step
from tandem.feel.channel import StaticChannel
from tandem.scenario import load_scenario

# Device 0: 50 Mcycles a sample, 100 a request, lambda = 4 /s, one sample a request.
# Device 1: 25 Mcycles a sample,  50 a request, lambda = 8 /s, one sample for two requests.
# Both: 1 to 3 GHz (e f^3 = 1 W at 1 GHz, 8 W at 2 GHz), 1 to 3 W, 5 J a switch.
# U = 2, G = 1 Mbit, B = 1 MHz. Gains 3 and 5: device 0 at 1 W has an SNR of 3, log2(1 + 3) = 2 bit/s/Hz; device 1 at
# 3 W has 15, log2(1 + 15) = 4 bit/s/Hz.
FIELDS = {
    "fleet.size": 2,
    "fleet.devices": [
        {
            "training_cycles_per_sample": 50e6,
            "inference_cycles_per_request": 100e6,
            "rate_factor": 1,
            "conversion": "one-to-one",
        },
        {
            "training_cycles_per_sample": 25e6,
            "inference_cycles_per_request": 50e6,
            "rate_factor": 2,
            "conversion": {"many-to-one": 2},
        },
    ],
    "fleet.defaults.frequency_min_hz": 1e9,
    "fleet.defaults.frequency_max_hz": 3e9,
    "fleet.defaults.power_min_w": 1,
    "fleet.defaults.power_max_w": 3,
    "fleet.defaults.capacitance": 1e-27,
    "fleet.defaults.switch_energy_j": 5,
    "workload.request_rate_per_s": 4,
    "channel.bandwidth_hz": 1e6,
    "channel.fading": "static",
    "training.iterations": 2,
    "training.update_bits": 1e6,
    "limits.round_max_s": 10,
    "limits.round_floor_s": 0,
    "limits.idle_round_s": 2,
    "limits.queue_max": 100,
    "limits.data_max": 100,
    "accuracy.mapping": {"kind": "log-exponential", "kappa": [0.2, 0.5, 0.02]},
    "accuracy.model_decay_per_s": 0.01,
    "accuracy.pretrained": 0.5,
    "shield.enabled": False,
}
GAINS = (3.0, 5.0)
PENALTY = (-0.1, -8.0, -50.0)

play = jax.jit(step)


def hand_made(gains: tuple[float, ...] = GAINS, **changes: Any) -> System:
    """The system above, with fields changed (``limits__queue_max=10``) and the channel's gains set by hand."""
    fields = {**FIELDS, **{name.replace("__", "."): value for name, value in changes.items()}}
    system = build_system(load_scenario("paper", fields))
    return eqx.tree_at(lambda s: s.channel, system, StaticChannel(jnp.asarray(gains, float)))


def told(train: tuple[int, int], power: tuple[float, float], frequency: tuple[float, float]) -> Action:
    return Action(
        train=jnp.asarray(train, bool), power=jnp.asarray(power, float), frequency=jnp.asarray(frequency, float)
    )


def state_with(system: System, **columns: tuple[float, float]) -> FleetState:
    """The first state, with some columns set by hand."""
    state = reset(system, jax.random.key(0))
    for name, values in columns.items():
        state = eqx.tree_at(lambda s, name=name: getattr(s, name), state, jnp.asarray(values, float))
    return state


def shows(part: Any, **numbers: Any) -> None:
    for name, expected in numbers.items():
        np.testing.assert_allclose(np.asarray(getattr(part, name)), expected, rtol=2e-6, atol=1e-7, err_msg=name)


def broke(outcome: RoundOutcome, **flags: tuple[int, int]) -> None:
    """The devices that broke each constraint; those not named were broken by nobody."""
    for n in range(1, 9):
        expected = np.asarray(flags.get(f"c{n}", (0, 0)), bool)
        assert np.array_equal(getattr(outcome.violations, f"c{n}"), expected), f"C{n}"


def test_three_rounds_of_two_devices() -> None:
    system = hand_made()

    # Round 0. One idle round of 2 s has brought 4*2 = 8 and 8*2 = 16 requests, which have waited 2 s each: 16 and 32
    # request-seconds. No data, so age 1. The pre-trained model is worth 0.5 and new.
    state = reset(system, jax.random.key(0))
    shows(state, round=0, clock_s=0, queue=[8, 16], waited_s=[16, 32], data=[0, 0], data_age_s=[1, 1])
    shows(state, model_age_s=[0, 0], model_accuracy=[0.5, 0.5], last_duration_s=2, last_gain=[3, 5])
    shows(state.last_action, train=[0, 0], power=[0, 0], frequency=[0, 0])

    # Both serve, device 0 at 2 GHz, device 1 at 1 GHz.
    #   L_in: 100e6 * 8 / 2e9 = 0.4 s; 50e6 * 16 / 1e9 = 0.8 s. Nobody trains: L = max(2, 0.8) = 2 s.
    #   L_tot: 2 + 0.4 = 2.4 s; 2 + 0.8 = 2.8 s.   E: 8 W * 0.4 s = 3.2 J; 1 W * 0.8 s = 0.8 J. Nobody switched.
    #   r = (0.5, -(2.4 + 2.8) / 2, -(3.2 + 0.8) / 2) = (0.5, -2.6, -2).
    state, outcome = play(system, state, told((0, 0), (0, 0), (0.5, 0)))
    shows(outcome, frequency_hz=[2e9, 1e9], inference_s=[0.4, 0.8], duration_s=2, waiting_s=[2, 2])
    shows(outcome, latency_s=[2.4, 2.8], accuracy=[0.5, 0.5], energy_j=[3.2, 0.8], trained=[0, 0])
    shows(outcome, arrived=[8, 16], served=[8, 16], dropped=[0, 0], converted=[8, 8], discarded=[0, 0])
    shows(outcome, objectives=[0.5, -2.6, -2.0], reward=[0.5, -2.6, -2.0])
    broke(outcome)
    # Served requests became 8 and 16 / 2 = 8 samples of age 1; new ones arrived, 8 and 16; the models are 2 s old.
    shows(state, round=1, clock_s=2, queue=[8, 16], waited_s=[16, 32], data=[8, 8], data_age_s=[1, 1])
    shows(state, model_age_s=[2, 2], model_accuracy=[0.5, 0.5], last_duration_s=2)

    # Round 1. Device 0 trains at 1 W and 1 GHz, device 1 serves at 2 GHz.
    #   L_cmp = 2 * 50e6 * 8 / 1e9 = 0.8 s; r = 1e6 / 1 * 2 = 2 Mbit/s, L_up = 0.5 s; L = 1.3 s.
    #   L_in of device 1 = 50e6 * 16 / 2e9 = 0.4 s, L_tot = 2.4 s, Acc = 0.5 e^(-0.01 * 2) = 0.49009933.
    #   E: 1 W * 0.8 s + 1 W * 0.5 s + 5 J = 6.3 J; 8 W * 0.4 s = 3.2 J.
    #   Acc_ser = 0.2 ln(1 + 0.5 * 8) e^(-0.02 * 1) = 0.2 * 1.60943791 * 0.98019867 = 0.31551379.
    #   r = (0.49009933 / 2, -2.4 / 2, -9.5 / 2).
    state, outcome = play(system, state, told((1, 0), (0, 0), (0, 0.5)))
    shows(outcome, power_w=[1, 1], duration_s=1.3, trained=[1, 0], waiting_s=[2, 2])
    shows(outcome, energy_j=[6.3, 3.2], accuracy=[0.49009933, 0.49009933], server_accuracy=0.31551379)
    assert float(outcome.compute_s[0]) == pytest.approx(0.8)
    assert float(outcome.upload_s[0]) == pytest.approx(0.5)
    assert float(outcome.latency_s[1]) == pytest.approx(2.4)
    shows(outcome, arrived=[5.2, 10.4], served=[0, 16], dropped=[0, 0], converted=[0, 8], discarded=[0, 0])
    shows(outcome, objectives=[0.24504967, -1.2, -4.75], reward=[0.24504967, -1.2, -4.75])
    broke(outcome)
    # Device 0: Q = 8 + 5.2 = 13.2; the 8 have waited 2 + 1.3 s, the 5.2 have waited 1.3 s: 26.4 + 6.76 = 33.16.
    # Device 1: Q = 10.4, waited 10.4 * 1.3 = 13.52; D = 8 + 8, age ((1 + 1.3) * 8 + 8) / 16 = 1.65.
    shows(state, round=2, clock_s=3.3, queue=[13.2, 10.4], waited_s=[33.16, 13.52], data=[0, 16])
    shows(state, data_age_s=[1, 1.65], model_age_s=[0, 3.3], model_accuracy=[0.31551379, 0.5], last_duration_s=1.3)

    # Round 2. Device 1 trains at 3 W and 1 GHz, device 0 serves at 2 GHz.
    #   L_cmp = 2 * 25e6 * 16 / 1e9 = 0.8 s; r = 4 Mbit/s, L_up = 0.25 s; L = 1.05 s.
    #   Device 0: L_wa = 33.16 / 13.2 = 2.51212121 s, L_in = 100e6 * 13.2 / 2e9 = 0.66 s, L_tot = 3.17212121 s; its
    #   model is new, Acc = 0.31551379.
    #   E: 8 W * 0.66 s + 5 J = 10.28 J (it switched back); 1 W * 0.8 s + 3 W * 0.25 s + 5 J = 6.55 J.
    #   Acc_ser = 0.2 ln(1 + 0.5 * 16) e^(-0.02 * 1.65) = 0.2 * 2.19722458 * 0.96753856 = 0.42517990.
    #   r = (0.31551379 / 2, -3.17212121 / 2, -16.83 / 2).
    state, outcome = play(system, state, told((0, 1), (0, 1), (0.5, 0)))
    shows(outcome, power_w=[1, 3], duration_s=1.05, trained=[0, 1], energy_j=[10.28, 6.55], server_accuracy=0.4251799)
    assert float(outcome.waiting_s[0]) == pytest.approx(2.51212121)
    assert float(outcome.latency_s[0]) == pytest.approx(3.17212121)
    shows(outcome, arrived=[4.2, 8.4], served=[13.2, 0], dropped=[0, 0], converted=[13.2, 0], discarded=[0, 0])
    shows(outcome, objectives=[0.1577569, -1.5860606, -8.415], reward=[0.1577569, -1.5860606, -8.415])
    broke(outcome)
    # Device 1: Q = 10.4 + 8.4; waited 10.4 * (1.3 + 1.05) + 8.4 * 1.05 = 24.44 + 8.82 = 33.26.
    shows(state, round=3, clock_s=4.35, queue=[4.2, 18.8], waited_s=[4.41, 33.26], data=[13.2, 0], data_age_s=[1, 1])
    shows(state, model_age_s=[1.05, 0], model_accuracy=[0.31551379, 0.4251799], last_duration_s=1.05)


def test_two_trainers_share_the_band() -> None:
    # Both upload at half the rate: 1 Mbit over 1 Mbit/s and over 2 Mbit/s. Device 0: 0.8 + 1 = 1.8 s; device 1:
    # 2 * 25e6 * 8 / 1e9 + 0.5 = 0.9 s. Energy: 0.8 + 1 * 1 + 5 = 6.8 J and 0.4 + 3 * 0.5 + 5 = 6.9 J.
    # Acc_ser = 0.2 ln(1 + 0.5 * 16) e^(-0.02 * (1 + 4) / 2) = 0.2 * 2.19722458 * 0.95122942 = 0.41801293, for both.
    # Nobody serves, so nobody is served well or badly: r = (0, 0, -6.85).
    system = hand_made()
    state = state_with(system, data=(8, 8), data_age_s=(1, 4))
    after, outcome = play(system, state, told((1, 1), (0, 1), (0, 0)))
    shows(outcome, upload_s=[1, 0.5], compute_s=[0.8, 0.4], duration_s=1.8, trained=[1, 1], energy_j=[6.8, 6.9])
    shows(outcome, server_accuracy=0.41801293, objectives=[0, 0, -6.85], reward=[0, 0, -6.85])
    shows(after, model_accuracy=[0.41801293, 0.41801293], model_age_s=[0, 0], data=[0, 0], data_age_s=[1, 1])
    broke(outcome)


def test_a_straggler_is_cut_off() -> None:
    # L_max = 2 s. Device 0 computes 2 * 50e6 * 15 / 1e9 = 1.5 s and uploads 1 s (half the band): 2.5 s, too long.
    # Device 1 is done after 0.4 + 0.5 s. The round ends at 2 s: device 0 has spent 1 W * 1.5 s, then 1 W * 0.5 s.
    # Only device 1 is aggregated: 0.2 ln(1 + 0.5 * 8) e^(-0.02 * 2) = 0.2 * 1.60943791 * 0.96078944 = 0.30926617.
    system = hand_made(limits__round_max_s=2)
    state = state_with(system, data=(15, 8), data_age_s=(3, 2), model_age_s=(4, 4))
    after, outcome = play(system, state, told((1, 1), (0, 1), (0, 0)))
    shows(outcome, duration_s=2, trained=[0, 1], energy_j=[7.0, 6.9], server_accuracy=0.30926617)
    broke(outcome, c1=(1, 0))
    shows(outcome, objectives=[0, 0, -6.95], reward=PENALTY)
    assert list(outcome.executed.train) == [True, True]
    # Its 15 samples are lost; it keeps its model, 2 s older; its requests have waited on.
    shows(outcome, discarded=[15, 0])
    shows(after, data=[0, 0], data_age_s=[1, 1], model_age_s=[6, 0], model_accuracy=[0.5, 0.30926617])
    shows(after, queue=[16, 32], waited_s=[16 + 16 + 16, 32 + 32 + 32])


def test_a_straggler_cut_while_computing_has_sent_nothing() -> None:
    # 2 * 50e6 * 60 / 1e9 = 6 s of computing against L_max = 2 s: 1 W * 2 s, no upload, 5 J to switch.
    system = hand_made(limits__round_max_s=2)
    after, outcome = play(system, state_with(system, data=(60, 0)), told((1, 0), (1, 0), (0, 0)))
    shows(outcome, duration_s=2, trained=[0, 0])
    assert float(outcome.energy_j[0]) == pytest.approx(7.0)
    broke(outcome, c1=(1, 0))
    shows(outcome, discarded=[60, 0])
    shows(after, data=[0, 8], model_accuracy=[0.5, 0.5])


def test_the_round_limit_met_exactly_is_met() -> None:
    # 2 * 50e6 * 15 / 1e9 + 0.5 = 2 s = L_max.
    system = hand_made(limits__round_max_s=2)
    after, outcome = play(system, state_with(system, data=(15, 0)), told((1, 0), (0, 0), (0, 0)))
    shows(outcome, duration_s=2, trained=[1, 0])
    broke(outcome)
    shows(after, data=[0, 8])


def test_a_full_queue_drops_the_newest() -> None:
    # Q_max = 20. Device 0 trains for 0.8 + 0.5 = 1.3 s with 18 waiting: 5.2 arrive, 2 fit, 3.2 are dropped.
    # The 18 had waited 36 request-seconds: 36 + 18 * 1.3 + 2 * 1.3 = 62. Device 1: 10.4 arrive in an empty queue.
    system = hand_made(limits__queue_max=20)
    state = state_with(system, queue=(18, 4), waited_s=(36, 8), data=(8, 0))
    after, outcome = play(system, state, told((1, 0), (0, 0), (0, 1)))
    shows(outcome, duration_s=1.3, arrived=[5.2, 10.4], dropped=[3.2, 0])
    shows(after, queue=[20, 10.4], waited_s=[62, 13.52])
    broke(outcome, c2=(1, 0))
    shows(outcome, reward=PENALTY)


def test_a_full_buffer_discards_the_newest() -> None:
    # D_max = 20. Device 0 holds 15 of age 3 and serves 8: 5 are kept, 3 are discarded. Round of 2 s:
    # age ((3 + 2) * 15 + 5) / 20 = 4.
    system = hand_made(limits__data_max=20)
    state = state_with(system, data=(15, 1), data_age_s=(3, 1))
    after, outcome = play(system, state, told((0, 0), (0, 0), (1, 1)))
    shows(outcome, duration_s=2, converted=[8, 8], discarded=[3, 0])
    shows(after, data=[20, 9], data_age_s=[4, (3 * 1 + 8) / 9])
    broke(outcome, c3=(1, 0))
    shows(outcome, reward=PENALTY)


def test_training_on_nothing_is_serving() -> None:
    # Device 0 has no data: it serves instead, and the round is an idle one; no mode was switched.
    system = hand_made()
    after, outcome = play(system, state_with(system, data=(0, 8)), told((1, 0), (0, 0), (0.5, 0)))
    assert list(outcome.executed.train) == [False, False]
    shows(outcome, duration_s=2, trained=[0, 0], served=[8, 16], energy_j=[3.2, 0.8], objectives=[0.5, -2.6, -2.0])
    broke(outcome, c4=(1, 0))
    shows(outcome, reward=PENALTY)
    shows(after, data=[8, 16], data_age_s=[1, (3 * 8 + 8) / 16])
    # The band is then not shared either: device 1 uploads alone, 0.25 s.
    _, outcome = play(system, state_with(system, data=(0, 8)), told((1, 1), (0, 1), (1, 0)))
    shows(outcome, duration_s=0.4 + 0.25, trained=[0, 1])
    broke(outcome, c4=(1, 0), c5=(0, 0))


def test_the_penalty_of_a_violation_is_credited_to_the_fleet_or_to_its_cause() -> None:
    # The round above: accuracies 0.5, latencies 2.8 and 2.4 s, energies 3.2 and 0.8 J. Device 0 violates C4.
    system = hand_made()
    _, outcome = play(system, state_with(system, data=(0, 8)), told((1, 0), (0, 0), (0.5, 0)))
    environment = Environment(system)
    np.testing.assert_allclose(environment.device_rewards(outcome), [PENALTY, PENALTY])
    # What is missing to the penalty, twice (-0.1 - 0.5, -8 + 2.6, -50 + 2), is the reward of device 0.
    by_device = environment.device_rewards(outcome, "device")
    own = np.stack([outcome.accuracy, -outcome.latency_s, -outcome.energy_j], axis=-1)
    np.testing.assert_allclose(by_device[1], own[1], rtol=1e-5)
    np.testing.assert_allclose(by_device[0] - own[0], [-1.2, -10.8, -96.0], rtol=1e-5)
    np.testing.assert_allclose(by_device.mean(axis=0), PENALTY, rtol=1e-5)
    # Without a violation both are the objectives.
    _, outcome = play(system, state_with(system, data=(0, 8)), told((0, 0), (0, 0), (0.5, 0)))
    broke(outcome)
    np.testing.assert_array_equal(environment.device_rewards(outcome, "device"), environment.device_rewards(outcome))


def test_an_inference_longer_than_the_round_still_serves_all() -> None:
    # Device 1 trains for 0.4 + 0.25 = 0.65 s; device 0 needs 100e6 * 8 / 1e9 = 0.8 s, all of which it spends.
    system = hand_made()
    after, outcome = play(system, state_with(system, data=(0, 8)), told((0, 1), (0, 1), (0, 0)))
    shows(outcome, duration_s=0.65, served=[8, 0], converted=[8, 0])
    assert float(outcome.energy_j[0]) == pytest.approx(0.8)
    broke(outcome, c5=(1, 0))
    shows(outcome, reward=PENALTY)
    shows(after, queue=[2.6, 16 + 5.2], data=[8, 0])


def test_an_idle_round_waits_for_the_longest_inference() -> None:
    # 100e6 * 30 / 1e9 = 3 s against an idle round of 2 s; device 1 takes 0.8 s.
    system = hand_made()
    _, outcome = play(system, state_with(system, queue=(30, 16)), told((0, 0), (0, 0), (0, 0)))
    shows(outcome, inference_s=[3, 0.8], duration_s=3, arrived=[12, 24])
    broke(outcome)
    # And is cut at L_max, where it breaks C1 (and C5): 100e6 * 110 / 1e9 = 11 s against 10 s.
    system = hand_made(limits__queue_max=200, limits__data_max=200)
    _, outcome = play(system, state_with(system, queue=(110, 16)), told((0, 0), (0, 0), (0, 0)))
    shows(outcome, duration_s=10, served=[110, 16])
    broke(outcome, c1=(1, 0), c5=(1, 0))


def test_no_round_is_shorter_than_the_slot() -> None:
    # A slot of 2.5 s: the training round of 1.3 s and the idle round of 2 s both last it; energy is that of the work.
    system = hand_made(limits__round_floor_s=2.5)
    after, outcome = play(system, state_with(system, data=(8, 0)), told((1, 0), (0, 0), (0, 0.5)))
    shows(outcome, duration_s=2.5, energy_j=[6.3, 3.2], arrived=[10, 20])
    assert float(after.model_age_s[1]) == pytest.approx(2.5)
    _, outcome = play(system, reset(system, jax.random.key(0)), told((0, 0), (0, 0), (0.5, 0)))
    shows(outcome, duration_s=2.5, energy_j=[3.2, 0.8])


def test_switching_costs_energy_each_way_and_only_then() -> None:
    # Energies apart from switching: training 1.3 J (0.8 + 0.5), serving 3.2 J at 2 GHz.
    system = hand_made(fleet__defaults__switch_energy_j=7)
    serving = state_with(system, data=(8, 8))
    was_training = eqx.tree_at(lambda s: s.last_action.train, serving, jnp.asarray([True, True]))
    for before, mode, spent in (
        (serving, 1, 1.3 + 7),
        (was_training, 1, 1.3),
        (serving, 0, 3.2),
        (was_training, 0, 3.2 + 7),
    ):
        _, outcome = play(system, before, told((mode, 0), (0, 0), (0.5 * (1 - mode), 1)))
        assert float(outcome.energy_j[0]) == pytest.approx(spent)


@pytest.mark.parametrize(
    ("conversion", "samples"),
    [("one-to-one", 8), ({"many-to-one": 4}, 2), ({"one-to-many": 3}, 24), ({"many-to-one": 2.5}, 3.2)],
)
def test_requests_become_samples(conversion: Any, samples: float) -> None:
    devices = [{**FIELDS["fleet.devices"][0], "conversion": conversion}, FIELDS["fleet.devices"][1]]
    system = hand_made(fleet__devices=devices, training__iterations=1)
    after, outcome = play(system, reset(system, jax.random.key(0)), told((0, 0), (0, 0), (1, 1)))
    shows(outcome, converted=[samples, 8], served=[8, 16])
    shows(after, data=[samples, 8])


def test_accuracy_is_bounded_by_one() -> None:
    system = hand_made(accuracy__mapping={"kind": "log-exponential", "kappa": [5, 0.5, 0.02]})
    after, outcome = play(system, state_with(system, data=(8, 0)), told((1, 0), (0, 0), (0, 1)))
    shows(outcome, server_accuracy=1.0)
    shows(after, model_accuracy=[1.0, 0.5])


def test_choices_out_of_bounds_count_as_the_nearest_and_are_marked() -> None:
    system = hand_made()
    action = told((0, 0), (-1, float("nan")), (7, float("inf")))
    _, outcome = play(system, reset(system, jax.random.key(0)), action)
    shows(outcome, power_w=[1, 1], frequency_hz=[3e9, 3e9], reward=PENALTY)
    broke(outcome, c7=(1, 1), c8=(1, 1))
    # What is no number counts as 0.
    _, outcome = play(system, reset(system, jax.random.key(0)), told((0, 0), (0.5, 0), (float("nan"), -0.001)))
    shows(outcome, power_w=[2, 1], frequency_hz=[1e9, 1e9])
    broke(outcome, c8=(1, 1))
