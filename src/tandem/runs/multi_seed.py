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

from tandem.feel.system import SystemBuilder, build_system
from tandem.learn import train_loop as engine
from tandem.learn.registry import make_config
from tandem.runs.final_evaluation import EvaluationTarget
from tandem.runs.problem import build_algorithm, override_shield
from tandem.runs.progress_csv import ProgressTable
from tandem.runs.run import Run, open_run
from tandem.runs.run_dir import PROGRESS, new_run_dir
from tandem.runs.trainer import Callback, finish_run, init_run_dir
from tandem.scenario import Scenario


def train_seeds(
    scenario: Scenario,
    algorithm: str,
    preset: str,
    folders: Mapping[int, Path],
    options: Mapping[str, Any] | Sequence[str] = (),
    listeners: Mapping[int, Sequence[Callback]] | None = None,
    yardstick: EvaluationTarget | None = None,
    *,
    build_system: SystemBuilder = build_system,
) -> tuple[Run, ...]:
    """Train one run for each seed, into the folder that is named with it. A run's time is its share of that of all."""
    chosen = make_config(algorithm, preset, options)
    loaded = override_shield(chosen, scenario)
    ready = build_algorithm(algorithm, loaded, chosen, build_system=build_system)
    seeds, heard = list(folders), listeners or {}
    began = time.monotonic()

    def wall_s() -> float:
        return (time.monotonic() - began) / len(seeds)

    with ExitStack() as held:
        for folder in folders.values():
            held.enter_context(new_run_dir(folder))
        records = {seed: init_run_dir(folders[seed], loaded, algorithm, preset, chosen, seed) for seed in seeds}
        tables = {seed: held.enter_context(ProgressTable(folders[seed] / PROGRESS, 0)) for seed in seeds}
        for seed in seeds:
            for listener in heard.get(seed, ()):
                listener.on_start(folders[seed], ready, 0)
        for now, progress in engine.train(ready, engine.init_checkpoint(ready, seeds)):
            for index, seed in enumerate(seeds):
                tables[seed].add(progress[index], wall_s())
                for listener in heard.get(seed, ()):
                    listener.on_chunk(progress[index], wall_s())
                    listener.on_checkpoint(ready, now, seed, index)
        for index, seed in enumerate(seeds):
            finish_run(
                folders[seed],
                records[seed],
                ready,
                engine.select_run(now, index),
                heard.get(seed, ()),
                wall_s,
                yardstick,
            )
    return tuple(open_run(folder, build_system=build_system) for folder in folders.values())
