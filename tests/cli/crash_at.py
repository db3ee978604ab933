"""The ``tandem`` command, stopped at a moment of the test's choosing: crash_at.py MOMENT N ARGUMENTS.

row: after the N-th row of progress. half: with half of the N-th checkpoint (or policies) written. front: before
front.json is. interrupt: by Ctrl-C, after the N-th row. A checkpoint follows every chunk, so there is much to hit.
"""

import os
import signal
import sys
from contextlib import contextmanager

from tandem.cli.main import main
from tandem.io import array_file
from tandem.runs import run_writer, trainer
from tandem.runs.progress_csv import ProgressTable

moment, left = sys.argv.pop(1), int(sys.argv.pop(1))
trainer.CHECKPOINT_EVERY_S = 0.0
add, atomic_write, write_json = ProgressTable.add, array_file.atomic_write, run_writer.write_json


def stop(here: bool, by: int = signal.SIGKILL) -> None:
    global left
    left -= here
    if here and left == 0:
        os.kill(os.getpid(), by)


def adding(table, *row) -> None:
    add(table, *row)
    stop(moment == "row")
    stop(moment == "interrupt", signal.SIGINT)


@contextmanager
def saving(path, durable=False):
    with atomic_write(path, durable) as temporary:
        yield temporary
        if moment == "half" and left == 1:
            os.truncate(temporary, temporary.stat().st_size // 2)
        stop(moment == "half")


def writing(path, document) -> None:
    stop(moment == "front")
    write_json(path, document)


ProgressTable.add, array_file.atomic_write, run_writer.write_json = adding, saving, writing
main()
