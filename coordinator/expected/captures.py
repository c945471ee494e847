"""Extracts operator times of healthy ranks from captures: the second input of a run's model.

Pure. A capture made for an incident has suspects, which never count, and healthy peers. An operator's capture counts if
nothing was wrong from the request to the result. Ranks of any other open incident do not count either, and none counts
while the whole run is slower.
"""

from typing import TYPE_CHECKING, NamedTuple

from coordinator.decide import events as ev
from lockstep.simulator.calibration.measured import OperatorTimes, mean_times, operator_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.decide.state import RunMachine


class _HealthyRequest(NamedTuple):
    """A capture requested while nothing was wrong, and the number of incidents until then."""

    request_id: int
    incidents_total: int


class HealthyCaptures:
    """The healthy captures of one run. Pass it all instructions of the run's machine."""

    def __init__(self) -> None:
        self._asked: _HealthyRequest | None = None

    def observe(self, instructions: "Sequence[ev.Instruction]", machine: "RunMachine") -> OperatorTimes | None:
        """Return the operator times of healthy ranks from a capture that has just ended; None if there are none.

        `machine` must be in the state in which it issued the `instructions`.
        """
        latest = None
        for instruction in instructions:
            if isinstance(instruction, ev.RequestCapture):
                asked = _HealthyRequest(instruction.request.request_id, machine.tracker.incidents_total)
                self._asked = asked if _is_healthy(machine) else None
            elif isinstance(instruction, ev.Diagnose):
                latest = self._times_of(instruction, machine) or latest
        return latest

    def _times_of(self, order: ev.Diagnose, machine: "RunMachine") -> OperatorTimes | None:
        if not order.incident_id and not (
            _is_healthy(machine) and self._asked == (order.request_id, machine.tracker.incidents_total)
        ):
            return None
        in_incident = _ranks_in_incidents(machine)
        if in_incident is None:
            return None
        healthy = [summary for summary in order.peers if summary.rank not in in_incident]
        times = [found for summary in healthy if (found := operator_times(summary)) is not None]
        return mean_times(times) if times else None


def _ranks_in_incidents(machine: "RunMachine") -> frozenset[int] | None:
    """Return the ranks of open incidents; None if an incident concerns the whole run."""
    incidents = machine.tracker.incidents.values()
    if any(not incident.ranks for incident in incidents):
        return None
    return frozenset(rank for incident in incidents for rank in incident.ranks)


def _is_healthy(machine: "RunMachine") -> bool:
    """Whether the last evaluated step shows no anomaly and no incident is open."""
    latest = machine.step_result
    if latest is None or not latest.is_warm or latest.fluctuating or latest.anomalies:
        return False
    return not machine.tracker.incidents
