"""What the project finds out about itself: the paper's figures and tables, and how its scenario was calibrated."""

from tandem.experiments.executors import ProcessExecutor, SerialExecutor
from tandem.experiments.reproduce import Plan, plan, reproduce
from tandem.experiments.scale import Scale, scale_named
from tandem.experiments.task_calibration import calibrate_scale

__all__ = ["Plan", "ProcessExecutor", "Scale", "SerialExecutor", "calibrate_scale", "plan", "reproduce", "scale_named"]
