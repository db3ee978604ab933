"""A front as a table and a figure, and the policies that stand out on it."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.errors import InputError
from tandem.feel.constraints import CONSTRAINTS
from tandem.objectives import to_maximised
from tandem.pareto import hypervolume, sparsity
from tandem.runs import EpisodeMeans, Front, PolicyRecord
from tandem.runs.evaluation import Evaluation
from tandem.runs.front import (
    describe_discarded,
    describe_tolerance,
    landmarks,
    measured_fields,
    sorted_by,
    write_front_csv,
)
from tandem.runs.plot_front import write_front_figure
from tandem.runs.run import front_document

REFERENCE = (0.0, 5.0, 44.0)
POINTS = ((0.9, 2.0, 20.0), (0.5, 0.5, 22.0), (0.5, 2.5, 4.0), (0.85, 0.7, 6.0))


def make_front(
    *objectives: tuple[float, float, float],
    violations: tuple[float, ...] = (),
    discarded: tuple[float | None, ...] = (),
) -> Front:
    rates = violations or (0.0,) * len(objectives)
    shares = discarded or (0.0,) * len(objectives)
    return Front(
        tuple(
            PolicyRecord(
                index=index,
                objectives=(accuracy, latency_s, energy_j),
                half_width=(0.01, None, 0.3),
                rewards=(accuracy, -latency_s, -energy_j),
                violation_rate=rate,
                violation_rates=(rate, *(0.0,) * 7),
                discarded_share=share,
                preference=(1 / 3, 0.5, 1 / 6),
                stage="extension",
                improved="energy_j" if index % 2 else None,
                network=index,
            )
            for index, ((accuracy, latency_s, energy_j), rate, share) in enumerate(
                zip(objectives, rates, shares, strict=True)
            )
        ),
        REFERENCE,
        tolerance=0.01,
    )


def test_landmarks() -> None:
    assert landmarks(make_front(*POINTS), 0.01) == {
        "highest accuracy": 0,
        "lowest latency": 1,
        "lowest energy": 2,
        "knee": 3,
    }


def test_a_policy_that_breaks_constraints_is_no_landmark_unless_all_do() -> None:
    assert landmarks(make_front(*POINTS, violations=(0.2, 0, 0, 0)), 0.01)["highest accuracy"] == 3
    assert landmarks(make_front(*POINTS, violations=(0.2, 0.1, 0.1, 0.1)), 0.01)["highest accuracy"] == 0


def test_csv_round_trip(tmp_path: Path) -> None:
    front = make_front(*POINTS, violations=(0.1, 0, 1 / 3, 0), discarded=(0.0, 1 / 3, None, 0.5))
    write_front_csv(tmp_path / "front.csv", front)
    with (tmp_path / "front.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("accuracy", "latency_s", "energy_j")
    back = [
        PolicyRecord(
            index=int(row["index"]),
            objectives=tuple(float(row[name]) for name in names),
            half_width=tuple(float(text) if (text := row[f"{name}_half_width_95"]) else None for name in names),
            rewards=tuple(float(row[f"reward_{name}"]) for name in ("accuracy", "latency", "energy")),
            violation_rate=float(row["violation_rate"]),
            violation_rates=tuple(float(row[f"violation_rate_{name}"]) for name in CONSTRAINTS),
            discarded_share=float(text) if (text := row["discarded_share"]) else None,
            preference=tuple(float(row[f"preference_{name}"]) for name in ("accuracy", "latency", "energy")),
            stage=row["stage"],
            improved=row["improved"] or None,
            network=int(row["network"]),
        )
        for row in rows
    ]
    assert tuple(back) == front.policies
    assert [path.name for path in tmp_path.iterdir()] == ["front.csv"]


@pytest.mark.parametrize(
    ("discarded", "made", "share"), [((3.0, 1.0), (6.0, 10.0), 0.25), ((0.0, 0.0), (6.0, 10.0), 0), ((0.0,), (0.0,), 0)]
)
def test_discarded_samples_are_a_share_of_those_made(
    discarded: tuple[float, ...], made: tuple[float, ...], share: float
) -> None:
    seeds = len(made)
    one = np.zeros(seeds)
    means = EpisodeMeans(
        objectives=np.zeros((seeds, 3)),
        reward=np.zeros((seeds, 3)),
        violated=np.zeros((seeds, 8)),
        violated_any=one,
        dropped=one,
        arrived=one,
        converted=np.array(made),
        discarded=np.array(discarded),
        trainers=one,
        duration_s=one,
    )
    assert measured_fields(means)["discarded_share"] == share


def test_a_record_without_discarded_samples_is_read() -> None:
    (policy,) = make_front(POINTS[0], discarded=(0.25,)).policies
    document = policy.document()
    assert PolicyRecord.from_document(document) == policy
    del document["discarded_share"]  # as in a front.json that was written before it was measured
    older = PolicyRecord.from_document(document)
    assert older == dataclasses.replace(policy, discarded_share=None)
    assert older.document()["discarded_share"] is None


def test_discarded_samples_in_words() -> None:
    for shares, discards, words in (
        ((0.0, 0.0), False, "0.0%"),
        ((0.0, 0.125), True, "0.0% to 12.5%"),
        ((0.3, 0.3), True, "30.0%"),
        ((None, None), False, "unknown"),
    ):
        front = make_front(*POINTS[:2], discarded=shares)
        assert (front.discards, describe_discarded(front)) == (discards, words)


def test_the_best_comes_first() -> None:
    front = make_front(*POINTS)
    assert [policy.index for policy in sorted_by(front, "accuracy")][:2] == [0, 3]
    assert [policy.index for policy in sorted_by(front, "latency")] == [1, 3, 0, 2]
    assert [policy.index for policy in sorted_by(front, "energy")] == [2, 3, 0, 1]


@pytest.mark.parametrize("count", [1, 5, 150])
def test_figure_is_a_picture(count: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    points = [(0.2 + 0.6 * a, 5 * b, 40 * c) for a, b, c in rng.random((count, 3))]
    front = make_front(*points, violations=tuple(0.02 * (n % 5 == 4) for n in range(count)))
    write_front_figure(tmp_path / "front.png", "a front", front, 0.01)
    picture = (tmp_path / "front.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 50_000


def test_figure_for_print(tmp_path: Path) -> None:
    write_front_figure(tmp_path / "front.svg", "a front", make_front(*POINTS), 0.01)
    text = (tmp_path / "front.svg").read_text()
    assert "<svg" in text
    with pytest.raises(InputError, match=r"\.png, \.pdf or \.svg"):
        write_front_figure(tmp_path / "front.doc", "a front", make_front(*POINTS), 0.01)


def test_violations_are_counted() -> None:
    front = make_front(*POINTS, violations=(0.2, 0.01, 0.0, 0.011))
    evaluation = Evaluation(front, (0, 1), np.repeat(front.points[:, None], 2, axis=1))
    assert evaluation.safe == 2
    assert evaluation.worst_violation_rate["all"] == evaluation.worst_violation_rate["C1"] == 0.2
    assert evaluation.worst_violation_rate["C2"] == 0


def summary_of(front: Front) -> dict[str, Any]:
    return Evaluation(front, (0, 1), np.repeat(front.points[:, None], 2, axis=1)).summary()


MEASURES = ("hypervolume", "hypervolume_interval_95", "sparsity", "expected_utility", "cardinality", "within_tolerance")


def test_only_policies_within_the_tolerance_count() -> None:
    """A policy that is too often in violation changes no measure, even if it dominates all others."""
    best = (0.95, 0.1, 1.0)
    front = make_front(*POINTS[:2], best, *POINTS[2:], violations=(0.0, 0.01, 0.2, 0.0, 0.0))
    alone = make_front(*POINTS)
    assert front.counted.tolist() == [True, True, False, True, True]
    assert (front.hypervolume, front.sparsity, front.cardinality) == (alone.hypervolume, alone.sparsity, 4)
    assert {name: summary_of(front)[name] for name in MEASURES} == {name: summary_of(alone)[name] for name in MEASURES}
    assert front.hypervolume < make_front(*POINTS, best).hypervolume
    assert alone.hypervolume == hypervolume(alone.points, to_maximised(REFERENCE))
    assert alone.sparsity == sparsity(alone.points)


def test_a_front_without_a_policy_within_the_tolerance_has_no_hypervolume() -> None:
    front = make_front(*POINTS, violations=(0.2, 0.1, 0.1, 0.1))
    summary = summary_of(front)
    assert [summary[name] for name in MEASURES] == [0, [0, 0], 0, 0, 0, 0]
    assert set(summary["landmarks"].values()) == {0, 1, 2, 3}  # there is nothing else to show
    assert front_document(front, (0, 1))["hypervolume"] == 0


def test_how_many_policies_count_in_words() -> None:
    assert describe_tolerance(make_front(*POINTS)) is None
    some, one = make_front(*POINTS, violations=(0.2, 0, 0, 0.02)), make_front(POINTS[0], violations=(0.2,))
    assert describe_tolerance(some).startswith("2 of 4 policies are within the tolerance of 1 % of rounds in violation")
    assert describe_tolerance(one).startswith("The policy is not within the tolerance of 1 % of rounds in violation")


def test_figure_marks_policies_that_do_not_count(tmp_path: Path) -> None:
    """Such a policy makes no other one appear dominated."""
    front = make_front(*POINTS, (0.95, 0.1, 1.0), violations=(0, 0, 0, 0, 0.2))
    write_front_figure(tmp_path / "front.svg", "a front", front, 0.01)
    text = (tmp_path / "front.svg").read_text()
    assert "not dominated (4)" in text
    assert "not counted (1)" in text
    write_front_figure(tmp_path / "none.svg", "a front", make_front(POINTS[0], violations=(0.2,)), 0.01)
    assert "not counted (1)" in (tmp_path / "none.svg").read_text()
