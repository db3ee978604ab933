"""Recorded rates and gains: read, repeated, found beside the scenario that names them (refused: test_bad_input)."""

from pathlib import Path

import numpy as np
import pytest

from tandem.feel import build_system
from tandem.scenario import dump_scenario, load_scenario, read_trace


@pytest.fixture
def write(tmp_path):
    def write(text, name="trace.csv", encoding="utf-8"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding=encoding)
        return path

    return write


def rates(devices=10, seconds=500, step_s=10):
    header = ",".join(["time_s", *map(str, range(devices))])
    rows = (",".join([str(t), *(f"{1 + n / 10:g}" for n in range(devices))]) for t in range(0, seconds, step_s))
    return "\n".join([header, *rows, ""])


def read(path, **changes):
    settings = {
        "devices": 2,
        "duration_s": 30.0,
        "repeat": False,
        "lowest": 0.0,
        "meaning": "requests per second",
        "field": "workload.arrivals.path",
        "source": "my.yaml",
    }
    return read_trace(path, **{**settings, **changes})


class TestRead:
    def test_values_and_step(self, write):
        trace = read(write("time_s,0,1\n0,1,2\n10,3,4\n20,5,6\n"))
        assert trace.step_s == 10.0
        np.testing.assert_array_equal(trace.values, [[1, 2], [3, 4], [5, 6]])

    @pytest.mark.parametrize(
        "text",
        [
            "time_s,0,1\r\n0,1,2\r\n10,3,4\r\n20,5,6",
            "time_s, 0, 1\n0, 1, 2\n\n10, 3, 4\n20, 5, 6\n\n",
            'time_s,"a","b"\n"0","1","2"\n10,3,4\n20,5e0,6.0\n',
            "time_s,0,1,more\n0,1,2,9\n10,3,4,9\n20,5,6,9\n",
            "time_s,0,1\n1763182800.1,1,2\n1763182810.1,3,4\n1763182820.1,5,6\n",
        ],
        ids=["windows", "spaces and blank lines", "quotes", "a column to spare", "since 1970"],
    )
    def test_as_other_programs_write_it(self, write, text):
        trace = read(write(text), duration_s=29.0)
        assert trace.step_s == pytest.approx(10)
        np.testing.assert_array_equal(trace.values, [[1, 2], [3, 4], [5, 6]])

    def test_byte_order_mark(self, write):
        assert read(write("time_s,0,1\n0,1,2\n10,3,4\n20,5,6\n", encoding="utf-8-sig")).step_s == 10.0

    def test_fractional_steps(self, write):
        text = "time_s,0,1\n" + "".join(f"{0.1 * n!r},1,1\n" for n in range(300))
        assert read(write(text), duration_s=30).step_s == pytest.approx(0.1)

    def test_covers_just_as_long_as_the_episode(self, write):
        assert not read(write("time_s,0,1\n0,1,2\n10,3,4\n20,5,6\n"), duration_s=30.0).repeat

    def test_a_short_one_may_repeat(self, write):
        assert read(write("time_s,0,1\n0,1,2\n10,3,4\n"), repeat=True).repeat


class TestInAScenario:
    @pytest.mark.parametrize("part", ["workload: {arrivals: ", "channel: {fading: "])
    def test_is_found_beside_the_scenario(self, write, part):
        write(rates(), "data/trace.csv")
        path = write(f"extends: paper\n{part}{{kind: trace, path: data/trace.csv}}}}", "my.yaml")
        scenario = load_scenario(path)
        plug = scenario.workload.arrivals if "arrivals" in part else scenario.channel.fading
        assert plug.path == path.parent / "data" / "trace.csv"
        assert plug.path.exists()

    def test_is_found_from_another_folder(self, write, monkeypatch):
        write(rates(), "work/trace.csv")
        folder = write("extends: paper\nworkload: {arrivals: {kind: trace, path: trace.csv}}", "work/my.yaml").parent
        monkeypatch.chdir(folder.parent)
        scenario = load_scenario(Path("work") / "my.yaml")
        monkeypatch.chdir("/")
        assert build_system(scenario).arrivals.mean_rate() == pytest.approx(1 + np.arange(10) / 10, rel=1e-5)

    def test_is_found_again_from_where_the_scenario_was_written_down(self, write, monkeypatch):
        monkeypatch.chdir(write(rates(), "here/rates.csv").parent)
        scenario = load_scenario("paper", ["workload.arrivals={kind: trace, path: rates.csv}"])
        kept = write(dump_scenario(scenario), "runs/1/scenario.yaml")
        again = load_scenario(kept)
        assert again == scenario
        assert build_system(again).size == 10

    def test_belongs_to_the_file_that_names_it(self, write):
        write("extends: paper\nworkload: {arrivals: {kind: trace, path: base.csv}}", "base/base.yaml")
        same = load_scenario(write("extends: base/base.yaml", "same.yaml"))
        own = load_scenario(write("extends: base/base.yaml\nworkload: {arrivals: {path: own.csv}}", "own.yaml"))
        assert same.workload.arrivals.path.parent.name == "base"
        assert own.workload.arrivals.path == write("", "own.csv")

    def test_an_override_is_relative_to_where_it_is_typed(self, write, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        scenario = load_scenario("paper", ["workload.arrivals.kind=trace", "workload.arrivals.path=rates.csv"])
        assert scenario.workload.arrivals.path == tmp_path / "rates.csv"

    def test_takes_the_place_of_the_rate(self, write):
        path = write(rates())
        arrivals = f"workload.arrivals={{kind: trace, path: {path}}}"
        served = [
            build_system(load_scenario("paper", [arrivals, f"workload.request_rate_per_s={rate}"])) for rate in (1, 2)
        ]
        np.testing.assert_array_equal(served[0].arrivals.mean_rate(), served[1].arrivals.mean_rate())

    def test_gains_take_the_place_of_the_distance(self, write):
        path = write(rates().replace(",1", ",-118"))
        system = build_system(load_scenario("paper", [f"channel.fading={{kind: trace, path: {path}}}"]))
        assert np.all(system.channel.worst_gain(0.01) > 1)
