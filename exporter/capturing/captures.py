"""Decides which capture requests this node accepts, one capture at a time. Pure: the caller passes the time.

Several coordinators may send the same request, so a request is decided once, by its id. A leader that was replaced may
still send requests of its own; they are refused because their term is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lockstep.contracts.capture import CaptureRequest, StepBoundary, request_from_json, request_to_json
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import TERM_AHEAD_OF_NODE_SECONDS_MAX

_NS = 1_000_000_000
_TERMINAL = ("done", "refused")
_OF_THE_BUS: dict[str, Any] = {
    each.name: each.default
    for each in fields(CaptureRequest)
    if each.name in ("run", "node", "term", "deadline_seconds", "is_withdrawn")
}
"""Fields that a control block omits: where it lies, and what only the coordinator and the node need."""
_REQUESTS_MAX = 256  # requests remembered; an incident needs a handful


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rank that may be captured: its agent's state, and how its process recognises the start of the first step.

    `boundary` is None if the steps of the rank are not numbered, or if the latest ones differed. `attempt`
    distinguishes incarnations of the rank.
    """

    state: str
    boundary: StepBoundary | None
    attempt: int


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision on a request: the order for the accepted ranks (None if none), and why the others are refused.

    An order without ranks withdraws the one before it. `is_outdated`: the term is over or invalid, or the id belongs to
    a different request.
    """

    order: CaptureRequest | None
    refusals: dict[int, str]
    is_outdated: bool = False


@dataclass(slots=True)
class _Capture:
    request: CaptureRequest
    waiting: dict[int, int]  # ranks that have not answered done or refused -> their attempt
    deadline_ns: int

    @property
    def request_id(self) -> int:
        return self.request.request_id


@dataclass(slots=True)
class Captures:
    """The captures in progress. Times in ns are CLOCK_MONOTONIC; `term` is the highest seen (a fencing token).

    A capture occupies its node until its ranks have answered or ended, until it is withdrawn, or until its deadline.
    """

    term: int = 0
    _running: dict[str, _Capture] = field(default_factory=dict)
    _requests: dict[tuple[str, int], CaptureRequest] = field(default_factory=dict)

    def term_in_force(self, unix_s: float) -> int:
        """Return the term below which requests are refused; 0 if the known term is ahead of this node's clock.

        A term is at least the unix time of its election. One further ahead is forged, or this node's clock was set
        back.
        """
        return self.term if self.term <= unix_s + TERM_AHEAD_OF_NODE_SECONDS_MAX else 0

    def adopt_term(self, term: int, unix_s: float) -> str:
        """Adopt the term of a request of another kind; return why it is not the current leader's, empty if it is."""
        reason = self._foreign_term(term, unix_s)
        if not reason:
            self.term = term
        return reason

    def admit(
        self, request: CaptureRequest, ranks: Mapping[int, Candidate] | None, now_ns: int, unix_s: float
    ) -> Admission:
        """Decide a request; an accepted one counts as running from now on.

        `ranks` are those of the run on this node, or None if the run is unknown here. A request that was already
        decided gets neither an order nor refusals, whichever coordinator sent it. `unix_s` is the wall clock, against
        which terms are checked.
        """
        if request.is_withdrawn:
            return self._withdraw(request, unix_s)
        content = replace(request, term=0, deadline_seconds=0.0)
        known = self._requests.get((request.run, request.request_id))
        if known == content:
            return Admission(None, {})
        if known is not None:
            reason = f"request {request.request_id} of run {request.run!r} had different content"
            return Admission(None, dict.fromkeys(request.ranks, reason), is_outdated=True)
        if reason := self._foreign_term(request.term, unix_s):
            return Admission(None, dict.fromkeys(request.ranks, reason), is_outdated=True)
        self.term = request.term
        self._requests[request.run, request.request_id] = content
        if len(self._requests) > _REQUESTS_MAX:
            del self._requests[next(iter(self._requests))]
        return self._decide(request, ranks, now_ns)

    def _withdraw(self, request: CaptureRequest, unix_s: float) -> Admission:
        """End a capture that is no longer wanted; a request that was never accepted here needs no action."""
        if reason := self._foreign_term(request.term, unix_s):
            return Admission(None, {request.ranks[0]: reason} if request.ranks else {}, is_outdated=True)
        self.term = request.term
        if self.running_id(request.run) != request.request_id:
            return Admission(None, {})
        return Admission(_order(self._running.pop(request.run).request, {}), {})

    def take_expired(self, now_ns: int) -> list[tuple[str, CaptureRequest]]:
        """End the captures whose deadline has passed; return their runs, each with the order that withdraws theirs."""
        over = [run for run, running in self._running.items() if now_ns >= running.deadline_ns]
        return [(run, _order(self._running.pop(run).request, {})) for run in over]

    def drop_ended(self, run: str, attempts: Mapping[int, int]) -> list[int]:
        """Stop waiting for ranks that no longer run, and return them; `attempts` are those of the ranks that do."""
        running = self._running.get(run)
        if running is None:
            return []
        ended = [rank for rank, attempt in running.waiting.items() if attempts.get(rank) != attempt]
        for rank in ended:
            del running.waiting[rank]
        if not running.waiting:
            del self._running[run]
        return ended

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the runs with a capture in progress."""
        return tuple(self._running)

    def _foreign_term(self, term: int, unix_s: float) -> str:
        """Return why a term is not the current leader's, empty if it may be."""
        in_force = self.term_in_force(unix_s)
        if term < in_force:
            return f"term {term} is over, term {in_force} is in force"
        if term > unix_s + TERM_AHEAD_OF_NODE_SECONDS_MAX:
            return (
                f"term {term} is not a leader's: got {term - unix_s:.0f} s ahead of this node's clock, expected at "
                f"most {TERM_AHEAD_OF_NODE_SECONDS_MAX}"
            )
        return ""

    def _decide(self, request: CaptureRequest, ranks: Mapping[int, Candidate] | None, now_ns: int) -> Admission:
        if ranks is None:
            return Admission(
                None, dict.fromkeys(request.ranks, f"run {request.run!r} is unknown on node {request.node!r}")
            )
        if busy := self._busy(request, now_ns):
            return Admission(None, dict.fromkeys(request.ranks, busy))
        refusals = {rank: reason for rank in request.ranks if (reason := _unfit(request, rank, ranks))}
        able = {rank: ranks[rank].boundary for rank in request.ranks if rank not in refusals}
        if not able:
            return Admission(None, refusals)
        try:
            order = _order(request, able)
        except MalformedError as error:
            return Admission(None, {**refusals, **dict.fromkeys(able, str(error))})
        deadline_ns = now_ns + round(request.deadline_seconds * _NS)
        self._running[request.run] = _Capture(request, {rank: ranks[rank].attempt for rank in able}, deadline_ns)
        return Admission(order, refusals)

    def _busy(self, request: CaptureRequest, now_ns: int) -> str:
        """Return which capture is in progress here; runs share the node's processors and its disk."""
        for run, running in self._running.items():
            if now_ns < running.deadline_ns:
                of_run = "" if run == request.run else f" of run {run!r}"
                return f"request {running.request_id}{of_run} is being captured on node {request.node!r}"
        return ""

    def note(self, run: str, rank: int, request_id: int, state: str) -> None:
        """Record a rank's answer: the last terminal one ends the capture."""
        running = self._running.get(run)
        if running is not None and running.request_id == request_id and state in _TERMINAL:
            running.waiting.pop(rank, None)
            if not running.waiting:
                del self._running[run]

    def forget(self, run: str) -> None:
        """Drop the capture of a run that is gone, or whose order could not be written."""
        self._running.pop(run, None)

    def running_id(self, run: str) -> int | None:
        """Return the id of the request that is being captured."""
        running = self._running.get(run)
        return running.request_id if running is not None else None


def _unfit(request: CaptureRequest, rank: int, ranks: Mapping[int, Candidate]) -> str:
    if rank not in ranks:
        return f"rank {rank} of run {request.run!r} is not on node {request.node!r}"
    if ranks[rank].state != "running":
        return f"the agent of rank {rank} of run {request.run!r} is not running: {ranks[rank].state}"
    if ranks[rank].boundary is None:
        return (
            f"the steps of rank {rank} of run {request.run!r} cannot be foreseen: its last ones were not alike, or "
            "marks of it were lost"
        )
    return ""


def _order(request: CaptureRequest, boundaries: Mapping[int, StepBoundary | None]) -> CaptureRequest:
    """Return the request as the ranks of `boundaries` will read it, validated as they will validate it."""
    known = {rank: boundary for rank, boundary in sorted(boundaries.items()) if boundary is not None}
    order = replace(request, ranks=list(known), boundaries=list(known.values()), **_OF_THE_BUS)
    return request_from_json(request_to_json(order), where="capture request")
