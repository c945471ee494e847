"""Handles runs that make no steps: determines how they ended, or where they hang. No I/O and no clock."""

from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.decide.endings import crash_of, is_request, is_stopped
from coordinator.decide.transitions import OVER
from coordinator.detect.hangs.progress import is_going_on
from coordinator.detect.scope import is_watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.run import Orders, Run


def conclude(run: "Run", now_s: float) -> "Orders":
    """Determine how the run ended, once all of its ranks have ended or have had time to."""
    if not run.membership.has_failed or run.machine.state in OVER:
        run.ended_since_s = None
        return []
    endings = run.membership.endings()
    if not endings:
        return []
    if run.ended_since_s is None:
        run.ended_since_s = now_s
    is_over, waited_s, policy = run.membership.is_over, now_s - run.ended_since_s, run.policy.run
    is_hung = run.machine.stall.incident is not None
    is_patient = is_hung or all(map(is_request, endings.values()))  # a hung run is killed rank by rank
    patience_s = policy.stop_seconds if is_patient else policy.crash_seconds
    if not is_over and waited_s < patience_s:
        return []
    # A rank that its node no longer announces lost its ring while it was exiting.
    is_over = is_over or not run.membership.has_running
    is_stopped_hang = is_hung and is_stopped(endings)
    if is_stopped_hang and not is_over:
        return []  # the others still hang: the same fault
    crash = None if is_stopped_hang else crash_of(endings, are_all_over=is_over)
    ended = ev.EndedEvent(
        unix_s=now_s,
        cause_id="end",
        crash=crash,
        hostname="" if crash is None else run.hostname(crash.rank),
        ended_ranks=run.membership.ended_ranks,
        is_silent=not (run.policy.detectors.crash and is_watched(run.name, run.policy.scope.runs)),
    )
    return run.feed(ended)


def look_for_hang(run: "Run", now_s: float, may_deliver: "Callable[[int], bool]") -> "Orders":
    """Find the ranks for which a run without steps waits.

    While it is open how a run ends (`conclude`), the rank that has ended is what its peers wait for.

    `may_deliver` returns whether the node of a rank may be about to deliver spooled records.
    """
    is_in_scope = run.policy.detectors.hang and is_watched(run.name, run.policy.scope.runs)
    if not is_in_scope or run.topology is None or not run.machine.is_blocked(now_s):
        return []
    if run.ended_since_s is not None and run.machine.stall.incident is None:
        return []
    latest = run.machine.step_result
    if latest is not None and is_going_on(run.timeline, latest.step):
        return []
    hang = run.progress.locate(run.topology, run.timeline)
    if hang is not None and not hang.is_measured and any(map(may_deliver, hang.ranks)):
        return []  # a rank that is behind by its records only may have records that are not delivered yet
    return run.feed(ev.StallEvent(unix_s=now_s, cause_id="tick", hang=hang))
