"""Calls in which the host waits until the device is done (Hermes 4.2.2: SyncBatchNorm, tensor.item, reduce_all).

Waiting for a busy device costs nothing by itself. The cost is that the host launches nothing meanwhile, so the device
becomes idle. A call that waited is charged with the time from the end of the last work that began in it to the device's
next work; gaps between work launched before are not the call's. At most 1 ms after the call counts, since the host does
something else later. A wait for the whole device with no further work after it delayed nothing: benchmark harnesses
measure with such waits.

On a CPU there is no device to wait for; reading values back costs the time of the calls themselves.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import CPU, HIGH, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.frames import readable
from lockstep.diagnosis.host_causes import thresholds as limits
from lockstep.diagnosis.host_causes.nesting import CallPlace, Events, places
from lockstep.diagnosis.host_causes.view import HostView, measured_before
from lockstep.trace.columns import ABSENT, OPERATOR, Mask, WorkKind
from lockstep.trace.intervals import Intervals, merged
from lockstep.trace.launches import launches_of
from lockstep.trace.names import tidy
from lockstep.trace.waiting import SHORTEST_WAIT_NS

SYNCHRONISATION = "synchronisation"
_Key = TypeVar("_Key")

_WAITS = re.compile(r"(?:.*@)?(?:cu|cuda|hip|acl|aclrt)\w*Synchronize\w*")
_OF_DEVICE = re.compile(r"(?:.*@)?(?:cu|cuda|hip|acl|aclrt)\w*(?:Device|Ctx)Synchronize\w*")
_NAME_CHARS = 1024
_COPIES = re.compile(r"(?:.*@)?(?:cu|cuda|hip|aclrt)Memcpy\w*")
_LAUNCHES = re.compile(r"(?:.*@)?(?:cu|cuda|hip)\w*Launch\w*|(?:.*@)?launch|(?:.*@)?rtKernelLaunch\w*")
_GRAPH_LAUNCHES = re.compile(r"(?:.*@)?(?:cu|cuda|hip)Graph(?:Exec)?Launch\w*")
"""One call for all work of a graph."""
_READS_BACK = re.compile(
    r"aten::(?:item|_local_scalar_dense|nonzero|is_nonzero|equal|masked_select|_unique2|unique_dim)"
    r"|<built-in method (?:item|tolist|numpy|cpu|nonzero|__bool__) of (?:Tensor|Parameter) object.*>"
)
_WAITING_OPERATORS = ("aten::_local_scalar_dense", "aten::nonzero")
"""Operators that read values back and wait, for Ascend traces without calls into the runtime (level 0)."""
_BATCH_NORM = re.compile(r"SyncBatchNorm|sync_batch_norm|.*SyncBatchNorm\.forward")
_SPARSE_VENDOR = "ascend"
_PROFILERS = ("torch/profiler/", "torch/autograd/profiler.py")
"""Waits of the profiler at its start and end, which are no calls of the training."""
_FINDINGS_MAX = 5


@dataclass(frozen=True, slots=True)
class _Group:
    """Calls from one place; `name` is the name with the largest total cost."""

    name: str
    place: CallPlace
    calls: Events
    blocked_ns: int
    lost_ns: int
    steps: tuple[int, int] | None


def evaluate_synchronisation(view: HostView) -> list[Finding] | NotEvaluated:
    """Return the calls that make the device idle, the most expensive first, with the code that makes them."""
    if not view.has_device:
        return _evaluate_without_device(view)
    calls = np.flatnonzero(_waits(view))
    if not len(calls) and not view.calls.any():
        return NotEvaluated(rule=SYNCHRONISATION, reason="the trace holds no calls into the device's runtime")
    if found := [*_launches_block(view, calls)]:
        return [*found, *_batch_norms(view)]
    groups = [group for group in _groups(view, calls) if view.share(group.lost_ns) >= limits.SYNC_RATIO.value]
    once = [group for group in groups if _is_once(view, group)]
    found = [*(_finding(view, group) for group in groups[:_FINDINGS_MAX] if group not in once), *_batch_norms(view)]
    if once and not found:
        sentence = (
            f"one call of {once[0].name} holds {view.share(once[0].lost_ns):.0%} of a window without marked steps"
        )
        return NotEvaluated(rule=SYNCHRONISATION, reason=f"{sentence}: nothing shows that a step does so again")
    return found


def _is_once(view: HostView, group: _Group) -> bool:
    """Whether one call takes most of a window without marked steps."""
    is_single = len(group.calls) == 1 and not len(view.step_starts_ns)
    return is_single and view.share(group.lost_ns) > limits.SYNC_ONCE_RATIO.value


def _waits(view: HostView) -> Mask:
    """Return the calls that wait: by name, and copies that return only when the device has finished them."""
    columns = view.columns
    waits = view.named(lambda name: _WAITS.fullmatch(name) is not None, view.calls)
    launch = launches_of(columns)
    launched = np.flatnonzero(launch != ABSENT)
    inside = launched[columns.end_ns[launched] <= columns.end_ns[launch[launched]]]
    done = np.zeros(len(columns), np.bool_)
    done[launch[inside]] = True
    waits |= view.named(lambda name: _COPIES.fullmatch(name) is not None, view.calls & done)
    return waits if waits.any() or columns.metadata.vendor != _SPARSE_VENDOR else _waiting_operators(view)


def _waiting_operators(view: HostView) -> Mask:
    """Return the operators that read values back and take longer than without waiting."""
    columns = view.columns
    operators = view.host & (columns.category == columns.category_code(OPERATOR))
    operators &= columns.duration_ns >= SHORTEST_WAIT_NS
    return view.named(lambda name: name in _WAITING_OPERATORS, operators)


def _groups(view: HostView, calls: Events) -> list[_Group]:
    """Return the calls by place, or by name if the place is unknown, the most expensive first.

    Those of the profiler are left out.
    """
    columns = view.columns
    charged = _charged(view, calls)
    idle_ns = _idle_ns(view, charged)
    by_key: dict[tuple[str, CallPlace], list[int]] = {}
    names = [columns.names[code] for code in columns.name[calls].tolist()]
    for at, place in enumerate(places(view, calls)):
        if not any(each in place.code for each in _PROFILERS):
            # A copy and its wait share one place; only calls without a place are grouped by name.
            by_key.setdefault(("" if str(place) else names[at], place), []).append(at)
    groups = [
        _Group(
            _most_spent(idle_ns[members], [names[at] for at in members]),
            place,
            calls[members],
            _sum(columns.duration_ns[calls[members]]),
            _sum(idle_ns[members]),
            view.occurrence(merged(charged.start_ns[members], charged.end_ns[members])),
        )
        for (_, place), members in by_key.items()
    ]
    return sorted(groups, key=lambda group: -group.lost_ns)


def _charged(view: HostView, calls: Events) -> Intervals:
    """Return, in the order of `calls`, the span in which the device's idle time is charged to each.

    Waits for the whole device without any later work are charged nothing.

    A call in which the device did nothing did not wait for it and is charged with its own time only, since the device
    was idle anyway. No time is charged twice: a call that begins within the span of an earlier one (another thread, or
    a nested call) is charged from the end of that span.
    """
    columns = view.columns
    start_ns = np.maximum(columns.start_ns[calls], view.window_ns[0])
    end_ns = np.minimum(columns.end_ns[calls], view.window_ns[1])
    works = np.flatnonzero(view.device)
    works = works[np.argsort(columns.start_ns[works], kind="stable")]
    work_ns = columns.start_ns[works]
    at = np.searchsorted(work_ns, end_ns)
    following_ns = np.where(at < len(work_ns), work_ns[np.minimum(at, len(work_ns) - 1)], view.window_ns[1])
    until_ns = np.minimum(np.minimum(following_ns, end_ns + int(limits.LAUNCH_GAP_NS.value)), view.window_ns[1])
    waited = _idle_ns(view, Intervals(start_ns, end_ns)) < end_ns - start_ns
    until_ns = np.where(waited, until_ns, end_ns)
    done_ns = np.maximum.accumulate(columns.end_ns[works])[np.maximum(at - 1, 0)] if len(works) else start_ns
    start_ns = np.where(waited & (at > 0), np.maximum(start_ns, done_ns), start_ns)
    of_device = columns.named(lambda name: _OF_DEVICE.fullmatch(name[:_NAME_CHARS]) is not None)[calls]
    work_follows = end_ns <= columns.start_ns[columns.on_device].max(initial=0)
    until_ns = np.where(of_device & ~work_follows, start_ns, until_ns)
    order = np.argsort(start_ns, kind="stable")
    reached_ns = np.maximum.accumulate(until_ns[order])
    start_ns[order[1:]] = np.maximum(start_ns[order[1:]], reached_ns[:-1])
    return Intervals(start_ns, np.maximum(start_ns, until_ns))


def _idle_ns(view: HostView, spans: Intervals) -> NDArray[np.int64]:
    """Return how long the device was idle in each span; spans may overlap."""
    busy_ns = measured_before(view.busy, np.concatenate((spans.start_ns, spans.end_ns))).reshape(2, -1)
    idle_ns: NDArray[np.int64] = (spans.end_ns - spans.start_ns) - (busy_ns[1] - busy_ns[0])
    return idle_ns


def _finding(view: HostView, group: _Group) -> Finding:
    per_call_ns = group.blocked_ns / len(group.calls)
    sentence = (
        f"{'1 call holds' if len(group.calls) == 1 else f'{len(group.calls)} calls hold'} the host in {group.name} for "
        f"{view.per_step(group.blocked_ns)}, "
        f"{per_call_ns / 1e3:.0f} us each"
    )
    dry = f"the device is idle {view.per_step(group.lost_ns)} in and right after them"
    where = f"called from {group.place}" if str(group.place) else "the trace does not record from where they are called"
    return Finding(
        bottleneck=CPU,
        cause=SYNCHRONISATION,
        ranks=view.ranks,
        evidence=(sentence, dry, where),
        subject=_subject(group.place.operator or group.name, group.place),
        lost_ns=group.lost_ns,
        steps=group.steps,
        confidence=HIGH if str(group.place) else MEDIUM,
    )


def _subject(name: str, place: CallPlace) -> str:
    """Format a call and the function that makes it; the evidence has the callers."""
    return " in ".join(filter(None, (name, readable(place.frame))))


def _launches_block(view: HostView, calls: Events) -> Iterator[Finding]:
    """Find launches that each wait for their kernel, i.e. CUDA_LAUNCH_BLOCKING or ASCEND_LAUNCH_BLOCKING is set.

    CUDA's launches themselves return late then; Ascend's are followed by a call that waits. For CUDA, short kernels do
    not count, because they can end during a launch in any trace.
    """
    launches = np.flatnonzero(view.named(lambda name: _LAUNCHES.fullmatch(name) is not None, view.calls))
    awaited, lasting = _own_kernels(view, launches)
    limit = limits.SYNC_LAUNCH_RATIO.value
    if lasting and len(awaited) > limit * lasting:
        calls = awaited
        sentence = f"{len(awaited)} of {lasting} launches of kernels above 10 us return when their kernel has ended"
    elif len(launches) >= limits.SYNC_LAUNCHES.value and len(calls) > limit * _launched(view, launches):
        sentence = f"{len(calls)} waiting calls for {len(launches)} launches"
    else:
        return
    yield Finding(
        bottleneck=CPU,
        cause=SYNCHRONISATION,
        ranks=view.ranks,
        evidence=(f"{sentence}: blocking launches are switched on",),
        subject="blocking launches",
        lost_ns=_sum(_idle_ns(view, _charged(view, calls))),
        confidence=MEDIUM,
    )


def _own_kernels(view: HostView, launches: Events) -> tuple[Events, int]:
    """Return the launches of one kernel above 10 us that return after it has ended, and how many launches qualify."""
    columns = view.columns
    works = np.flatnonzero(view.device & (columns.work == WorkKind.COMPUTE))
    launch = launches_of(columns)[works]
    count = np.bincount(launch[launch != ABSENT], minlength=len(columns))
    lasts = np.isin(launch, launches) & (columns.duration_ns[works] >= limits.SMALL_KERNEL_NS.value)
    lasts &= count[launch] == 1
    works, launch = works[lasts], launch[lasts]
    return np.sort(launch[columns.end_ns[works] <= columns.end_ns[launch]]), len(launch)


def _launched(view: HostView, launches: Events) -> int:
    """Return the number of launches if graphs launched their work one by one."""
    graphs = view.named(lambda name: _GRAPH_LAUNCHES.fullmatch(name) is not None, view.calls)
    launch = launches_of(view.columns)[view.device]
    return len(launches) + int(np.count_nonzero(graphs[launch[launch != ABSENT]]))


def _batch_norms(view: HostView) -> Iterator[Finding]:
    columns = view.columns
    operators = view.host & (columns.category == columns.category_code(OPERATOR))
    found = view.named(lambda name: _BATCH_NORM.fullmatch(name) is not None, operators)
    count = np.count_nonzero(found) / view.steps
    if count <= limits.SYNC_BATCH_NORM.value:
        return
    yield Finding(
        bottleneck=CPU,
        cause=SYNCHRONISATION,
        ranks=view.ranks,
        evidence=(f"SyncBatchNorm is called {count:.0f} times a step; each call exchanges statistics with all ranks",),
        subject="SyncBatchNorm",
        confidence=MEDIUM,
    )


def _evaluate_without_device(view: HostView) -> list[Finding] | NotEvaluated:
    columns = view.columns
    reads = view.named(lambda name: _READS_BACK.fullmatch(name) is not None, view.host & _on(view, view.thread))
    spent_ns = view.spans(reads).measure_ns()
    if view.share(spent_ns) < limits.READ_BACK_RATIO.value:
        reason = "no device: reading a value back makes nothing wait, and takes no time of its own here"
        return NotEvaluated(rule=SYNCHRONISATION, reason=reason)
    outer = np.flatnonzero(reads)
    outer = outer[_outermost(columns.start_ns[outer], columns.end_ns[outer])]
    where = _most_spent(columns.duration_ns[outer], places(view, outer))
    name = tidy(_most_spent(columns.duration_ns[outer], [columns.names[code] for code in columns.name[outer].tolist()]))
    sentence = f"{len(outer)} calls that read values back ({name}) hold the training thread {view.per_step(spent_ns)}"
    why = "there is no device to wait for: this is what the calls cost themselves; on a device it would run dry as well"
    return [
        Finding(
            bottleneck=CPU,
            cause=SYNCHRONISATION,
            ranks=view.ranks,
            evidence=(sentence, why, *((f"called from {where}",) if str(where) else ())),
            subject=_subject(name, where),
            lost_ns=spent_ns,
            confidence=MEDIUM,
        )
    ]


def _on(view: HostView, thread: int) -> Mask:
    mask: Mask = view.columns.thread == thread
    return mask


def _outermost(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> Events:
    """Return the spans that lie in no other span."""
    order = np.lexsort((-end_ns, start_ns))
    before_ns = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end_ns[order])[:-1]))
    return order[end_ns[order] > before_ns]


def _most_spent(spent_ns: NDArray[np.int64], keys: list[_Key]) -> _Key:
    totals: dict[_Key, int] = {}
    for key, each_ns in zip(keys, spent_ns.tolist(), strict=True):
        totals[key] = totals.get(key, 0) + each_ns
    return max(totals, key=lambda key: totals[key])


def _sum(times_ns: NDArray[np.int64]) -> int:
    return int(times_ns.sum())
