"""Comparison of estimated with measured accuracy under the learned policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.experiments.plotting import label
from tandem.experiments.report import Table
from tandem.experiments.tables import Rows, group_rows
from tandem.experiments.trial import TrialResult
from tandem.stats import mean

METRICS = ("rounds", "measured", "estimated", "correlation", "rmse", "bias")
ALL, ROUND_MEANS = "all", "round means"  # scopes, beside the names of devices
NOTE = (
    "Estimated and measured accuracy are compared in every round of every device, under the best policy in each "
    "objective and the knee of each front."
)


def fidelity_rows(groups: Iterable[tuple[str, str, Sequence[TrialResult]]]) -> Rows:
    """Return rows of metrics for each algorithm and reward source: over all rounds, round means, and by device."""
    rows = []
    for algorithm, reward_source, results in groups:
        for result in results:
            fidelity = result.fidelity or {}
            scopes = {
                ALL: fidelity,
                ROUND_MEANS: fidelity.get("fleet_rounds", {}),
                **fidelity.get("by_device", {}),
            }
            name = {"algorithm": algorithm, "reward_source": reward_source, "seed": result.trial.seed}
            for scope, metrics in scopes.items():
                rows.append({**name, "scope": scope, **{metric: metrics.get(metric) for metric in METRICS}})
    return rows


def fidelity_table(rows: Rows, task: str) -> Table:
    """Return a table of means over seeds, with a row for each algorithm and reward source."""
    table = []
    for (algorithm, reward_source), own in group_rows(rows, "algorithm", "reward_source").items():
        scopes = group_rows(own, "scope")
        means = [_mean(scopes[ALL,], metric) for metric in ("measured", "estimated", "correlation", "rmse")]
        table.append((label(algorithm), reward_source, *means, _mean(scopes[ROUND_MEANS,], "correlation")))
    headings = ("", "reward source", "measured", "estimated", "correlation", "RMSE", "correlation of round means")
    return Table(f"Accuracy by device and round, estimated and measured on {task}", headings, tuple(table))


def _mean(rows: Rows, metric: str) -> str:
    known = [row[metric] for row in rows if row[metric] is not None]
    return str(mean(known)) if known else "none"
