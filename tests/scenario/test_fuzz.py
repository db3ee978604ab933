"""Anything in the place of anything: a scenario comes out, or one sentence."""

import warnings
from datetime import date

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.errors import InputError
from tandem.feel import build_system
from tandem.io.yaml_reader import read_yaml
from tandem.scenario import Scenario, dump_scenario, load_scenario


def _paths(fields, path=""):
    """Every place in nested fields, branches and leaves."""
    if path:
        yield path
    if isinstance(fields, dict):
        for key, value in fields.items():
            yield from _paths(value, f"{path}.{key}" if path else key)
    elif isinstance(fields, list):
        for n, value in enumerate(fields):
            yield from _paths(value, f"{path}[{n}]")


_FIELDS = read_yaml(dump_scenario(load_scenario("paper")))
_FIELDS["fleet"]["defaults"] = dict(_FIELDS["fleet"]["devices"][0])
PATHS = sorted({*_paths(_FIELDS), "source", "extends", "fleet.devices[0].more", "channel.fading.path"})

WORDS = st.sampled_from(
    ["paper", "jetson-tx2", "trace", "rician", "kind", "path", "uniform", "defaults", "devices", "count", "3 GHz"]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**4000), 2**63, 0, -1]),
    st.floats(),
    WORDS,
    st.text(max_size=8),
    st.binary(max_size=3),
    st.just(date(2025, 11, 15)),
)
KEYS = st.one_of(WORDS, st.none(), st.booleans(), st.integers(-2, 2), st.text(max_size=4))
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=10
)


def served_or_refused(overrides, *, build=False):
    """The scenario, built if asked for, or None if it was refused as it should be; anything else fails the test."""
    try:
        scenario = load_scenario("paper", overrides)
        if build:
            build_system(scenario)
    except InputError as error:
        sentence = str(error)
    else:
        return scenario
    assert sentence.startswith("preset paper: ")
    assert sentence.endswith((".", "?"))
    assert sentence.isprintable()
    return None


def fuzz(examples):
    return settings(
        derandomize=True, database=None, max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck)
    )


ANY_OVERRIDES = st.dictionaries(st.sampled_from(PATHS), VALUES, min_size=1, max_size=3)


@fuzz(50)
@given(ANY_OVERRIDES)
def test_any_value_in_any_place(overrides):
    scenario = served_or_refused(overrides)
    if scenario is not None:
        assert Scenario.model_validate(read_yaml(dump_scenario(scenario))) == scenario


@pytest.mark.slow
@fuzz(500)
@given(ANY_OVERRIDES)
def test_any_value_in_any_place_with_many_examples(overrides):
    scenario = served_or_refused(overrides)
    if scenario is not None:
        assert Scenario.model_validate(read_yaml(dump_scenario(scenario))) == scenario


@fuzz(100)
@given(st.one_of(st.text(max_size=40), st.text("[]{}:,-?&*!|>'\"%@#~=\n ab1.", max_size=30)))
def test_any_text_as_a_value(text):
    served_or_refused([f"fleet.devices={text}"])


# Fields that take a number.
NUMBERS = st.sampled_from(
    [
        "fleet.defaults.frequency_max_hz",
        "fleet.defaults.power_max_w",
        "fleet.defaults.capacitance",
        "fleet.defaults.distance_m",
        "fleet.defaults.rate_factor",
        "fleet.defaults.training_cycles_per_sample",
        "fleet.defaults.inference_cycles_per_request",
        "workload.request_rate_per_s",
        "channel.bandwidth_hz",
        "channel.loss_at_1km_db",
        "channel.shadowing_db",
        "channel.fading.k_db",
        "training.iterations",
        "training.update_bits",
        "limits.round_max_s",
        "limits.round_floor_s",
        "limits.idle_round_s",
        "limits.queue_max",
        "limits.data_max",
        "shield.outage",
        "shield.upload_share",
    ]
)
MAGNITUDES = st.integers(-30, 30).map(lambda exponent: 10.0**exponent) | st.sampled_from([-400, 0, 60, 400, 1, 5])


@fuzz(40)
@given(
    st.dictionaries(NUMBERS, MAGNITUDES, min_size=1, max_size=2),
    st.booleans(),
    st.sampled_from(["poisson", "constant"]),
)
def test_any_magnitude_is_served_or_refused_without_a_warning(numbers, shielded, arrivals):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        served_or_refused(
            {**numbers, "shield.enabled": shielded, "workload.arrivals": arrivals, "fleet.size": 4}, build=True
        )
