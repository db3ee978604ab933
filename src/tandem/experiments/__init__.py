"""What the project finds out about itself: the paper's figures and tables, and how its scenario was calibrated."""

from tandem.experiments.executors import Here, Processes
from tandem.experiments.reproduce import Plan, plan, reproduce
from tandem.experiments.scale import Scale, scale_named
from tandem.experiments.task_calibration import on_task

__all__ = ["Here", "Plan", "Processes", "Scale", "on_task", "plan", "reproduce", "scale_named"]
