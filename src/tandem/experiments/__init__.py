"""What the project finds out about itself: the paper's figures and tables, and how its scenario was calibrated."""

from tandem.experiments.calibrated import on_task
from tandem.experiments.engines import Here, Processes
from tandem.experiments.reproduction import Plan, plan, reproduce
from tandem.experiments.scales import Scale, scale_named

__all__ = ["Here", "Plan", "Processes", "Scale", "on_task", "plan", "reproduce", "scale_named"]
