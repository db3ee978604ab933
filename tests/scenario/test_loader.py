"""Where scenarios come from: presets, files that extend others, overrides; and back to YAML."""

import re

import pytest
import yaml
from pydantic import ValidationError

from tandem.errors import InputError
from tandem.scenario import Scenario, dump_scenario, load_scenario, preset_names
from tandem.scenario.units import Range


@pytest.fixture
def write(tmp_path):
    def write(text, name="my.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_presets():
    assert preset_names() == sorted(preset_names())
    assert {"paper", "jetson"} <= set(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_loads_and_is_named_after_its_file(name):
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description.endswith(".")
    assert scenario.source == f"preset {name}"


def test_a_scenario_is_immutable(paper_scenario):
    with pytest.raises(ValidationError, match="frozen"):
        paper_scenario.rounds = 3
    with pytest.raises(ValidationError, match="frozen"):
        paper_scenario.fleet.devices[0].count = 3
    with pytest.raises(ValidationError, match="frozen"):
        paper_scenario.channel.fading.k_db = 3.0


class TestFile:
    def test_extends_a_preset(self, write, paper_scenario):
        scenario = load_scenario(write("extends: paper\nname: mine\nlimits: {round_max_s: 6}"))
        assert scenario.limits == paper_scenario.limits.model_copy(update={"round_max_s": 6.0})
        assert scenario.name == "mine"
        assert scenario.fleet == paper_scenario.fleet

    def test_extends_a_file_relative_to_itself(self, write):
        write("extends: paper\nrounds: 7", "base/base.yaml")
        scenario = load_scenario(write("extends: ../base/base.yaml\nname: mine", "work/my.yaml"))
        assert (scenario.rounds, scenario.name) == (7, "mine")

    def test_a_file_may_have_the_name_of_a_preset(self, write):
        write("extends: paper\nrounds: 7", "paper")
        assert load_scenario(write("extends: ../paper", "work/my.yaml")).rounds == 7

    def test_a_path_may_be_relative(self, write, monkeypatch):
        monkeypatch.chdir(write("extends: paper\nname: mine").parent)
        assert load_scenario("my.yaml").source == "my.yaml"

    def test_byte_order_mark_and_windows_line_ends(self, write):
        assert load_scenario(write("\ufeffextends: paper\r\nrounds: 7\r\n")).rounds == 7

    def test_an_absent_part_has_its_defaults(self, write):
        fields = yaml.safe_load(dump_scenario(load_scenario("paper")))
        del fields["shield"], fields["rewards"], fields["observation"], fields["rounds"]
        scenario = load_scenario(write(yaml.safe_dump(fields)))
        assert scenario.shield.enabled
        assert scenario.observation == "full"


class TestMerge:
    @pytest.mark.parametrize(
        ("change", "field", "value"),
        [
            ("fading: {k_db: 3}", "fading", {"kind": "rician", "k_db": 3.0}),
            ("fading: {kind: rician}", "fading", {"kind": "rician", "k_db": 12.0}),
            ("fading: rayleigh", "fading", {"kind": "rayleigh"}),
            ("fading: {kind: static}", "fading", {"kind": "static"}),
            ("bandwidth_hz: 2 MHz", "bandwidth_hz", 2e6),
        ],
    )
    def test_a_plug_of_the_same_kind_merges_and_another_replaces(self, write, change, field, value):
        scenario = load_scenario(write(f"extends: paper\nchannel:\n  {change}"))
        assert scenario.channel.model_dump()[field] == value

    def test_a_list_replaces(self, write):
        assert len(load_scenario(write("extends: paper\nfleet:\n  devices: [{count: 3}]")).fleet.devices) == 1

    @pytest.mark.parametrize("value", ["{uniform: [1, 2]}", "2"])
    def test_a_range_replaces(self, write, value):
        scenario = load_scenario(write(f"extends: paper\nfleet: {{defaults: {{rate_factor: {value}}}}}"))
        assert scenario.fleet.devices[0].rate_factor.high == 2.0


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "read"),
        [
            ("fleet.size=20", lambda s: s.fleet.size == 20),
            (" fleet.size = 20", lambda s: s.fleet.size == 20),
            ("rounds=1", lambda s: s.rounds == 1),
            ("channel.bandwidth_hz=2 MHz", lambda s: s.channel.bandwidth_hz == 2e6),
            ("shield.outage=1e-3", lambda s: s.shield.outage == 1e-3),
            ("shield={enabled: false}", lambda s: not s.shield.enabled and s.shield.outage == 1e-5),
            ("channel.fading=rayleigh", lambda s: s.channel.fading.kind == "rayleigh"),
            ("channel.fading.kind=rayleigh", lambda s: s.channel.fading.kind == "rayleigh"),
            ("channel.fading.k_db=3", lambda s: s.channel.fading.k_db == 3.0),
            ("workload.arrivals.kind=poisson", lambda s: s.workload.arrivals.kind == "poisson"),
            ("accuracy.mapping.kind=log-rational", lambda s: s.accuracy.mapping.kind == "log-rational"),
            ("accuracy.mapping.kappa[1]=0.25", lambda s: s.accuracy.mapping.kappa[1] == 0.25),
            ("rewards.penalty=[0, -1, -2]", lambda s: s.rewards.penalty == (0.0, -1.0, -2.0)),
            ("fleet.devices[1].count=3", lambda s: s.fleet.devices[1].count == 3),
            ("fleet.devices.1.count=3", lambda s: s.fleet.devices[1].count == 3),
            ("fleet.devices=[{count: 2}]", lambda s: len(s.fleet.devices) == 1),
            (
                "fleet.devices[1].conversion={one-to-many: 3}",
                lambda s: s.fleet.devices[1].conversion.samples_per_request == 3.0,
            ),
            (
                "fleet.defaults.distance_m={uniform: [1, 2]}",
                lambda s: s.fleet.devices[3].distance_m == Range(low=1.0, high=2.0),
            ),
            ("description='a = b'", lambda s: s.description == "a = b"),
        ],
    )
    def test_sets(self, override, read):
        assert read(load_scenario("paper", [override]))

    def test_every_leaf_can_be_overridden_by_its_own_value(self, paper_scenario):
        for path, value in _leaves(yaml.safe_load(dump_scenario(paper_scenario))):
            changed = load_scenario("paper", [f"{path}={yaml.safe_dump(value, default_flow_style=True)}"])
            if not path.startswith("fleet.devices"):
                assert changed == paper_scenario, path

    def test_a_mapping_of_paths_does_the_same(self):
        assert load_scenario("paper", {"fleet.size": 20}) == load_scenario("paper", ["fleet.size=20"])

    def test_values_given_stay_as_they_were(self):
        given = {"fleet.defaults": {"power_max_w": 2}, "fleet.defaults.power_max_w": 3, "workload": {"arrivals": {}}}
        with pytest.raises(InputError):
            load_scenario("paper", given)
        assert given["fleet.defaults"] == {"power_max_w": 2}

    def test_the_last_one_wins(self):
        assert load_scenario("paper", ["rounds=1", "rounds=2"]).rounds == 2

    def test_an_empty_part_can_be_filled(self, write):
        path = write("extends: paper\nrewards:\n")
        assert load_scenario(path, ["rewards.penalty=[0, 0, 0]"]).rewards.penalty == (0.0, 0.0, 0.0)

    def test_nothing_leaks_into_the_next_scenario(self, paper_scenario):
        load_scenario("jetson", ["fleet.devices[0].capacitance=1e-26"])
        load_scenario("paper", ["fleet.size=3"])
        assert load_scenario("paper") == paper_scenario
        assert load_scenario("jetson").fleet.devices[0].capacitance.low == 4.09e-27


