"""The paper's figures and tables: trials, executors, claims and the report; and the criteria of the paper preset."""

from tandem.experiments.executors import ProcessExecutor, RayExecutor, SerialExecutor
from tandem.experiments.plan import Plan, make_plan, reproduce
from tandem.experiments.scale import Scale, load_scale
from tandem.experiments.task_calibration import calibrate_scale

__all__ = [
    "Plan",
    "ProcessExecutor",
    "RayExecutor",
    "Scale",
    "SerialExecutor",
    "calibrate_scale",
    "load_scale",
    "make_plan",
    "reproduce",
]
