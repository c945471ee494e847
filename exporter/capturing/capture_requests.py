"""Takes profile requests: has orders written for the ranks, refuses the others by name, and ends what cannot come.

Belongs to the event loop. Which requests are accepted is `captures.py`'s decision.
"""

from collections.abc import Callable

from exporter.capturing.captures import Candidate, Captures
from exporter.capturing.control import ControlJob, ControlWriter
from exporter.counts import Counts
from exporter.reading.run_state import RunState
from lockstep.contracts.capture import CaptureResult
from lockstep.contracts.messages import RUNNING, CaptureRequest


class CaptureRequests:
    """`run_of` returns the run of a name, None where it is unknown here; `stale_ns` is the silence that ends a rank.

    `on_answer` gets what a rank is refused with, `on_term` the term before each request, and the time;
    `on_accepted` is called when ranks are going to capture.
    """

    def __init__(
        self,
        captures: Captures,
        *,
        counts: Counts,
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
        """Decide a request, or its withdrawal; `now_ns` is CLOCK_MONOTONIC, `unix_s` the wall clock."""
        run = self._run_of(request.run)
        ranks = None
        if run is not None:
            ranks = {
                each.rank: Candidate(each.state, each.steps.boundary(request.first_step), each.header.attempt)
                for each in run.shown(now_ns, self._stale_ns)
            }
        term = self._captures.term
        verdict = self._captures.judge(request, ranks, now_ns, unix_s)
        self._on_term(term, unix_s)
        if verdict.is_outdated:
            reason = next(iter(verdict.refusals.values()), "for no rank")
            self._counts.reject("request", f"request {request.request_id} of term {request.term}: {reason}")
        if not request.is_withdrawn:
            for rank, reason in verdict.refusals.items():
                self._refuse(request.run, rank, request.request_id, reason)
        if verdict.order is not None and run is not None:
            job = ControlJob(run.name, run.directory, verdict.order)
            if not self._control.submit(job):
                self.order_failed(job, "too many orders wait to be written")
            if verdict.order.ranks:
                self._on_accepted()

    def tick(self, now_ns: int) -> None:
        """End captures whose deadline has passed, and stop waiting for ranks that have ended."""
        for name, order in self._captures.take_expired(now_ns):
            run = self._run_of(name)
            if run is not None:  # where too many orders wait, the ranks' own is one of them
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
        """Take back a request whose order could not be written."""
        if job.order is None or not job.order.ranks:
            return
        self._captures.forget(job.run)
        for rank in job.order.ranks:
            self._refuse(job.run, rank, job.order.request_id, f"the order could not be written: {reason}")

    def _refuse(self, run: str, rank: int, request_id: int, reason: str) -> None:
        self._counts.profiles["refused"] += 1
        self._on_answer(run, rank, CaptureResult(request_id=request_id, state="refused", reason=reason))