class TestNumbers:
    """Numbers are those of YAML 1.2: no octal numbers by a leading zero, no base 60, and 1e9 is a number."""

    @pytest.mark.parametrize(
        ("written", "rounds"),
        [("010", 10), ("0100", 100), ("08", 8), ("+10", 10), ("0o10", 8), ("0x10", 16), ("1_000", 1000), ("1e2", 100)],
    )
    def test_whole_numbers(self, written, rounds, write):
        assert load_scenario("paper", [f"rounds={written}"]).rounds == rounds
        assert load_scenario(write(f"extends: paper\nrounds: {written}\n")).rounds == rounds

    @pytest.mark.parametrize(
        ("written", "hertz"), [("3e6", 3e6), ("3.5e6", 3.5e6), ("0010e5", 1e6), ("'010 MHz'", 1e7), ("2_000_000", 2e6)]
    )
    def test_numbers_with_an_exponent(self, written, hertz):
        assert load_scenario("paper", [f"channel.bandwidth_hz={written}"]).channel.bandwidth_hz == hertz

    @pytest.mark.parametrize("written", ["1:30", "0b11", "1__0", "0x"])
    def test_everything_else_is_text(self, written):
        with pytest.raises(InputError, match=re.escape(f"rounds is '{written}'; write a whole number")):
            load_scenario("paper", [f"rounds={written}"])

    @pytest.mark.parametrize("name", ["010", "1e5", "0o7", "1:30", "1_0", ".5", "+1", "yes", "null"])
    def test_text_that_looks_like_a_number_stays_text(self, name, write, paper_scenario):
        scenario = paper_scenario.model_copy(update={"name": name})
        assert load_scenario(write(dump_scenario(scenario))).name == name


