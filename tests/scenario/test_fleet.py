"""From groups to devices: device n never changes, ranges hold, groups repeat, names are unique."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.feel import build_system
from tandem.scenario import build_device_table, device_profiles, dump_scenario, load_scenario, preset_names
from tandem.scenario.device_table import DeviceTable
from tandem.scenario.units import Range

COLUMNS = [field.name for field in dataclasses.fields(DeviceTable)]
RANGED = [
    "training_cycles_per_sample",
    "inference_cycles_per_request",
    "frequency_min_hz",
    "frequency_max_hz",
    "power_min_w",
    "power_max_w",
    "capacitance",
    "switch_energy_j",
    "rate_factor",
    "distance_m",
]
EVERY_FIELD_DRAWN = {
    "fleet.defaults.frequency_min_hz": {"uniform": ["1 GHz", "2 GHz"]},
    "fleet.defaults.frequency_max_hz": {"uniform": ["2 GHz", "3 GHz"]},
    "fleet.defaults.power_min_w": {"uniform": [0.1, 0.2]},
    "fleet.defaults.power_max_w": {"uniform": [0.5, 1]},
    "fleet.defaults.capacitance": {"uniform": [1e-27, 2e-27]},
    "fleet.defaults.switch_energy_j": {"uniform": [1, 5]},
    "channel.shadowing_db": 6,
}


def fleet(size=None, seed=0, **changes):
    overrides = {**EVERY_FIELD_DRAWN, "fleet.seed": seed, **changes}
    return load_scenario("paper", overrides if size is None else {**overrides, "fleet.size": size})


class TestDeviceN:
    @settings(max_examples=40, deadline=None)
    @given(small=st.integers(1, 60), large=st.integers(60, 3000), seed=st.integers(0, 2**63 - 1))
    def test_is_the_same_in_a_fleet_of_any_size(self, small, large, seed):
        few, many = build_device_table(fleet(small, seed)), build_device_table(fleet(large, seed))
        assert (len(few), len(many)) == (small, large)
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(few, column), getattr(many, column)[:small], err_msg=column)

    @pytest.mark.parametrize("name", preset_names())
    def test_is_the_same_in_every_preset(self, name):
        own = build_device_table(load_scenario(name))
        tenfold = build_device_table(load_scenario(name, {"fleet.size": 10 * len(own)}))
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(own, column), getattr(tenfold, column)[: len(own)], err_msg=column)

    def test_is_another_with_another_seed(self):
        one, other = build_device_table(fleet(seed=1)), build_device_table(fleet(seed=2))
        for column in RANGED:
            column = "request_rate_per_s" if column == "rate_factor" else column
            assert np.all(getattr(one, column) != getattr(other, column)), column

    @pytest.mark.parametrize("field", RANGED)
    def test_keeps_its_other_constants_when_one_range_changes(self, field):
        before = build_device_table(fleet(30))
        drawn = load_scenario("paper", EVERY_FIELD_DRAWN).fleet.devices[0]
        low, high = getattr(drawn, field).low, getattr(drawn, field).high
        width = max(high - low, 0.1 * low)
        after = build_device_table(fleet(30, **{f"fleet.defaults.{field}": {"uniform": [low, low + width / 2]}}))
        own = "request_rate_per_s" if field == "rate_factor" else field
        for column in COLUMNS:
            same = np.array_equal(getattr(before, column), getattr(after, column))
            assert same == (column != own), column

    def test_draws_its_fields_independently(self):
        table = build_device_table(fleet(4000))
        drawn = [getattr(table, column) for column in COLUMNS[2:-1]]
        correlation = np.corrcoef(drawn) - np.eye(len(drawn))
        assert np.abs(correlation).max() < 0.06

    def test_is_drawn_evenly_from_its_range(self):
        distance_m = build_device_table(fleet(4000)).distance_m
        counts, _ = np.histogram(distance_m, bins=8, range=(300, 700))
        assert counts.min() > 400


@settings(max_examples=30, deadline=None)
@given(
    low=st.floats(1e-3, 1e3),
    width=st.floats(0, 1e3),
    size=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_ranges_are_respected(low, width, size, seed):
    changes = {"fleet.defaults.power_min_w": 1e-4, "fleet.defaults.power_max_w": {"uniform": [low, low + width]}}
    power_w = build_device_table(fleet(size, seed, **changes)).power_max_w
    assert np.all((power_w >= low) & (power_w <= low + width))


def test_a_plain_number_is_not_drawn():
    np.testing.assert_array_equal(
        build_device_table(fleet(**{"fleet.defaults.frequency_max_hz": 3e9})).frequency_max_hz, 3e9
    )


def test_rates_are_the_mean_rate_times_the_factors():
    table = build_device_table(fleet(4000, **{"workload.request_rate_per_s": 10}))
    assert table.request_rate_per_s.mean() == pytest.approx(10, rel=0.01)
    assert table.request_rate_per_s.min() >= 7
    assert table.request_rate_per_s.max() <= 13


class TestGroups:
    def test_repeat_in_order(self):
        changes = {"fleet.devices": [{"count": 2}, {"count": 1}, {"count": 3}]}
        assert build_device_table(fleet(14, **changes)).groups.tolist() == [0, 0, 1, 2, 2, 2, 0, 0, 1, 2, 2, 2, 0, 0]

    def test_a_smaller_size_takes_the_first(self):
        assert build_device_table(fleet(3, **{"fleet.devices": [{"count": 2}, {"count": 5}]})).groups.tolist() == [
            0,
            0,
            1,
        ]

    def test_huge_counts_cost_nothing(self):
        assert (
            build_device_table(fleet(5, **{"fleet.devices": [{"count": 10_000_000}] * 100})).groups.tolist() == [0] * 5
        )

    def test_without_a_size_the_list_is_the_fleet(self, tmp_path):
        scenario = load_scenario("jetson")
        assert scenario.fleet.size == sum(group.count for group in scenario.fleet.devices) == 12
        assert load_scenario("jetson", ["fleet.devices[0].count=7"]).fleet.size == 15
        assert load_scenario("jetson", ["fleet.devices[0].count=7", "fleet.size=3"]).fleet.size == 3

    @pytest.mark.parametrize("count", [3, 3.0, "3"])
    def test_a_count_counts_however_it_is_written(self, count):
        devices = [{"profile": "jetson-tx2", "count": count}]
        assert load_scenario("jetson", {"fleet.devices": devices}).fleet.size == 3

    def test_without_a_list_all_devices_are_the_defaults(self):
        defaults = {**device_profiles()["jetson-tx2"], "power_min_w": 0.1, "power_max_w": 1}
        defaults |= {"switch_energy_j": 4, "distance_m": 100}
        scenario = load_scenario("paper", {"fleet": None, "fleet.defaults": defaults})
        assert scenario.fleet.size == 1
        assert scenario.fleet.devices[0].frequency_max_hz == Range(low=1300.5e6, high=1300.5e6)

    def test_the_papers_conversions_are_half_one_to_one_and_a_quarter_each_way(self):
        samples = build_device_table(load_scenario("paper", ["fleet.size=20"])).samples_per_request
        assert {value: int(np.sum(samples == value)) for value in (1.0, 0.5, 2.0)} == {1.0: 10, 0.5: 5, 2.0: 5}


class TestNames:
    @pytest.mark.parametrize(
        ("devices", "size", "names"),
        [
            ([{}], 2, ["device-0", "device-1"]),
            ([{}], 1, ["device-0"]),
            ([{"name": "cam"}, {"name": "lidar"}], 2, ["cam", "lidar"]),
            ([{"name": "cam"}, {"name": "lidar"}], 3, ["cam", "lidar", "cam-2"]),
            ([{"name": "cam", "count": 2}, {"name": "lidar"}], 3, ["cam-0", "cam-1", "lidar"]),
            ([{"name": "cam"}, {"name": "cam"}], 2, ["cam-0", "cam-1"]),
            ([{"name": "cam-1"}, {"name": "cam", "count": 2}], 3, ["cam-1-0", "cam-1", "cam-2"]),
        ],
    )
    def test_one_by_one_or_numbered(self, devices, size, names):
        assert build_device_table(fleet(size, **{"fleet.devices": devices})).names == names

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["cam", "cam-1", "cam-1-2", "device", "device-3", "3"])},
                optional={"count": st.integers(1, 3)},
            ),
            min_size=1,
            max_size=5,
        ),
        st.integers(1, 20),
    )
    def test_are_unique(self, devices, size):
        names = build_device_table(fleet(size, **{"fleet.devices": devices})).names
        assert len(set(names)) == size

    def test_survive_being_written_down(self, tmp_path):
        scenario = fleet(5, **{"fleet.devices": [{"name": "cam"}, {}]})
        path = tmp_path / "again.yaml"
        path.write_text(dump_scenario(scenario))
        assert build_device_table(load_scenario(path)).names == build_device_table(scenario).names


class TestProfiles:
    @pytest.mark.parametrize("name", device_profiles())
    def test_fill_a_group(self, name):
        group = fleet(1, **{"fleet.devices": [{"profile": name}]}).fleet.devices[0]
        assert group.profile == name
        assert group.frequency_min_hz.high < group.frequency_max_hz.low < 2e9
        assert group.distance_m == Range(low=300.0, high=700.0)

    def test_the_group_goes_before_its_profile(self):
        devices = [{"profile": "jetson-tx2", "frequency_max_hz": "1 GHz"}]
        assert fleet(1, **{"fleet.devices": devices}).fleet.devices[0].frequency_max_hz.low == 1e9

    def test_the_profile_of_a_group_goes_before_the_defaults(self):
        devices = [{"profile": "jetson-tx2"}, {}]
        first, second = fleet(2, **{"fleet.devices": devices}).fleet.devices
        assert (first.frequency_max_hz.low, second.frequency_max_hz.low) == (1300.5e6, 2e9)

    def test_the_defaults_go_before_a_profile_they_name(self):
        changes = {
            "fleet.defaults": {"profile": "jetson-tx2", "frequency_max_hz": "1 GHz", "frequency_min_hz": "200 MHz"},
            "fleet.devices": [{}, {"profile": "jetson-orin-nx"}, {"profile": None}],
        }
        fields = fleet(3, **changes).fleet.devices
        assert [group.frequency_max_hz.low for group in fields] == [1e9, 918e6, 1e9]
        assert [group.profile for group in fields] == ["jetson-tx2", "jetson-orin-nx", None]
        assert fields[2].capacitance == Range(low=1e-27, high=2e-27)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_builds(name):
    scenario = load_scenario(name)
    assert build_system(scenario).size == scenario.fleet.size
