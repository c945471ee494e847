"""Which profile requests this node takes: pure decisions, the time comes in. One capture at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from lockstep.contracts.control import ProfileOrder, order_from_json, order_to_json
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import ProfileRequest

_TERMINAL = ("done", "refused")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a request: an order for the ranks here or None, and why each other rank is refused."""

    order: ProfileOrder | None
    refusals: dict[int, str]


@dataclass(slots=True)
class _Capture:
    request_id: int
    waiting: set[int]  # ranks that have not answered done or refused
    deadline_ns: int


@dataclass(slots=True)
class Captures:
    """Captures under way. Every time is CLOCK_MONOTONIC ns."""

    limit_ns: int
    _running: dict[str, _Capture] = field(default_factory=dict)

    def judge(self, request: ProfileRequest, ranks: Mapping[int, str] | None, now_ns: int) -> Verdict:
        """Decide; an accepted request counts as running from now on.

        `ranks` are those of the run on this node with the state of their agents, None for a run unknown here. A request
        that is running already, as QoS 1 may deliver twice, gets neither order nor refusals.
        """
        if ranks is None:
            return Verdict(
                None, dict.fromkeys(request.ranks, f"run {request.run!r} is unknown on node {request.node!r}")
            )
        running = self._running.get(request.run)
        if running is not None and now_ns < running.deadline_ns and running.request_id == request.request_id:
            return Verdict(None, {})
        if busy := self._busy(request, now_ns):
            return Verdict(None, dict.fromkeys(request.ranks, busy))
        refusals = {rank: reason for rank in request.ranks if (reason := _unfit(request, rank, ranks))}
        able = [rank for rank in request.ranks if rank not in refusals]
        if not able:
            return Verdict(None, refusals)
        try:
            order = _order(request, able)
        except MalformedError as error:
            return Verdict(None, {**refusals, **dict.fromkeys(able, str(error))})
        self._running[request.run] = _Capture(request.request_id, set(able), now_ns + self.limit_ns)
        return Verdict(order, refusals)

    def _busy(self, request: ProfileRequest, now_ns: int) -> str:
        """Return which capture is under way here; runs share the node's processors and its disk."""
        for run, running in self._running.items():
            if now_ns < running.deadline_ns:
                of_run = "" if run == request.run else f" of run {run!r}"
                return f"request {running.request_id}{of_run} is being captured on node {request.node!r}"
        return ""

    def note(self, run: str, rank: int, request_id: int, state: str) -> None:
        """Take a rank's answer: the last terminal one ends the capture."""
        running = self._running.get(run)
        if running is not None and running.request_id == request_id and state in _TERMINAL:
            running.waiting.discard(rank)
            if not running.waiting:
                del self._running[run]

    def forget(self, run: str) -> None:
        """Drop what runs for a run that vanished, or whose order could not be written."""
        self._running.pop(run, None)

    def running_id(self, run: str) -> int | None:
        """Return the request that is being captured."""
        running = self._running.get(run)
        return running.request_id if running is not None else None


def _unfit(request: ProfileRequest, rank: int, ranks: Mapping[int, str]) -> str:
    if rank not in ranks:
        return f"rank {rank} of run {request.run!r} is not on node {request.node!r}"
    if ranks[rank] != "running":
        return f"the agent of rank {rank} of run {request.run!r} is not running: {ranks[rank]}"
    return ""


def _order(request: ProfileRequest, ranks: list[int]) -> ProfileOrder:
    """Return the order for `ranks`, checked as the ranks will check it."""
    values = {f.name: getattr(request, f.name) for f in fields(ProfileOrder) if f.name != "ranks"}
    order = ProfileOrder(ranks=sorted(set(ranks)), **values)
    return order_from_json(order_to_json(order), where="profile request")
