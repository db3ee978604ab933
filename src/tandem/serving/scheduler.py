"""The scheduler: a policy file, an operating point and a fleet; reports in, decisions out."""

from __future__ import annotations

from pathlib import Path

from tandem.serving.fleet import Fleet
from tandem.serving.messages import FleetDecision, FleetReport, OperatingPoint, PolicyChoice
from tandem.serving.policy_file import PolicyFile


class Scheduler:
    """Decides for a fleet. A decision depends on the report, the file, the operating point and the fleet alone.

    Nothing is remembered between decisions, so a repeated report has the same decision in every process. Operating
    point and fleet can be changed while other threads decide: a decision uses the old or the new ones.
    """

    def __init__(self, policy_file: PolicyFile, operating_point: OperatingPoint | None = None) -> None:
        """Prepare deciding. Raises InputError if no policy of the front is within the limits."""
        raise NotImplementedError

    @classmethod
    def open(cls, path: str | Path, operating_point: OperatingPoint | None = None) -> Scheduler:
        """Open an export file, or a run's folder, which is exported in memory (this imports JAX)."""
        raise NotImplementedError

    @property
    def policy_file(self) -> PolicyFile:
        """The file that is used."""
        raise NotImplementedError

    @property
    def operating_point(self) -> OperatingPoint:
        """What the operator wants."""
        raise NotImplementedError

    @property
    def policy(self) -> PolicyChoice:
        """The policy that the operating point selects."""
        raise NotImplementedError

    @property
    def fleet(self) -> Fleet:
        """The fleet that decisions are made for."""
        raise NotImplementedError

    def choose(self, operating_point: OperatingPoint) -> PolicyChoice:
        """Return the policy that an operating point would select, without a change. Raises InputError if there is none.

        The message names the limit to relax and the best value it could have.
        """
        raise NotImplementedError

    def set_operating_point(self, operating_point: OperatingPoint) -> PolicyChoice:
        """Use another operating point from the next decision on."""
        raise NotImplementedError

    def set_fleet(self, fleet: Fleet) -> None:
        """Use another fleet, from ``scheduler.fleet.changed(...)``, from the next decision on.

        Raises FleetMismatchError if the network has a fixed number of devices.
        """
        raise NotImplementedError

    def decide(self, report: FleetReport) -> FleetDecision:
        """Decide for the devices of a report.

        Raises ReportError for values that cannot be used, and FleetMismatchError for a fleet that the policy cannot
        decide for.
        """
        raise NotImplementedError
