"""Several seeds of one training in one program, each into a run of its own.

On a GPU ten seeds take little longer than one. Where a single run already fills the machine, as on a few cores, nothing
is gained; and there are no checkpoints: who may be interrupted for good had better train one by one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tandem.learn import train_loop as engine
from tandem.learn.registry import choose_options
from tandem.runs.final_evaluation import Yardstick
from tandem.runs.problem import build_algorithm, with_shield_of
from tandem.runs.progress_csv import ProgressTable
from tandem.runs.run import Run, open_run
from tandem.runs.run_dir import PROGRESS, new_folder
from tandem.runs.trainer import Listener, begun, conclude
from tandem.scenario import Scenario


def train_together(
    scenario: Scenario,
    algorithm: str,
    preset: str,
    folders: Mapping[int, Path],
    options: Mapping[str, Any] | Sequence[str] = (),
    listeners: Mapping[int, Sequence[Listener]] | None = None,
    yardstick: Yardstick | None = None,
) -> tuple[Run, ...]:
    """Train one run for each seed, into the folder that is named with it. A run's time is its share of that of all."""
    chosen = choose_options(algorithm, preset, options)
    loaded = with_shield_of(chosen, scenario)
    ready = build_algorithm(algorithm, loaded, chosen)
    seeds, heard = list(folders), listeners or {}
    began = time.monotonic()

    def wall_s() -> float:
        return (time.monotonic() - began) / len(seeds)

    with ExitStack() as held:
        for folder in folders.values():
            held.enter_context(new_folder(folder))
        records = {seed: begun(folders[seed], loaded, algorithm, preset, chosen, seed) for seed in seeds}
        tables = {seed: held.enter_context(ProgressTable(folders[seed] / PROGRESS, 0)) for seed in seeds}
        for seed in seeds:
            for listener in heard.get(seed, ()):
                listener.beginning(folders[seed], ready, 0)
        for now, progress in engine.train_together(ready, seeds):
            for index, seed in enumerate(seeds):
                tables[seed].add(progress[index], wall_s())
                for listener in heard.get(seed, ()):
                    listener.progressed(progress[index], wall_s())
                    listener.standing(ready, now, seed, index)
        for index, seed in enumerate(seeds):
            conclude(
                folders[seed], records[seed], ready, engine.alone(now, index), heard.get(seed, ()), wall_s, yardstick
            )
    return tuple(open_run(folder) for folder in folders.values())
