"""Python's garbage collection (Hermes 4.2.2): recorded in the trace, noted by the agent, or guessed from a gap."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.contracts.finding import CPU, HIGH, LOW, Finding, NotEvaluated
from lockstep.diagnosis.host_causes import thresholds as limits
from lockstep.diagnosis.host_causes.view import LOADER_PREFIX, HostView, measured_before
from lockstep.trace.columns import Mask
from lockstep.trace.intervals import Intervals, Times, merged

GC = "gc"
_EVENT = "Python GC"
_COLLECT = "<built-in function collect>"
_SUBJECT = "automatic garbage collection"


def is_collection(name: str) -> bool:
    """Whether an event of this name is a collection."""
    return name in (_EVENT, _COLLECT)


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection as the agent noted it, `start_ns` on the trace's clock; generation None if not noted."""

    start_ns: int
    duration_ns: int
    generation: int | None = None


def evaluate_collections(view: HostView, *, noted: Sequence[Collection] | None = None) -> list[Finding] | NotEvaluated:
    """Return the cost of collections in the window.

    `noted` are the agent's collections of the training thread; None means that they were not noted, an empty sequence
    that there were none. Without notes and without recorded events, a long gap in the host's events is reported as a
    guess of low confidence.
    """
    recorded = view.named(is_collection, view.host)
    columns = view.columns
    starts_ns = np.concatenate((columns.start_ns[recorded], _array(noted, "start_ns")))
    ends_ns = starts_ns + np.concatenate((columns.duration_ns[recorded], _array(noted, "duration_ns")))
    if noted is None and not recorded.any():
        return _guess(view)
    inside = (starts_ns < view.window_ns[1]) & (ends_ns > view.window_ns[0])
    inside &= ends_ns - starts_ns > limits.GC_NS.value
    spans = merged(np.maximum(starts_ns[inside], view.window_ns[0]), np.minimum(ends_ns[inside], view.window_ns[1]))
    exposed = view.exposed(spans)
    lost_ns = exposed.measure_ns()
    if view.share(lost_ns) < limits.GC_RATIO.value:
        return []
    explicit = view.named(lambda name: name == _COLLECT, recorded).any()
    longest_ns = int((ends_ns - starts_ns)[inside].max())
    count = len(spans.start_ns)
    subject, verb = ("collection", "takes") if count == 1 else ("collections", "take")
    sentence = f"{count} {subject} of more than 1 ms {verb} {view.per_step(lost_ns)}"
    counted = [each for each, is_inside in zip(noted or (), inside[int(recorded.sum()) :], strict=True) if is_inside]
    oldest = sum(each.generation == 2 for each in counted)  # noqa: PLR2004  (Python's oldest generation)
    more = [f"the longest takes {longest_ns / 1e6:.1f} ms"]
    more += [f"{oldest} of the oldest generation"] if oldest else []
    return [
        Finding(
            bottleneck=CPU,
            cause=GC,
            ranks=view.ranks,
            evidence=(sentence, *more),
            subject=_COLLECT if explicit else _SUBJECT,
            lost_ns=lost_ns,
            steps=view.occurrence(exposed),
            confidence=HIGH,
        )
    ]


def _array(noted: Sequence[Collection] | None, field: str) -> Times:
    return np.array([getattr(each, field) for each in noted or ()], np.int64)


def _guess(view: HostView) -> list[Finding] | NotEvaluated:
    """Find long gaps in which the trace shows no activity of device or host."""
    unknown = "no collection was recorded (record_python_gc_info, Ascend's gc_detect_threshold) nor noted by the agent"
    if not view.has_device:
        return NotEvaluated(rule=GC, reason=f"{unknown}; without a device a gap is no evidence")
    columns = view.columns
    idle = view.idle()
    length_ns = idle.end_ns - idle.start_ns
    long = (length_ns > limits.GAP_NS.value) & (length_ns < limits.GAP_MOST_NS.value)
    held = view.spans(view.named(lambda name: name.startswith(LOADER_PREFIX), view.host))
    calls = view.spans(view.calls)
    begins_ns = np.sort(columns.start_ns[view.host | view.calls])
    gaps = Intervals(idle.start_ns[long], idle.end_ns[long])
    silent = _are_silent(gaps, begins_ns, held, calls)
    lost_ns = int((gaps.end_ns - gaps.start_ns)[silent].sum())
    if view.share(lost_ns) < limits.GC_RATIO.value:
        return NotEvaluated(rule=GC, reason=unknown)
    found = f"{np.count_nonzero(silent)} gaps of more than 200 ms"
    sentence = f"{found}, {view.per_step(lost_ns)}, in which device and host show nothing"
    return [
        Finding(
            bottleneck=CPU,
            cause=GC,
            ranks=view.ranks,
            evidence=(sentence, unknown),
            subject=_SUBJECT,
            lost_ns=lost_ns,
            confidence=LOW,
        )
    ]


def _are_silent(gaps: Intervals, begins_ns: Times, held: Intervals, calls: Intervals) -> Mask:
    length_ns = gaps.end_ns - gaps.start_ns
    begun = np.searchsorted(begins_ns, gaps.end_ns) - np.searchsorted(begins_ns, gaps.start_ns)
    explained = 2 * _within(gaps, held) > length_ns
    calling = _within(gaps, calls) >= limits.GAP_BUSY_RATIO.value * length_ns
    silent: Mask = (begun < limits.GAP_EVENTS.value * length_ns / 1e3) & ~explained & ~calling
    return silent


def _within(gaps: Intervals, spans: Intervals) -> Times:
    """Return how much of a set of intervals lies in each gap, ns."""
    return measured_before(spans, gaps.end_ns) - measured_before(spans, gaps.start_ns)