class TestDump:
    @pytest.mark.parametrize("name", preset_names())
    def test_round_trip(self, name, write):
        scenario = load_scenario(name)
        again = load_scenario(write(dump_scenario(scenario)))
        assert again == scenario
        assert hash(again) == hash(scenario)
        assert again.source != scenario.source
        assert dump_scenario(again) == dump_scenario(scenario)

    def test_round_trip_of_every_kind_of_value(self, write):
        overrides = [
            "name='å: #'",
            "description='two\n\n  lines'",
            "fleet.devices=[{name: a, profile: jetson-tx2, conversion: {many-to-one: 3}}, {count: 2}]",
            "workload.arrivals={kind: trace, path: rates.csv, repeat: true}",
            "channel.fading={kind: trace, path: gains.csv}",
            "shield={enabled: false, outage: 0.1}",
            "observation=minimal",
        ]
        scenario = load_scenario("paper", overrides)
        assert load_scenario(write(dump_scenario(scenario))) == scenario

    def test_different_scenarios_differ(self, paper_scenario):
        assert load_scenario("paper", ["channel.fading.k_db=12.5"]) != paper_scenario
        assert paper_scenario != "paper"


class TestDidYouMean:
    @pytest.mark.parametrize(
        ("override", "meant"),
        [
            ("flet.size=3", "'fleet'"),
            ("fleet.sizes=3", "'size'"),
            ("fleet.defaults.frequency_max=3", "'frequency_max_hz'"),
            ("fleet.devices[0].conut=3", "'count'"),
            ("fleet.devices[0].profile=jetson-tx", "'jetson-tx2'"),
            ("channel.fading=ricean", "'rician'"),
            ("channel.fading.k_dB=3", "'k_db'"),
            ("accuracy.mapping.kapa=3", "'kappa'"),
            ("limits.queue=3", "'queue_max'"),
        ],
    )
    def test_names_the_nearest(self, override, meant):
        with pytest.raises(InputError, match=re.escape(f"write {meant}")):
            load_scenario("paper", [override])

    def test_lists_all_if_none_is_near(self):
        with pytest.raises(InputError, match=r"use one of round_max_s, .*, overflow\."):
            load_scenario("paper", ["limits.xyz=3"])

    def test_a_preset(self):
        with pytest.raises(InputError, match=r"^papr: there is no such file .*; write 'paper'\.$"):
            load_scenario("papr")


def test_scenario_can_be_built_without_a_file(paper_scenario):
    scenario = Scenario.model_validate(paper_scenario.model_dump())
    assert scenario == paper_scenario
    assert scenario.source == ""


def _leaves(fields, path=""):
    if isinstance(fields, dict) and "uniform" not in fields and "samples_per_request" not in fields:
        for key, value in fields.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(fields, list) and path == "fleet.devices":
        for n, value in enumerate(fields):
            yield from _leaves(value, f"{path}[{n}]")
    else:
        yield path, fields
