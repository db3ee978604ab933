"""Numbers with units: what people write, what it becomes, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.scenario import units as quantities
from tandem.scenario.units import Dimension, Range

DIMENSIONS = sorted(name for name, value in vars(quantities).items() if isinstance(value, Dimension))


@pytest.mark.parametrize(
    ("dimension", "written", "base"),
    [
        ("FREQUENCY", "3 GHz", 3e9),
        ("FREQUENCY", "3GHz", 3e9),
        ("FREQUENCY", "  1300.5 MHz  ", 1300.5e6),
        ("FREQUENCY", 2_000_000, 2e6),
        ("FREQUENCY", "1e9", 1e9),  # YAML reads 1e9 as text
        ("POWER", "50 mW", 0.05),
        ("POWER", ".5", 0.5),
        ("TIME", "250 ms", 0.25),
        ("TIME", "2 min", 120.0),
        ("TIME_OR_ZERO", 0, 0.0),
        ("SIZE", "200 KB", 1.6e6),
        ("SIZE", "2 Mbit", 2e6),
        ("ENERGY", "0 J", 0.0),
        ("DISTANCE", "0.8 km", 800.0),
        ("CYCLES", "30 Mcycles", 3e7),
        ("RATE", "120 /min", 2.0),
        ("DECAY", 0, 0.0),
        ("DECIBEL", "-3 dB", -3.0),
        ("SPREAD", 0, 0.0),
        ("NOISE", "-174 dBm/Hz", -174.0),
        ("COUNT", "400 requests", 400.0),
        ("FACTOR", 1.2, 1.2),
        ("CAPACITANCE", "1e-27", 1e-27),
        ("CAPACITANCE", "1e-27 W s^3", 1e-27),
    ],
)
def test_reads_what_people_write(dimension, written, base):
    assert getattr(quantities, dimension).parse(written) == pytest.approx(base, rel=1e-12)


@pytest.mark.parametrize("name", DIMENSIONS)
class TestEachDimension:
    def test_accepts_its_own_example(self, name):
        dimension = getattr(quantities, name)
        assert math.isfinite(dimension.parse(dimension.example))

    def test_accepts_each_of_its_units(self, name):
        dimension = getattr(quantities, name)
        number = dimension.parse(dimension.example)
        for unit, factor in dimension.units.items():
            assert dimension.parse(f"{number / factor!r} {unit}") == pytest.approx(number)

    def test_holds_its_range(self, name):
        dimension = getattr(quantities, name)
        assert dimension.parse(dimension.high) == dimension.high
        for outside in (dimension.low - 1, dimension.high * 1.01 + 1):
            with pytest.raises(ValueError, match="outside what a"):
                dimension.parse(outside)
        if dimension.open_low:
            with pytest.raises(ValueError, match="outside what a"):
                dimension.parse(dimension.low)
        else:
            assert dimension.parse(dimension.low) == dimension.low

    @pytest.mark.parametrize(
        "wrong",
        [True, None, [], {}, "", "many", "3 parsecs", "1,5", "1e999", "nan", math.nan, math.inf, -math.inf, 10**400],
        ids=lambda wrong: repr(wrong)[:12],
    )
    def test_says_what_to_write_instead_of(self, name, wrong):
        with pytest.raises(ValueError, match=r"; (write|use) "):
            getattr(quantities, name).parse(wrong)


@given(st.floats(1e5, 1e12, exclude_min=True))
def test_a_number_survives_being_written(frequency_hz):
    assert quantities.FREQUENCY.parse(repr(frequency_hz)) == frequency_hz
    assert quantities.FREQUENCY.parse(f"{frequency_hz!r} Hz") == frequency_hz


def test_a_unit_of_another_dimension_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match="'W', which is not a unit of frequency; use one of Hz, kHz, MHz, GHz"):
        quantities.FREQUENCY.parse("3 W")


def test_a_level_is_not_a_noise_density():
    with pytest.raises(ValueError, match="not a unit of level; use one of dB"):
        quantities.DECIBEL.parse("12 dBm")


class TestRange:
    def test_a_number_is_a_range_of_no_width(self):
        assert quantities.POWER.parse_range("500 mW") == Range(low=0.5, high=0.5)

    def test_uniform_bounds_may_have_units(self):
        assert quantities.POWER.parse_range({"uniform": ["500 mW", 1]}) == Range(low=0.5, high=1.0)

    def test_a_range_stays(self):
        drawn = Range(low=1.0, high=2.0)
        assert quantities.POWER.parse_range(drawn) is drawn

    @pytest.mark.parametrize("written", [0.25, {"uniform": [0.25, 1.0]}])
    def test_is_written_as_it_was_read(self, written):
        assert quantities.POWER.parse_range(written).model_dump() == written

    def test_bounds_the_wrong_way_round(self):
        with pytest.raises(ValueError, match=r"wrong order; write \{uniform: \[1, 2\]\}"):
            quantities.POWER.parse_range({"uniform": [2, 1]})

    @pytest.mark.parametrize(
        "wrong", [{}, {"uniform": 1}, {"uniform": [1]}, {"uniform": [1, 2, 3]}, {"uniform": [1, 2], "low": 1}, {1: 2}]
    )
    def test_another_shape(self, wrong):
        with pytest.raises(ValueError, match=r"write a number or \{uniform: \[low, high\]\}"):
            quantities.POWER.parse_range(wrong)
