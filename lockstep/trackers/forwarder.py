"""Forwards from the coordinator to one tracker: each step once, in order, continuing where the last process ended.

No clock and no network of its own: `read` queries the coordinator, the tracker's library sends, and the caller passes
the time. What a tracker has accepted is saved before anything else is sent, so only a crash in between sends it twice.
Memory is bounded because the coordinator's responses are: at most 816 intervals, and the run's incidents.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.contracts.errors import PeerError
from lockstep.serving.log_limit import LogLimit
from lockstep.serving.messaging import backoff_seconds
from lockstep.trackers.forward_state import ForwardState, save_state
from lockstep.trackers.incident_notes import IncidentNote
from lockstep.trackers.points import StepPoint, join_points, with_values
from lockstep.trackers.tracker import Tracker

INCIDENTS_LISTED_MAX = 200
"""Rows of a tracker's table of incidents, the latest ones."""
_OPEN = "open"
_AWAY_LONGEST_S = 300.0
_SETTLED_INTERVALS = 2.0  # after these, the last interval of a run that makes no steps is sent as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The coordinator's data on a run: complete intervals and incidents, each oldest first.

    `is_over`: the run has ended. `refused` names figures whose values are not finite.
    """

    points: Sequence[StepPoint]
    incidents: Sequence[IncidentNote]
    is_over: bool = False
    refused: frozenset[str] = frozenset()


class Forwarder:
    """Forwards one run. `state` is what the tracker has; it is saved to the file before the next call.

    `sent_points` and `sent_incidents` count what this process has sent.
    """

    def __init__(
        self,
        read: Callable[[], RunReport],
        open_tracker: Callable[[ForwardState], Tracker],
        state: ForwardState,
        state_file: Path,
        *,
        interval_s: float,
        log: logging.Logger,
    ) -> None:
        self.state = state
        self.sent_points = 0
        self.sent_incidents = 0
        self._read, self._open_tracker, self._state_file, self._interval_s = read, open_tracker, state_file, interval_s
        self._tracker: Tracker | None = None
        self._log = LogLimit(log)

    def forward(self, now_s: float, *, is_last: bool = False) -> RunReport:
        """Send what is new, and return the coordinator's report; `is_last` also sends the last, unfinished interval.

        Raises
        ------
        PeerError
            The coordinator or the tracker is unreachable or refuses. What was sent before is saved; the rest comes
            later.
        LocalError
            The tracker's library or run is missing, or the library cannot continue; the state file cannot be written.
        """
        tracker = self._opened()
        report = self._read()
        if report.refused:
            names = ", ".join(sorted(report.refused))
            self._log.warning("figures", now_s, f"{names}: got non-finite numbers; these figures are left out")
        incidents = [self._with_host(note) for note in report.incidents]
        self._send_points(tracker, report, incidents, now_s, is_last=is_last or report.is_over)
        self._send_incidents(tracker, incidents)
        return report

    def _send_points(
        self, tracker: Tracker, report: RunReport, incidents: Sequence[IncidentNote], now_s: float, *, is_last: bool
    ) -> None:
        state = self.state
        new = [point for point in report.points if point.end_unix_s > state.until_unix_s]
        self._note_gap(new, now_s)
        joined = join_points(new, self._interval_s)
        waits_s = _SETTLED_INTERVALS * self._interval_s
        if joined and not is_last and now_s - joined[-1].end_unix_s < waits_s:
            joined.pop()  # its interval is still running
        if not joined:
            return
        joined[-1] = with_values(
            joined[-1],
            incidents_open=float(sum(note.state == _OPEN for note in incidents)),
            lost_device_seconds=sum(note.lost_device_seconds for note in incidents),
        )
        tracker.log_points(joined)
        self.sent_points += len(joined)
        state.until_unix_s, state.last_step = joined[-1].end_unix_s, joined[-1].last_step
        self._save()

    def _note_gap(self, new: Sequence[StepPoint], now_s: float) -> None:
        """Log steps of the last forwarded attempt that the coordinator no longer has."""
        first = new[0].first_step if new else 0
        if self.state.last_step >= 0 and first > self.state.last_step + 1:
            lost = f"steps {self.state.last_step + 1} to {first - 1}"
            self._log.warning("gap", now_s, f"{lost} were not evaluated, or are no longer known; they are left out")

    def _send_incidents(self, tracker: Tracker, incidents: Sequence[IncidentNote]) -> None:
        state = self.state
        changed = [note for note in incidents if state.revisions.get(note.id) != note.revision]
        listed_ids = {note.id for note in incidents}
        if changed:
            tracker.log_incidents(changed, incidents[-INCIDENTS_LISTED_MAX:])
            self.sent_incidents += len(changed)
        if changed or state.revisions.keys() - listed_ids:
            state.revisions = {note.id: note.revision for note in incidents}
            state.hosts = {note.id: note.host for note in incidents if note.host}
            self._save()

    def _with_host(self, note: IncidentNote) -> IncidentNote:
        """Return an incident with the host that it had while it was open; the coordinator reports none afterwards."""
        return note if note.host else replace(note, host=self.state.hosts.get(note.id, ""))

    def close(self, *, is_over: bool) -> None:
        """Close the tracker, if it was opened.

        Raises
        ------
        PeerError
            It refuses.
        """
        if self._tracker is not None:
            self._tracker.close(is_over=is_over)

    def _opened(self) -> Tracker:
        if self._tracker is None:
            self._tracker = self._open_tracker(self.state)
            self.state.tracker_run = self._tracker.tracker_run
            self._save()  # at once, so that a restart finds the new run
        return self._tracker

    def _save(self) -> None:
        save_state(self._state_file, self.state)


def follow(
    forwarder: Forwarder,
    *,
    now_s: Callable[[], float],
    wait: Callable[[float], bool],
    interval_s: float,
    draw: Callable[[], float],
    log: logging.Logger,
) -> bool:
    """Forward until the run is over, then return True, or until `wait` returns that the process shall end.

    An unreachable coordinator or tracker only delays: new data is sent later, at the coordinator's resolution by then.
    `draw` returns random numbers from 0 to 1, which spread the attempts to reconnect.
    """
    limit, wait_s, failures, was_over = LogLimit(log), 0.0, 0, False
    while not wait(wait_s):
        try:
            is_over = forwarder.forward(now_s()).is_over
        except PeerError as error:
            failures += 1
            longest_s = max(_AWAY_LONGEST_S, interval_s)
            wait_s = backoff_seconds(failures, draw(), first_seconds=interval_s, longest_seconds=longest_s)
            limit.warning("away", now_s(), f"{error}; trying again in {wait_s:.0f} s")
            continue
        if is_over and was_over:
            return True
        wait_s, failures, was_over = interval_s, 0, is_over  # once more: the last records may arrive after the end
    return False
