"""Whatever is wrong with a scenario, the user gets one sentence that names the file, the field and the fix."""

import json
import re
import warnings

import pytest

from tandem.errors import InputError
from tandem.feel import build_system
from tandem.scenario import load_scenario

FIX = re.compile(
    r"; .*\b(write|use|lower|raise|give|remove|fix|set|start|name|check|quote|record|add|complete|fill|save|resample|"
    r"list takes|list needs)\b"
)


# The paper's scenario with every device alike, in numbers to reckon with by hand: 5 requests/s of 30 Mcycles on 3 GHz.
PLAIN = {
    "rounds": 100,
    "fleet.size": 10,
    "fleet.defaults": {
        "training_cycles_per_sample": "30 Mcycles",
        "inference_cycles_per_request": "30 Mcycles",
        "frequency_min_hz": "1 GHz",
        "frequency_max_hz": "3 GHz",
        "power_min_w": 0.1,
        "power_max_w": 1,
        "rate_factor": 1,
        "distance_m": 800,
    },
    "workload": {"request_rate_per_s": 5, "arrivals": "constant"},
    "channel": {"bandwidth_hz": "1 MHz", "fading": {"kind": "rician", "k_db": 12}},
    "training": {"iterations": 2, "update_bits": "200 KB"},
    "limits": {"round_max_s": 5, "round_floor_s": 2, "idle_round_s": 2, "queue_max": 400, "data_max": 200},
    "shield": {"enabled": True, "upload_share": 0.5},
}
PLAIN_TEXT = [f"{path}={json.dumps(value)}" for path, value in PLAIN.items()]


