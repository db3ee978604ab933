"""``tandem demo-fleet``: the simulated fleet of ``tandem serve --demo``, and its table of the last rounds."""

from __future__ import annotations

import time
from collections import Counter, deque
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tandem.cli.formatting import count
from tandem.errors import InputError
from tandem.federated.build import build_system
from tandem.scenario import Scenario
from tandem.serving.client import Client, ServiceError
from tandem.serving.demo import PlayedRound, play_rounds, wait_for_round
from tandem.serving.policy_file import read_policy_file
from tandem.serving.simulated_fleet import SimulatedFleet

ROWS = 12  # rounds in the table
RECENT = 50  # rounds that the speed is computed from


def demo_fleet(
    policy: Annotated[Path, typer.Argument(metavar="FILE", help="File of 'tandem export'.", show_default=False)],
    url: Annotated[str, typer.Option(metavar="URL", help="Address of the service.")] = "http://127.0.0.1:8321",
    pace: Annotated[float, typer.Option(min=0, help="Rounds per second; 0 is no limit.")] = 4.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Random seed of channel and arrivals.")] = 0,
) -> None:
    """Simulate a fleet that asks a service for decisions over HTTP.

    The fleet is that of the policy's scenario. A service that is away is waited for. Ctrl-C ends it.
    """
    file = read_policy_file(policy)
    display = Display(Console())
    try:
        with Client(url) as client, display:
            display.wait("the simulated fleet starts, which takes some seconds")
            system = build_system(Scenario.model_validate(file.metadata["scenario"]))
            first_round = wait_for_round(client, display.wait)
            fleet = SimulatedFleet(system, file.device_names, seed, first_round=first_round)
            for played in play_rounds(client, fleet, pace, display.wait):
                display.show(played)
    except ServiceError as error:
        raise InputError(f"{url}: refused a request of the simulated fleet ({error}).") from None
    except KeyboardInterrupt:
        display.summarise()


class Display:
    """The last rounds and the means of all: a live table on a terminal, else a line for each round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._rows: deque[PlayedRound] = deque(maxlen=ROWS)
        self._times: deque[float] = deque(maxlen=RECENT)
        self._answers: deque[float] = deque(maxlen=RECENT)
        self._rounds = self._violations = 0
        self._totals = np.zeros(3)
        self._problem = ""

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def wait(self, problem: str) -> None:
        """Say what the fleet waits for."""
        if self._live is None and problem != self._problem:
            self._print(f"Waiting: {problem}.")
        self._problem = problem
        self._draw()

    def show(self, played: PlayedRound) -> None:
        """Show a round."""
        self._problem = ""
        self._rows.append(played)
        self._times.append(time.monotonic())
        self._answers.append(played.answer_s)
        self._rounds += 1
        self._violations += played.outcome.violated
        self._totals += played.outcome.objectives
        if self._live is None:
            row, means = cells(played), self._means()
            self._print(", ".join(f"{name} {cell}" for name, cell in row.items() if cell) + f". {means}")
        self._draw()

    def summarise(self) -> None:
        """Say what the fleet achieved, where the table does not."""
        if self._live is None and self._rounds:
            self._print(self._summary())

    def _means(self) -> str:
        accuracy, latency_s, energy_j = self._totals / self._rounds
        return f"Means: accuracy {accuracy:.3f}, latency {latency_s:.2f} s, energy {energy_j:.2f} J."

    def _summary(self) -> str:
        rounds, violations = (count(number, "round", "rounds") for number in (self._rounds, self._violations))
        return f"{rounds}, {violations} in violation of a constraint. {self._means()}"

    def _speed(self) -> str:
        elapsed_s = self._times[-1] - self._times[0]
        speed = f"{(len(self._times) - 1) / elapsed_s:.1f} decisions/s" if elapsed_s > 0 else "the first decision"
        return f"{speed}, each answered in {1e3 * float(np.median(self._answers)):.1f} ms (median)."

    def _draw(self) -> None:
        if self._live is None:
            return
        parts: list[Any] = []
        if self._rows:
            table = Table(box=None, header_style="bold", pad_edge=False)
            rows = [cells(played) for played in self._rows]
            for name in max(rows, key=len):  # one in violation has a cell more
                is_text = name in ("version", "shield")
                table.add_column(name, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
            for row in rows:
                table.add_row(*map(Text, row.values()))
            last = self._rows[-1].decision
            parts += [table, Text(""), Text(describe(last.operating_point.model_dump(), last.policy.model_dump()))]
            parts += [Text(self._summary()), Text(self._speed())]
        if self._problem:
            parts.append(Text(f"Waiting: {self._problem}.", style="yellow"))
        parts.append(Text("Ctrl-C ends the demo.", style="dim"))
        self._live.update(Group(*parts), refresh=True)

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def cells(played: PlayedRound) -> dict[str, str]:
    """Return the cells of a round; accuracy, latency and energy are means over all devices, as in a front."""
    decision, outcome = played.decision, played.outcome
    accuracy, latency_s, energy_j = outcome.objectives
    changes = Counter(rule for change in decision.changes for rule in change.rules)
    row = {
        "round": str(played.number),
        "version": decision.version[:8],
        "trainers": f"{int(outcome.train.sum())}/{len(outcome.train)}",
        "duration": f"{outcome.duration_s:.2f} s",
        "accuracy": f"{accuracy:.3f}",
        "latency": f"{latency_s:.2f} s",
        "energy": f"{energy_j:.2f} J",
        "shield": ", ".join(f"{number} {rule}" for rule, number in changes.most_common()),
    }
    return row | ({"violated": ", ".join(outcome.violations)} if outcome.violated else {})


def describe(operating_point: dict[str, Any], policy: dict[str, Any]) -> str:
    """Return a sentence on the operating point and on the policy that it selects."""
    preference = operating_point["preference"]
    wanted = [] if preference is None else [f"preference {', '.join(f'{k} {v:.3g}' for k, v in preference.items())}"]
    texts = {
        "min_accuracy": "accuracy of at least {:g}",
        "max_latency_s": "latency of at most {:g} s",
        "max_energy_j": "energy of at most {:g} J",
    }
    wanted += [texts[name].format(operating_point[name]) for name in texts if operating_point[name] is not None]
    means = policy["objectives"]
    measured = f"accuracy {means['accuracy']:.3f}, latency {means['latency_s']:.2f} s, energy {means['energy_j']:.2f} J"
    point = "; ".join(wanted) or "knee of the front"
    return f"Operating point: {point}. Policy {policy['index']}, measured after training: {measured}."
