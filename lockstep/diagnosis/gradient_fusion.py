"""Gradients of a step and the link that sums them, from a trace: the inputs of Hermes' fusion (appendix E).

Gradients are the all-reduces of the group that sums most bytes; with DDP these are its buckets, which are gradients
already merged, and smaller pieces leave no trace. On a device a gradient is ready when the kernels launched before it
have ended, on a host backend when it was called. If sizes differ enough, their shortest times give latency and
bandwidth; durations contain waiting for other ranks, and the shortest of a size contains the least.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import MalformedError
from lockstep.diagnosis.communication_causes.collectives import RankCollectives, collectives_of
from lockstep.diagnosis.communication_causes.matching import match_collectives
from lockstep.diagnosis.communication_causes.waiting import transmission_ns
from lockstep.simulator.fusion import Gradient, Task
from lockstep.simulator.hardware.collectives import ALL_REDUCE
from lockstep.trace.columns import ABSENT, OPERATOR, TraceColumns, WorkKind
from lockstep.trace.launches import launches_of
from lockstep.trace.steps import Steps, find_steps, windows_of

GRADIENTS_MAX = 2000
"""Largest number of gradients of one step: the exact algorithm takes quadratic time."""
_SIZES_APART = 1.5
"""Ratio of largest to smallest message from which latency and bandwidth can be separated."""
_NS = 1e9
_CALL = "c10d::allreduce_"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummingLink:
    """Summing V bytes takes `latency_s` + V / `bytes_per_second`; `source` states how these are known."""

    latency_s: float
    bytes_per_second: float
    source: str

    def seconds(self, volume_bytes: float) -> float:
        """Return the time to sum a volume."""
        return self.latency_s + volume_bytes / self.bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGradients:
    """The gradients of a typical step: when each is ready, from the step's beginning, and its bytes.

    `end_s` is the measured end of the last sum, None if there was none. `link` is None if the trace does not determine
    it; `why` is then the reason.
    """

    ready_s: tuple[float, ...]
    volume_bytes: tuple[float, ...]
    end_s: float | None = None
    link: SummingLink | None = None
    why: str = ""
    steps: int = 0

    def task(self, link: SummingLink) -> Task:
        """Return the problem that `lockstep.simulator.fusion` solves."""
        apart_s = np.diff(self.ready_s, prepend=0.0).tolist()
        gradients = [Gradient(size, seconds) for size, seconds in zip(self.volume_bytes, apart_s, strict=True)]
        return Task(gradients, link.seconds)


def gradients_of(columns: TraceColumns, others: Sequence[RankCollectives] = (), *, where: str) -> StepGradients:
    """Return the gradients of one rank's trace; collectives of `others`, more ranks, improve the estimate of the link.

    Raises
    ------
    MalformedError
        There is no step with all-reduces of known size, or one has too many; `where` names the trace.
    """
    own = collectives_of(columns)
    chosen = _of_gradients(own)
    if not len(chosen):
        got = f"{Counter(own.kinds).get(ALL_REDUCE, 0)} all-reduces, none with its size"
        raise MalformedError("gradients", where=where, got=got, expected="all-reduces with bytes (record_shapes=True)")
    steps = find_steps(columns)
    ready_ns = _ready_ns(columns, own, chosen)
    rows = list(_by_step(columns, steps, own, chosen, ready_ns))
    if not rows:
        raise MalformedError("gradients", where=where, got="no whole step with an all-reduce", expected="a step")
    sizes = Counter(volumes for volumes, _, _ in rows).most_common(1)[0][0]
    if len(sizes) > GRADIENTS_MAX:
        expected = f"at most {GRADIENTS_MAX} in a step"
        raise MalformedError("gradients", where=where, got=f"{len(sizes)} all-reduces", expected=expected)
    alike = [(ready, end) for volumes, ready, end in rows if volumes == sizes]
    ready_s = np.maximum.accumulate(np.median([ready for ready, _ in alike], axis=0)) / _NS
    link, why = _link(own, chosen, others)
    return StepGradients(
        ready_s=tuple(ready_s.tolist()),
        volume_bytes=tuple(map(float, sizes)),
        end_s=float(np.median([end for _, end in alike])) / _NS,
        link=link,
        why=why,
        steps=len(alike),
    )


def fit_link(volume_bytes: Sequence[float], seconds: Sequence[float], source: str) -> SummingLink | None:
    """Fit latency and bandwidth to the shortest time of each size; None if sizes are too similar to separate them."""
    shortest: dict[float, float] = {}
    for size, spent_s in zip(volume_bytes, seconds, strict=True):
        if size > 0 and spent_s > 0:
            shortest[size] = min(spent_s, shortest.get(size, spent_s))
    if not shortest or max(shortest) < _SIZES_APART * min(shortest):
        return None
    sizes, times = np.array(list(shortest)), np.array(list(shortest.values()))
    design = np.stack([1 / times, sizes / times], axis=1)  # relative errors, so that small messages count
    (latency_s, per_byte_s), *_ = np.linalg.lstsq(design, np.ones(len(times)), rcond=None)
    if latency_s < 0:  # no message was faster than its bytes require
        latency_s, per_byte_s = 0.0, float((times / sizes).mean())
    if per_byte_s <= 0:
        return None
    return SummingLink(latency_s=float(latency_s), bytes_per_second=float(1 / per_byte_s), source=source)


def _of_gradients(own: RankCollectives) -> NDArray[np.int64]:
    """Return the all-reduces of the group that sums most bytes, which leaves out barriers, losses and other groups."""
    is_sum = np.array([kind == ALL_REDUCE for kind in own.kinds], np.bool_).reshape(len(own))
    places = np.flatnonzero(is_sum & (own.bytes > 0))
    moved: dict[object, int] = defaultdict(int)
    for place in places.tolist():
        moved[own.groups[place]] += int(own.bytes[place])
    if not moved:
        return places
    most = max(moved, key=lambda group: moved[group])
    return places[[own.groups[place] == most for place in places.tolist()]]


def _ready_ns(columns: TraceColumns, own: RankCollectives, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each gradient was ready, at the latest when its sum began, ns."""
    start_ns = own.start_ns[chosen]
    events = np.flatnonzero(columns.work == WorkKind.COMMUNICATION)
    events = events[np.argsort(columns.start_ns[events], kind="stable")]
    launch = launches_of(columns)
    computing = np.flatnonzero(columns.on_device & (columns.work == WorkKind.COMPUTE) & (launch != ABSENT))
    if len(computing) and len(events) == len(own):
        called_ns = columns.start_ns[launch[computing]]
        order = np.argsort(called_ns, kind="stable")
        done_ns = np.maximum.accumulate(columns.end_ns[computing][order])
        launched = launch[events[chosen]]
        at = np.searchsorted(called_ns[order], columns.start_ns[launched]) - 1
        known = (launched != ABSENT) & (at >= 0)
        return np.minimum(np.where(known, done_ns[at], start_ns), start_ns)
    called = columns.named(lambda name: name == _CALL) & (columns.category == columns.category_code(OPERATOR))
    called_ns = np.sort(columns.start_ns[called])
    if len(called_ns) == len(start_ns):  # each sum and its call, in order
        return np.minimum(called_ns, start_ns)
    return start_ns


