"""How much CPU contention costs a rank, from counters of its node during the capture.

Waiting for a CPU is no cause by itself: a rank with more work than its peers also waits longer, and ranks that share
cores wait for each other in a healthy job. It explains a slow rank only as far as it prolongs work that the peers do
too. With a share u of the time on a CPU and a share w waiting for one,

    prolonged = w_own min(1, u_peers / u_own) - w_peers.

The node counts how long the training thread was on a CPU. If it could not, the thread counts as on a CPU whenever it is
neither in a collective, by its call tree, nor waiting for one; on busy machines that underestimates u, and the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from lockstep.contracts.finding import Finding
from lockstep.contracts.messages import TraceSummary
from lockstep.diagnosis.host_causes.contention import find_contention
from lockstep.trace.waiting import WAIT_NAME


@dataclass(frozen=True, slots=True)
class _Share:
    """Shares of the time: on a CPU, waiting for one, and throttled by the limit of the control group."""

    on_cpu: float
    waiting: float
    throttled: float


def contention_beyond_peers(suspect: TraceSummary, peers: Sequence[TraceSummary]) -> list[Finding]:
    """Return the contention of the suspect beyond that of its peers, with its cost; empty if there is none.

    At least one peer with node counters is required.
    """
    own = _share(suspect)
    theirs = [share for peer in peers if (share := _share(peer)) is not None]
    if own is None or not theirs:
        return []
    usual = _Share(*(median(getattr(each, name) for each in theirs) for name in ("on_cpu", "waiting", "throttled")))
    common = min(1.0, usual.on_cpu / own.on_cpu) if own.on_cpu > 0 else 1.0
    prolonged = own.waiting * common - usual.waiting
    lost = max(prolonged, own.throttled - usual.throttled)
    return _finding(suspect, lost_ns=round(lost * suspect.window_ns)) if lost > 0 else []


def captured_excess_ns(suspect: TraceSummary, peers: Sequence[TraceSummary]) -> float:
    """Return how much longer the suspect was outside collectives than its peers' median while captured, ns per step.

    0 or less if it was not longer, or if there is no peer.
    """
    theirs = [_outside_collectives_ns(peer) for peer in peers if peer.window_ns > 0]
    return _outside_collectives_ns(suspect) - median(theirs) if theirs else 0.0


def _share(summary: TraceSummary) -> _Share | None:
    host = summary.host
    if host is None or host.span_ns <= 0 or summary.window_ns <= 0 or host.run_queue_wait_ns is None:
        return None
    waiting = min(max(host.run_queue_wait_ns, 0) / host.span_ns, 1.0)
    standing = _standing_ns(summary) / summary.window_ns
    throttled = min(max(host.throttled_ns or 0, 0) / host.span_ns, 1.0)
    on_cpu = 1.0 - standing - waiting if host.on_cpu_ns is None else host.on_cpu_ns / host.span_ns
    return _Share(on_cpu=min(max(on_cpu, 0.0), 1.0), waiting=waiting, throttled=throttled)


def _standing_ns(summary: TraceSummary) -> int:
    return sum(node.total_ns for node in summary.tree if node.name == WAIT_NAME)


def _outside_collectives_ns(summary: TraceSummary) -> float:
    return (summary.window_ns - _standing_ns(summary)) / max(summary.steps, 1)


def _finding(summary: TraceSummary, *, lost_ns: int) -> list[Finding]:
    """Return the finding on what keeps the rank from a CPU, at the cost found by comparison with its peers."""
    assert summary.host is not None
    found = find_contention(summary.host, window_ns=(0, summary.window_ns), ranks=(summary.rank,))
    return [] if found is None else [replace(found, lost_ns=lost_ns)]
