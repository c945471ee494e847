"""Handles capture requests: orders the ranks to capture, refuses the others with a reason, and ends overdue captures.

Runs on the event loop. `captures.py` decides which requests are accepted.
"""

from collections.abc import Callable

from exporter.capturing.captures import Candidate, Captures
from exporter.capturing.control import ControlJob, ControlWriter
from exporter.counts import ExporterCounters
from exporter.reading.run_state import RunState
from lockstep.contracts.capture import CaptureResult
from lockstep.contracts.messages import RUNNING, CaptureRequest


class CaptureRequests:
    """Applies the decisions of `captures` to the ranks.

    `run_of` returns the run of a name, or None if this node does not know it. A rank without a sign of life for
    `stale_ns` counts as ended. `on_answer` receives each refusal for a rank. `on_term` receives the term known before
    each request, and the wall-clock time. `on_accepted` is called when ranks are about to capture.
    """

    def __init__(
        self,
        captures: Captures,
        *,
        counts: ExporterCounters,
        control: ControlWriter,
        run_of: Callable[[str], RunState | None],
        stale_ns: int,
        on_answer: Callable[[str, int, CaptureResult], None],
        on_term: Callable[[int, float], None],
        on_accepted: Callable[[], None],
    ) -> None:
        self._captures = captures
        self._counts = counts
        self._control = control
        self._run_of = run_of
        self._stale_ns = stale_ns
        self._on_answer = on_answer
        self._on_term = on_term
        self._on_accepted = on_accepted

    def take(self, request: CaptureRequest, now_ns: int, unix_s: float) -> None:
        """Handle a request or its withdrawal; `now_ns` is CLOCK_MONOTONIC, `unix_s` the wall clock."""
        run = self._run_of(request.run)
        ranks = None
        if run is not None:
            ranks = {
                each.rank: Candidate(each.state, each.steps.boundary(request.first_step), each.header.attempt)
                for each in run.shown(now_ns, self._stale_ns)
            }
        term = self._captures.term
        admission = self._captures.admit(request, ranks, now_ns, unix_s)
        self._on_term(term, unix_s)
        if admission.is_outdated:
            reason = next(iter(admission.refusals.values()), "for no rank")
            self._counts.reject("request", f"request {request.request_id} of term {request.term}: {reason}")
        if not request.is_withdrawn:
            for rank, reason in admission.refusals.items():
                self._refuse(request.run, rank, request.request_id, reason)
        if admission.order is not None and run is not None:
            job = ControlJob(run.name, run.directory, admission.order)
            if not self._control.submit(job):
                self.order_failed(job, "too many capture requests are queued")
            if admission.order.ranks:
                self._on_accepted()

    def tick(self, now_ns: int) -> None:
        """End captures whose deadline has passed, and stop waiting for ranks that have ended."""
        for name, order in self._captures.take_expired(now_ns):
            run = self._run_of(name)
            if run is not None:  # if the queue is full, the ranks' own order still waits in it
                self._control.submit(ControlJob(run.name, run.directory, order))
        for name in self._captures.runs:
            run, request_id = self._run_of(name), self._captures.running_id(name)
            if run is None or request_id is None:
                continue
            shown = run.shown(now_ns, self._stale_ns)
            attempts = {each.rank: each.header.attempt for each in shown if each.state == RUNNING}
            for rank in self._captures.drop_ended(name, attempts):
                self._refuse(name, rank, request_id, "the process of the rank ended before its capture did")

    def order_failed(self, job: ControlJob, reason: str) -> None:
        """Cancel a request whose order could not be written, and refuse its ranks."""
        if job.order is None or not job.order.ranks:
            return
        self._captures.forget(job.run)
        for rank in job.order.ranks:
            self._refuse(job.run, rank, job.order.request_id, f"the order could not be written: {reason}")

    def _refuse(self, run: str, rank: int, request_id: int, reason: str) -> None:
        self._counts.profiles["refused"] += 1
        self._on_answer(run, rank, CaptureResult(request_id=request_id, state="refused", reason=reason))