def _by_step(
    columns: TraceColumns,
    steps: Steps,
    own: RankCollectives,
    chosen: NDArray[np.int64],
    ready_ns: NDArray[np.int64],
) -> Iterator[tuple[tuple[int, ...], list[int], int]]:
    """Yield, for each whole step, the bytes of its gradients, when they are ready, and the end of the last sum."""
    windows = windows_of(columns, steps)
    start_ns = own.start_ns[chosen]
    at = np.searchsorted(windows.start_ns, start_ns, side="right") - 1
    at[(at >= 0) & (start_ns >= windows.end_ns[at])] = ABSENT
    whole = [step for step in range(len(steps)) if not steps.partial[step]] or list(range(len(steps)))
    for step in whole:
        mine = np.flatnonzero(at == step)
        if len(mine):
            mine = mine[np.argsort(ready_ns[mine], kind="stable")]
            begin_ns = int(windows.start_ns[step])
            ends_ns = start_ns[mine] + own.duration_ns[chosen[mine]]
            ready = np.maximum(ready_ns[mine] - begin_ns, 0).tolist()
            yield tuple(own.bytes[chosen[mine]].tolist()), ready, int(ends_ns.max()) - begin_ns


def _link(
    own: RankCollectives, chosen: NDArray[np.int64], others: Sequence[RankCollectives]
) -> tuple[SummingLink | None, str]:
    if len(others) > 1:
        table = match_collectives(others)
        spent_s = transmission_ns(table) / _NS
        rows = [row for row, kind in enumerate(table.kinds) if kind == ALL_REDUCE and spent_s[row] > 0]
        source = f"fitted to {len(rows)} sums from the arrival of the last of {len(others)} ranks on"
        link = fit_link([float(table.bytes[row]) for row in rows], [float(spent_s[row]) for row in rows], source)
        if link is not None:
            return link, ""
    sizes = own.bytes[chosen].astype(np.float64).tolist()
    source = f"fitted to the shortest of {len(set(sizes))} sizes; one rank's times hold some waiting"
    link = fit_link(sizes, (own.duration_ns[chosen] / _NS).tolist(), source)
    if link is not None:
        return link, ""
    span = f"{min(sizes) / 1e6:.3g} to {max(sizes) / 1e6:.3g} MB"
    return (
        None,
        f"all-reduces of {span} cannot distinguish latency from bandwidth (sizes {_SIZES_APART} times apart would)",
    )
