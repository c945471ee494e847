"""Which captures show healthy ranks, and what follows of operators: the second source of a run's model.

Pure. A capture made for an incident shows its suspects, which never count, and next to them healthy peers. One that an
operator asked for shows a healthy run if nothing was wrong from the request to the answer. Ranks of any other open
incident do not count either, and while the run is slower as a whole no one does.
"""

from typing import TYPE_CHECKING, NamedTuple

from coordinator.decide import events as ev
from lockstep.simulator.calibration.measured import OperatorTimes, mean_times, operator_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.decide.state import RunMachine


class _Asked(NamedTuple):
    """A request that was made while nothing was wrong, and how many incidents there had been."""

    request_id: int
    incidents_total: int


class HealthyCaptures:
    """Of one run; to be shown all that its machine orders, with the machine as it is then."""

    def __init__(self) -> None:
        self._asked: _Asked | None = None

    def heed(self, instructions: "Sequence[ev.Instruction]", machine: "RunMachine") -> OperatorTimes | None:
        """Return what a capture that has just ended shows of healthy ranks; None where none did."""
        latest = None
        for instruction in instructions:
            if isinstance(instruction, ev.RequestCapture):
                well = _is_well(machine)
                self._asked = _Asked(instruction.request.request_id, machine.tracker.incidents_total) if well else None
            elif isinstance(instruction, ev.Diagnose):
                latest = self._times_of(instruction, machine) or latest
        return latest

    def _times_of(self, order: ev.Diagnose, machine: "RunMachine") -> OperatorTimes | None:
        if not order.incident_id and not (
            _is_well(machine) and self._asked == (order.request_id, machine.tracker.incidents_total)
        ):
            return None
        sick = _sick(machine)
        if sick is None:
            return None
        healthy = [summary for summary in order.peers if summary.rank not in sick]
        times = [found for summary in healthy if (found := operator_times(summary)) is not None]
        return mean_times(times) if times else None


def _sick(machine: "RunMachine") -> frozenset[int] | None:
    """Return the ranks of open incidents; None where one is of the whole run."""
    incidents = machine.tracker.incidents.values()
    if any(not incident.ranks for incident in incidents):
        return None
    return frozenset(rank for incident in incidents for rank in incident.ranks)


def _is_well(machine: "RunMachine") -> bool:
    """Whether nothing is wrong with the run, as far as it has been judged."""
    judged = machine.step_result
    if judged is None or not judged.is_warm or judged.fluctuating or judged.anomalies:
        return False
    return not machine.tracker.incidents