def refusal(name_or_path, overrides=()):
    """The sentence a scenario is refused with, which has the form every such sentence has."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError) as caught:
            build_system(load_scenario(name_or_path, overrides))
    sentence = str(caught.value)
    assert sentence.isprintable(), "one line"
    assert re.search(r"[^.]\.$", sentence), "a sentence ends with a full stop"
    assert ". " not in sentence, "one sentence"
    assert FIX.search(sentence), "and says what to do"
    assert len(sentence) < 700 + 2 * len(str(name_or_path)) + 2 * len("".join(map(str, overrides)))
    assert "nput should" not in sentence
    assert "None" not in sentence
    assert caught.value.__cause__ is None
    return sentence


# What a file holds, and what the sentence about it must say. {file} is the file's path.
FILES = {
    "empty": ("", ["{file}: is empty", "extends: paper"]),
    "only a comment": ("# nothing\n", ["{file}: is empty"]),
    "empty mapping": ("{}", ["{file}: is empty"]),
    "list at top level": ("- name: x\n- rounds: 3\n", ["{file}: is [", "'field: value' lines"]),
    "text at top level": ("hello", ["{file}: is 'hello'", "'field: value' lines"]),
    "number at top level": ("3", ["{file}: is 3"]),
    "open bracket": ("extends: paper\nfleet: {size: 3\n", ["{file}, line 3", "fix that line"]),
    "bad indentation": ("extends: paper\nfleet:\n  size: 3\n seed: 1\n", ["{file}, line 4"]),
    "tab": ("extends: paper\nfleet:\n\tsize: 3\n", ["{file}, line 3"]),
    "two documents": ("extends: paper\n---\nrounds: 3\n", ["{file}, line 2", "found another document"]),
    "duplicate key": ("extends: paper\nrounds: 3\nname: x\nrounds: 4\n", ["{file}, line 4", "'rounds' is given twice"]),
    "duplicate key inside": (
        "extends: paper\nfleet: {size: 3, seed: 1, size: 4}\n",
        ["line 2", "'size' is given twice"],
    ),
    "duplicate key in quotes": ('extends: paper\nrounds: 3\n"rounds": 4\n', ["line 3", "'rounds' is given twice"]),
    "python object": ("extends: paper\nname: !!python/object:os.system {}\n", ["{file}, line 2", "python/object"]),
    "python call": ("name: !!python/object/apply:os.system ['true']\n", ["{file}, line 1", "python/object/apply"]),
    "unknown tag": ("extends: paper\nname: !mine x\n", ["{file}, line 2", "!mine"]),
    "wrong tag": ("extends: paper\nrounds: !!int many\n", ["{file}, line 2", "not a valid int", "in quotes"]),
    "wrong tag of a mapping": ("extends: paper\nfleet: !!map many\n", ["{file}, line 2"]),
    "impossible date": ("extends: paper\nname: 2025-13-45\n", ["{file}, line 2", "not a valid timestamp", "in quotes"]),
    "a date for a name": ("extends: paper\nname: 2025-11-15\n", ["{file}: name is", "in quotes"]),
    "a number of 5000 digits": ("extends: paper\nrounds: " + "9" * 5000, ["{file}, line 2", "not a valid int"]),
    "a hexadecimal number of 5000 digits": (
        "extends: paper\nrounds: 0x" + "f" * 5000,
        ["rounds is a number of too many"],
    ),
    "control character": ("extends: paper\nname: a\x07b\n", ["{file}: cannot be read as YAML"]),
    "line break in a name": ('extends: paper\nname: "a\\nb"\n', ["{file}: name is 'a\\nb'", "on one line"]),
    "line break in a key": ('extends: paper\n"ro\\nunds": 3\n', ["{file}: ro unds is not a field", "'rounds'"]),
    "half a character": ('extends: paper\n"ro\\ud800": 3\n', ["{file}: ro", "is not a field"]),
    "alias": ("extends: paper\nshield: &a {}\nrewards: *a\n", ["{file}, line 3", "write the values out"]),
    "alias that holds itself": ("extends: paper\nfleet: &a {devices: [*a]}\n", ["{file}, line 2", "aliases"]),
    "billion laughs": (
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
        ["{file}, line 2", "aliases are not supported"],
    ),
    "huge nesting": ("name: " + "[" * 20_000, ["{file}, line 1", "nested more than"]),
    "huge nesting of mappings": ("{a: " * 2_000 + "1" + "}" * 2_000, ["{file}, line 1", "nested more than"]),
    "a key that is a number": ("extends: paper\n1: 2\n", ["{file}: the scenario has the key 1", "use one of name,"]),
    "a key that is a word for true": ("extends: paper\nfleet: {on: 3}\n", ["{file}: fleet has the key true"]),
    "a key that is empty": ("extends: paper\nlimits: {null: 3}\n", ["{file}: limits has the key empty"]),
    "a key that is a number in a plug": (
        "extends: paper\nchannel: {fading: {kind: rician, 1: 2}}\n",
        ["{file}: channel.fading has the key 1, which is not a name; use one of k_db"],
    ),
    "a kind that is a number of 5000 digits": (
        "extends: paper\nworkload: {arrivals: {kind: 0x" + "f" * 5000 + "}}",
        ["workload.arrivals has the kind a number of too many digits"],
    ),
    "a key that is a list": ("extends: paper\n? [1, 2]\n: 3\n", ["{file}, line 2", "unhashable key"]),
    "missing name": ("rounds: 3\n", ["{file}: name is missing", "more after this one"]),
    "missing part": ("name: x\n", ["{file}: fleet is missing; give it a value"]),
    "empty fleet": ("extends: paper\nfleet:\n", ["{file}: fleet is empty", "write its fields"]),
    "empty limits": ("extends: paper\nlimits: null\n", ["{file}: limits is empty", "write its fields"]),
    "empty number": ("extends: paper\nrounds:\n", ["{file}: rounds is empty", "whole number"]),
    "source": ("extends: paper\nsource: x\n", ["{file}: source is not a field"]),
    "extends is a list": ("extends: [paper]\n", ["{file}: extends is ['paper']", "name of a preset"]),
    "extends a missing file": ("extends: base.yaml\n", ["{file}: extends: ", "base.yaml: there is no such file"]),
    "extends a misspelt preset": ("extends: papr\n", ["{file}: extends: ", "write 'paper'"]),
    "extends itself": ("extends: my.yaml\n", ["{file}: extends: {file}: extends itself", "remove one"]),
    "extends itself by a detour": ("extends: ../{folder}/my.yaml\n", ["{file}: extends: ", "extends itself"]),
    "extends a folder": ("extends: .\n", ["{file}: extends: ", "is a folder"]),
}


@pytest.mark.parametrize(("text", "says"), FILES.values(), ids=FILES)
def test_file(text, says, tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(text.replace("{folder}", tmp_path.name), encoding="utf-8")
    sentence = refusal(path)
    assert str(path) in sentence
    for part in says:
        assert part.replace("{file}", str(path)) in sentence


class TestNoFile:
    def test_missing(self, tmp_path):
        path = tmp_path / "my.yaml"
        assert refusal(path).startswith(f"{path}: there is no such file and no preset of that name; fix the path")

    def test_folder(self, tmp_path):
        assert refusal(tmp_path).startswith(f"{tmp_path}: is a folder; name a scenario file in it")

    def test_inside_a_file(self, tmp_path):
        (tmp_path / "my.yaml").write_text("extends: paper")
        assert "check the path" in refusal(tmp_path / "my.yaml" / "x.yaml")

    @pytest.mark.parametrize(
        "content", [b"\x89PNG\r\n\x1a\n\xff\xfe", b"PK\x03\x04\x00\x00", "name: å".encode("utf-16")]
    )
    def test_binary(self, tmp_path, content):
        path = tmp_path / "my.yaml"
        path.write_bytes(content)
        assert refusal(path).startswith(f"{path}: ")

    @pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "a\nb"])
    def test_name_no_file_can_have(self, name):
        assert "preset" in refusal(name) or "check the path" in refusal(name)

    def test_extends_in_a_ring(self, tmp_path):
        for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
            (tmp_path / f"{name}.yaml").write_text(f"extends: {base}.yaml")
        assert re.search(r"a\.yaml: extends: .*b\.yaml: extends: .*c\.yaml: .*a\.yaml: ", refusal(tmp_path / "a.yaml"))

    def test_a_mistake_in_the_file_it_extends(self, tmp_path):
        (tmp_path / "base.yaml").write_text("extends: paper\nrounds: [")
        (tmp_path / "my.yaml").write_text("extends: base.yaml")
        assert f"my.yaml: extends: {tmp_path / 'base.yaml'}, line 2" in refusal(tmp_path / "my.yaml")


# One override of the plain scenario, and what the sentence about it must say.
OVERRIDES = [
    # --set itself
    ("rounds", ["--set rounds: is not name=value", "--set fleet.size=20"]),
    ("=3", ["--set =3: is not name=value"]),
    ("fleet.size=[", ["--set fleet.size=[", "fix its brackets"]),
    ("fleet.size={a: 1, a: 2}", ["'a' is given twice"]),
    ("name=*x", ["aliases are not supported"]),
    ("fleet..size=3", ["--set fleet..size: has an empty name"]),
    ("fleet.size.=3", ["--set fleet.size.: has an empty name"]),
    ("rounds.more=3", ["--set rounds.more: rounds is 100 and has no field 'more'", "set rounds as a whole"]),
    ("fleet.size.a.b=3", ["--set fleet.size.a.b: fleet.size is 10 and has no field 'a'"]),
    ("name.kind=3", ["--set name.kind: name is 'paper' and has no field 'kind'"]),
    ("fleet.devices[4].count=3", ["fleet.devices has no entry 4; use one of 0 to 3"]),
    ("fleet.devices.first.count=3", ["fleet.devices has no entry first"]),
    ("fleet.devices.².count=3", ["fleet.devices has no entry ²"]),
    (f"fleet.devices[{'9' * 500}]=3", ["fleet.devices has no entry 999"]),
    ("fleet.devices[-1].count=3", ["fleet.devices[-1] is not a field"]),
    ("rewards.penalty[3]=3", ["rewards.penalty has no entry 3; use one of 0 to 2"]),
    # unknown keys, level by level
    ("nothing=3", ["nothing is not a field; use one of name, description, rounds"]),
    ("flet.size=3", ["flet is not a field; write 'fleet'"]),
    ("fleet.sise=3", ["fleet.sise is not a field; write 'size'"]),
    ("fleet.defaults.frequency_max=3 GHz", ["fleet.defaults.frequency_max is not", "write 'frequency_max_hz'"]),
    ("fleet.devices[2].conut=3", ["fleet.devices[2].conut is not a field; write 'count'"]),
    ("workload.rate=3", ["workload.rate is not a field; use one of request_rate_per_s, arrivals"]),
    ("workload.arrivals.rate=3", ["workload.arrivals.rate is not a field of the kind 'constant'; remove it"]),
    ("channel.fading.kdb=3", ["channel.fading.kdb is not a field of the kind 'rician'; write 'k_db'"]),
    ("accuracy.mapping.kapa=[1, 1, 1]", ["accuracy.mapping.kapa is not", "write 'kappa'"]),
    ("limits.queue=3", ["limits.queue is not a field; write 'queue_max'"]),
    ("shield.on=3", ["shield.on is not a field; use one of enabled"]),
    ("extends=jetson", ["extends is not a field"]),
    # kinds
    ("channel.fading=ricean", ["channel.fading has the kind 'ricean', which is not known; write 'rician'"]),
    ("channel.fading={k_db: 3, kind: [1]}", ["channel.fading has the kind [1]"]),
    ("channel.fading={kind: null}", ["channel.fading has the kind empty", "static, rayleigh, rician, trace"]),
    ("channel.fading=rician", ["channel.fading.k_db is missing; give it a value"]),
    ("channel.fading=3", ["channel.fading is 3; write {kind: ...} with one of static"]),
    ("channel.fading=", ["channel.fading is empty; write {kind: ...}"]),
    ("workload.arrivals=trace", ["workload.arrivals.path is missing"]),
    ("workload.arrivals={kind: trace, path: 3}", ["workload.arrivals.path is 3; write the path of a file"]),
    ("workload.arrivals={kind: trace, path: x, repeat: 3}", ["workload.arrivals.repeat is 3; write true or false"]),
    ("accuracy.mapping=linear", ["accuracy.mapping has the kind 'linear'", "log-exponential"]),
    ("accuracy.mapping=log-rational", ["accuracy.mapping.kappa is missing"]),
    # numbers that are none, or not finite
    ("rounds=true", ["rounds is true; write a number"]),
    ("rounds=many", ["rounds is 'many'; write a whole number"]),
    ("rounds=1.5", ["rounds is 1.5; write a whole number"]),
    ("rounds=0", ["rounds is 0; write a number >= 1"]),
    ("rounds=[1]", ["rounds is [1]; write a whole number"]),
    ("rounds={}", ["rounds is {}; write a whole number"]),
    ("limits.round_max_s=yes", ["limits.round_max_s is true, not a duration; write a number in s, or 5 s"]),
    ("limits.queue_max=lots", ["limits.queue_max is 'lots', not a number; write one such as 200"]),
    ("limits.queue_max=1.000.000", ["limits.queue_max has the unit '.000'"]),
    ("limits.queue_max=.nan", ["limits.queue_max is nan, not a finite number; write"]),
    ("limits.round_max_s=.inf", ["limits.round_max_s is inf, not a finite number; write a number in s"]),
    ("limits.round_max_s=1e999", ["limits.round_max_s is inf, not a finite number"]),
    ("accuracy.pretrained=.nan", ["accuracy.pretrained is nan; write a finite number"]),
    ("accuracy.pretrained=true", ["accuracy.pretrained is true; write a number"]),
    ("accuracy.pretrained=1.2", ["accuracy.pretrained is 1.2; write a number <= 1"]),
    ("accuracy.pretrained=-.inf", ["accuracy.pretrained is -inf; write a finite number"]),
    ("shield.outage=0", ["shield.outage is 0; write a number > 0"]),
    ("shield.outage=0.5", ["shield.outage is 0.5; write a number < 0.5"]),
    ("shield.enabled=perhaps", ["shield.enabled is 'perhaps'; write true or false"]),
    ("rewards.penalty=[.nan, 0, 0]", ["rewards.penalty[0] is nan; write a finite number"]),
    ("rewards.penalty=[0, 0, 1e300]", ["rewards.penalty[2] is 1e+300; write a number <= 1e+09"]),
    (f"training.update_bits={10**400}", ["training.update_bits is 1000", "not a finite number"]),
    (f"accuracy.pretrained={10**400}", ["accuracy.pretrained is 1000", "write a number"]),
    # units and signs
    ("channel.bandwidth_hz=1 MB", ["channel.bandwidth_hz has the unit 'MB'", "use one of Hz, kHz, MHz, GHz"]),
    ("channel.bandwidth_hz=1 mhz", ["channel.bandwidth_hz has the unit 'mhz'", "use one of Hz, kHz, MHz, GHz"]),
    ("channel.noise_dbm_per_hz=-174 dB", ["channel.noise_dbm_per_hz has the unit 'dB'", "use one of dBm/Hz"]),
    ("channel.fading.k_db=12 dBm", ["channel.fading.k_db has the unit 'dBm'", "use one of dB"]),
    ("channel.noise_figure_db=-5", ["channel.noise_figure_db is -5, outside", "such as 5 dB"]),
    ("channel.loss_exponent=0", ["channel.loss_exponent is 0; write a number > 0"]),
    ("fleet.defaults.frequency_max_hz=3", ["fleet.defaults.frequency_max_hz is 3, outside", "such as 2 GHz"]),
    ("fleet.defaults.frequency_max_hz=3 W", ["fleet.defaults.frequency_max_hz has the unit 'W'", "Hz"]),
    ("fleet.defaults.rate_factor=2 GHz", ["fleet.defaults.rate_factor has the unit 'GHz'", "the number alone"]),
    ("fleet.devices[3].distance_m=-5", ["fleet.devices[3].distance_m is -5, outside", "such as 800 m"]),
    ("workload.request_rate_per_s=-4", ["workload.request_rate_per_s is -4, outside what a rate can be (> 0", "6 /s"]),
    ("workload.request_rate_per_s=0", ["workload.request_rate_per_s is 0, outside"]),
    ("training.iterations=-1", ["training.iterations is -1; write a number >= 1"]),
    ("limits.idle_round_s=0", ["limits.idle_round_s is 0, outside"]),
    # ranges
    (
        "fleet.defaults.distance_m={uniform: [9, 3]}",
        ["fleet.defaults.distance_m has its bounds in the wrong order", "[3, 9]"],
    ),
    ("fleet.defaults.distance_m={uniform: [9]}", ["fleet.defaults.distance_m is {'uniform': [9]}; write a number or"]),
    ("fleet.defaults.distance_m={uniform: [a, b]}", ["fleet.defaults.distance_m is 'a', not a distance"]),
    (
        "fleet.defaults.distance_m={normal: [1, 2]}",
        ["fleet.defaults.distance_m is {'normal'", "{uniform: [low, high]}"],
    ),
    (
        "fleet.defaults.frequency_min_hz=4 GHz",
        ["fleet.defaults.frequency_min_hz is up to 4e+09, above frequency_max_hz"],
    ),
    ("fleet.devices[1].frequency_max_hz=0.5 GHz", ["frequency_min_hz is up to 1e+09", "raise frequency_max_hz"]),
    (
        "fleet.defaults.frequency_min_hz={uniform: [1 GHz, 3.1 GHz]}",
        ["fleet.defaults.frequency_min_hz is up to 3.1e+09, above frequency_max_hz = 3e+09; lower it or raise"],
    ),
    ("fleet.devices[2].power_min_w=2", ["fleet.devices[2].power_min_w is up to 2, above power_max_w = 1; lower it"]),
    ("limits.round_floor_s=6", ["limits.round_floor_s is 6, above round_max_s = 5; lower it or raise that"]),
    ("limits.idle_round_s=6", ["limits.idle_round_s is 6, above round_max_s = 5; lower it or raise that"]),
    # lists
    ("accuracy.mapping.kappa=[1, 2]", ["accuracy.mapping.kappa[2] is missing; give it a value"]),
    ("accuracy.mapping.kappa=[1, 2, 3, 4]", ["accuracy.mapping.kappa is [1, 2, 3, 4]; the list takes at most 3"]),
    ("accuracy.mapping.kappa=[1, -2, 3]", ["accuracy.mapping.kappa[1] is -2; write a number >= 0"]),
    ("accuracy.mapping.kappa=[1, a, 3]", ["accuracy.mapping.kappa[1] is 'a'; write a number"]),
    ("accuracy.mapping.kappa=1", ["accuracy.mapping.kappa is 1; write a list"]),
    ("rewards.penalty=[]", ["rewards.penalty[0] is missing", "2 more after this one"]),
    # the fleet
    ("fleet=3", ["fleet is 3; write its fields"]),
    ("fleet.size=0", ["fleet.size is 0; write a number >= 1"]),
    ("fleet.size=-3", ["fleet.size is -3; write a number >= 1"]),
    ("fleet.size=2.5", ["fleet.size is 2.5; write a whole number"]),
    ("fleet.size=false", ["fleet.size is false; write a number"]),
    ("fleet.size=1000000000000", ["fleet.size is 1000000000000; write a number <= 10000000"]),
    ("fleet.seed=-1", ["fleet.seed is -1; write a number >= 0"]),
    (f"fleet.seed={2**63}", [f"fleet.seed is {2**63}; write a number < {2**63}"]),
    ("fleet.devices=[]", ["fleet.devices is []; write a list of device groups"]),
    ("fleet.devices=", ["fleet.devices is empty; write a list of device groups"]),
    ("fleet.devices={count: 3}", ["fleet.devices is {'count': 3}; write a list of device groups"]),
    ("fleet.devices=[{}, tx2]", ["fleet.devices[1] is 'tx2'; write the fields of a device group"]),
    ("fleet.devices[0]=", ["fleet.devices[0] is empty; write the fields of a device group"]),
    ("fleet.defaults=3", ["fleet.defaults is 3; write below it"]),
    ("fleet.defaults=[1]", ["fleet.defaults is [1]; write below it"]),
    ("fleet.devices[0].count=three", ["fleet.devices[0].count is 'three'; write a whole number"]),
    ("fleet.devices[0].count=0", ["fleet.devices[0].count is 0; write a number >= 1"]),
    ("fleet.devices[0].name=3", ["fleet.devices[0].name is 3; write text"]),
    ("fleet.devices[0].name=''", ["fleet.devices[0].name is ''; write a name"]),
    ("fleet.devices[0].profile=tx2", ["fleet.devices[0].profile is 'tx2', which is not known; "]),
    ("fleet.devices[0].profile=[1]", ["fleet.devices[0].profile is [1], which is not known; use one of jetson-tx2"]),
    ("fleet.defaults.profile=jetson-tx", ["fleet.defaults.profile is 'jetson-tx'", "write 'jetson-tx2'"]),
    ("fleet.defaults={distance_m: null}", ["fleet.defaults.distance_m is empty, not a distance; write"]),
    ("fleet.devices[0].conversion=two", ["fleet.devices[0].conversion is 'two'; write one-to-one, {many-to-one: 2}"]),
    (
        "fleet.devices[0].conversion={many-to-one: 0}",
        ["fleet.devices[0].conversion is many-to-one: 0", "from 1 to 1e6"],
    ),
    ("fleet.devices[0].conversion={one-to-many: .nan}", ["conversion is one-to-many: nan"]),
    ("fleet.devices[0].conversion={one-to-many: true}", ["conversion is one-to-many: true"]),
    (f"fleet.devices[0].conversion={{one-to-many: {10**400}}}", ["conversion is one-to-many: 1000"]),
    ("fleet.devices[0].conversion={samples_per_request: -1}", ["conversion.samples_per_request is -1; write"]),
    # words
    ("observation=some", ["observation is 'some'; write 'minimal' or 'full'"]),
    ("description=[1]", ["description is [1]; write text"]),
    ("name=", ["name is empty; write text"]),
]


@pytest.mark.parametrize(("override", "says"), OVERRIDES, ids=[override[:50] for override, _ in OVERRIDES])
def test_override(override, says):
    sentence = refusal("paper", [*PLAIN_TEXT, override])
    assert sentence.startswith("preset paper: ")
    for part in says:
        assert part in sentence


def test_a_count_that_is_wrong_is_refused_as_a_count():
    for wrong in (0, -3, "three", True, 1.5, 10**12):
        assert "jetson: fleet.devices[1].count is" in refusal("jetson", {"fleet.devices[1].count": wrong})


def test_a_field_that_no_group_has_names_the_ways_to_give_it(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("name: x\nfleet: {devices: [{profile: jetson-tx2}, {profile: jetson-tx2, distance_m: 3}]}")
    sentence = refusal(path)
    assert f"{path}: fleet.devices[0].power_min_w is missing; give it there, in fleet.defaults or by a prof" in sentence


def test_a_mistake_in_the_defaults_is_one_mistake():
    assert "more after this one" not in refusal("paper", ["fleet.defaults.distance_m=far"])
    assert "(1 more after this one)" in refusal("paper", ["fleet.defaults.distance_m=far", "rounds=0"])


# A recorded trace for the paper's ten devices and 500 s, and what the sentence about it must say.
HEADER = "time_s," + ",".join(map(str, range(10)))
ONES = ",1" * 10
TRACES = {
    "missing": (None, ["there is no such file", "relative to the scenario file"]),
    "a folder": ("folder", ["cannot be read (Is a directory)"]),
    "empty": ("", ["does not begin with the column 'time_s'"]),
    "no header": (f"0{ONES}\n10{ONES}\n", ["does not begin with the column 'time_s'"]),
    "header only": (HEADER, ["holds 0 rows of values; record at least two"]),
    "one row": (f"{HEADER}\n0{ONES}\n", ["holds 1 rows of values"]),
    "too short": (f"{HEADER}\n0{ONES}\n10{ONES}\n", ["covers 20 s, but an episode can last 500 s", "repeat: true"]),
    "too few columns": ("time_s,0\n0,1\n10,1\n", ["has 1 device columns for 10 devices; add columns"]),
    "a short row": (f"{HEADER}\n0{ONES}\n\n10,1\n", [", line 4: has 2 values for 11 columns; complete"]),
    "not a number": (f"{HEADER}\n0{ONES}\n10{ONES[:-1]}x\n", [", line 3: 'x' is not a number; fix that cell"]),
    "an empty cell": (f"{HEADER}\n0{ONES}\n10{ONES[:-1]}\n", [", line 3: '' is not a number"]),
    "NaN": (f"{HEADER}\n0{ONES}\n10{ONES[:-1]}nan\n", [", line 3: 'nan' is not a finite number", "fill the gap"]),
    "infinite": (f"{HEADER}\n0{ONES[:-1]}-inf\n10{ONES}\n", [", line 2: '-inf' is not a finite number"]),
    "beyond reason": (f"{HEADER}\n0{ONES[:-1]}1e300\n10{ONES}\n", [", line 2: '1e300' is not a finite number below"]),
    "unequal steps": (f"{HEADER}\n0{ONES}\n10{ONES}\n25{ONES}\n", [", line 4: time_s does not grow in equal steps"]),
    "steps back": (f"{HEADER}\n10{ONES}\n0{ONES}\n", [", line 3: time_s does not grow"]),
    "no steps": (f"{HEADER}\n0{ONES}\n0{ONES}\n", [", line 3: time_s does not grow"]),
    "not text": ("binary", ["cannot be read as CSV", "save it as UTF-8"]),
}


@pytest.mark.parametrize(("text", "says"), TRACES.values(), ids=TRACES)
@pytest.mark.parametrize("field", ["workload.arrivals", "channel.fading"])
def test_trace(text, says, field, tmp_path):
    trace, path = tmp_path / "trace.csv", tmp_path / "my.yaml"
    if text == "binary":
        trace.write_bytes(b"\xff\xfe\x00")
    elif text == "folder":
        trace.mkdir()
    elif text is not None:
        trace.write_text(text)
    part, plug = field.split(".")
    path.write_text(f"extends: paper\n{part}: {{{plug}: {{kind: trace, path: trace.csv}}}}")
    sentence = refusal(path)
    assert sentence.startswith(f"{path}: {field}.path: {trace}")
    for part in says:
        assert part in sentence


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("workload.arrivals", "-1", ", line 3: -1 for device 9 is below 0; write requests per second."),
        ("channel.fading", "-999", ", line 3: -999 for device 9 is below -400; write channel gains in dB"),
    ],
)
def test_trace_below_what_can_be(field, value, says, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEADER}\n0{ONES}\n10{ONES[:-1]}{value}\n")
    assert says in refusal("paper", {field: {"kind": "trace", "path": str(trace)}})


def test_trace_with_a_path_no_file_can_have():
    assert "workload.arrivals.path" in refusal("paper", {"workload.arrivals": {"kind": "trace", "path": "a\0b"}})


# Devices nobody could keep stable, one for each cause that is checked.
UNSERVABLE = {
    "computing": (
        ["workload.request_rate_per_s=200"],
        ["200 requests/s of 30 Mcycles need 6 GHz and it has 3 GHz; lower workload.request_rate_per_s or"],
    ),
    "computing, of one device": (
        ["fleet.devices[1].inference_cycles_per_request=900 Mcycles"],
        ["fleet.devices[1]: device 1 (device-1)", "5 requests/s of 900 Mcycles need 4.5 GHz and it has 3 GHz"],
    ),
    "computing, unshielded": (
        ["workload.request_rate_per_s=200", "shield.enabled=false"],
        ["need 6 GHz and it has 3 GHz", "raise fleet.devices[0].frequency_max_hz"],
    ),
    "queue": (
        ["limits.queue_max=9"],
        ["10 requests arrive in the shortest round and its queue holds 9; lower", "limits.round_floor_s", "queue_max"],
    ),
    "queue without a slot": (
        ["limits.queue_max=9", "limits.round_floor_s=0", "shield.enabled=false"],
        ["10 requests arrive in the shortest round and its queue holds 9", "or limits.idle_round_s, or raise"],
    ),
    "idle round": (
        ["limits.queue_max=20", "limits.idle_round_s=5"],
        ["up to 25 requests arrive in a round of 5 s", "serve only 20 in the shortest", "limits.idle_round_s"],
    ),
    "idle round, of one device": (
        ["limits.idle_round_s=5", "fleet.devices[3].inference_cycles_per_request=300 Mcycles"],
        ["device 3 (device-3)", "up to 25 requests arrive in a round of 5 s", "serve only 20 in the shortest"],
    ),
    "idle round, in a Poisson tail": (
        ["workload.arrivals=poisson", "limits.queue_max=30", "limits.idle_round_s=5"],
        ["up to 49 requests arrive in a round of 5 s and it is sure to hold and serve only 30"],
    ),
    "upload": (
        ["fleet.devices[1].power_max_w=100 mW", "training.update_bits=2 MB"],
        ["device 1 ", "even alone at full power, and 2.5 s of a round are kept for uploads", "training.update_bits"],
    ),
    "upload across the world": (["fleet.defaults.distance_m=10000 km"], ["even alone at full power", "distance_m"]),
    "upload, unshielded": (
        ["training.update_bits=2 GB", "shield.enabled=false"],
        ["its upload takes", "and a round lasts 5 s at most", "lower training.update_bits"],
    ),
    "upload across the world, unshielded": (
        ["fleet.defaults.distance_m=10000 km", "channel.loss_exponent=10", "shield.enabled=false"],
        ["its upload takes", "and a round lasts 5 s at most", "fleet.devices[0].distance_m"],
    ),
    "one sample": (
        ["training.iterations=300"],
        ["training on one sample (30 Mcycles, 300 times) takes 3 s and 2.5 s of a round are kept for it"],
    ),
    "never trains": (
        ["workload.request_rate_per_s=30", "limits.overflow=discard"],
        ["it could never train, since 210 requests may be waiting", "serve only 200 in the shortest; lower workload."],
    ),
    "data, unshielded": (
        ["training.iterations=20", "shield.enabled=false"],
        ["device 3 (", "takes 6 GHz and it has 3 GHz, so its data grow without bound", "limits.overflow: discard)"],
    ),
}


@pytest.mark.parametrize(("overrides", "says"), UNSERVABLE.values(), ids=UNSERVABLE)
def test_unservable(overrides, says):
    sentence = refusal("paper", [*PLAIN_TEXT, *overrides])
    assert re.match(
        r"preset paper: fleet\.devices\[(\d)\]: device (\d) \(device-\2\) cannot be served: .*\d.*; \w", sentence
    )
    for part in says:
        assert part in sentence


def test_unservable_by_a_trace_points_at_the_trace(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEADER}\n0{ONES[:-1]}1000\n250{ONES[:-1]}1000\n")
    sentence = refusal("paper", {"workload.arrivals": {"kind": "trace", "path": str(trace)}})
    assert "device 9 (device-9)" in sentence
    assert "lower the rates in workload.arrivals.path or" in sentence
    trace.write_text(f"{HEADER}\n0{',-300' * 10}\n250{',-300' * 10}\n")
    for shield in (True, False):
        sentence = refusal(
            "paper", {**PLAIN, "channel.fading": {"kind": "trace", "path": str(trace)}, "shield.enabled": shield}
        )
        assert "record better gains in channel.fading.path" in sentence


@pytest.mark.parametrize(
    "overrides",
    [
        ["limits.idle_round_s=5"],
        ["limits.round_floor_s=5"],
        ["limits.queue_max=20", "limits.idle_round_s=4", "limits.round_floor_s=4", "shield.enabled=false"],
        ["workload.request_rate_per_s=100", "shield.enabled=false", "training.iterations=1", "fleet.devices=[{}]"],
    ],
)
def test_a_limit_that_is_just_met_is_served(overrides):
    build_system(load_scenario("paper", [*PLAIN_TEXT, *overrides]))
