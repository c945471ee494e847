"""The innermost event on each host thread, at every moment.

Frames, operators and runtime calls nest in time. Annotations do not (they are entered inside one frame and left inside
another), so they are left out, except for the loader's, which is its only trace without stacks. On threads other than
the training thread frames are left out too: a helper thread is inside a waiting frame from beginning to end.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from lockstep.trace import names
from lockstep.trace.columns import ABSENT, ANNOTATION, COPY, DRIVER, OPERATOR, PYTHON, RUNTIME, TraceColumns
from lockstep.trace.intervals import Intervals, merged
from lockstep.trace.spans import flatten, in_order
from lockstep.trace.waiting import SHORTEST_WAIT_NS

_ENGINE_PREFIX = "autograd::engine::"
_RANK = {PYTHON: 0, ANNOTATION: 1, OPERATOR: 2, RUNTIME: 3, DRIVER: 4}
"""Of two that begin and end together the lower one calls the higher one."""
_COMPILED_PREFIXES = ("Torch-Compiled Region", "## Call CompiledFxGraph", "cpp_fused_")
"""What compiled code runs under; its kernels have no events of their own on the host."""
_WAITING_FRAMES = ("run_backward", "<built-in method wait of", "<built-in method barrier of")

_WAITING_OPERATORS = ("aten::_local_scalar_dense", "aten::nonzero")
"""The operators in which `item` and the like wait for the device. Traces with runtime calls show the wait itself;
traces without (Ascend, level 0) show 70 ms in an operator without callees."""


class Activity(IntEnum):
    """What a thread does in a piece of time."""

    HOST = 0
    COMPUTE = 1
    """In an operator itself, in a trace without a device: there the host computes."""
    WAITS_FOR_DEVICE = 2
    """In a call that synchronises, or in a copy that returns when it is done."""
    WAITS_FOR_THREAD = 3
    """In a call that waits for another thread: of the autograd engine, or of a collective backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostThread:
    """The pieces of one thread in order of time, disjoint; arrays of shape (n_pieces,).

    `event` is the innermost event, `owner` the event under whose name it counts: the loader for all that runs for it,
    the caller for a runtime call that does not wait, else the event itself; int64. `activity` is int8, an `Activity`.
    """

    thread: int
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    event: NDArray[np.int64]
    owner: NDArray[np.int64]
    activity: NDArray[np.int8]


def host_threads(columns: TraceColumns, training: int, launch: NDArray[np.int64]) -> list[HostThread]:
    """Return the threads that drive training: `training` first, then those of backward and those that launch.

    `launch` is what `launches_of` returns. Empty if `training` is ABSENT.
    """
    if training == ABSENT:
        return []
    drives = np.zeros(len(columns.threads), np.bool_)
    drives[columns.thread[launch[launch != ABSENT]]] = True
    engine = columns.named(lambda name: name.startswith(_ENGINE_PREFIX))
    engine &= columns.category == columns.category_code(OPERATOR)
    drives[columns.thread[engine]] = True
    drives[training] = False
    reader = _Reader(columns, training, launch)
    return [reader.read(thread) for thread in (training, *np.flatnonzero(drives).tolist())]


def when(threads: Iterable[HostThread], *activities: Activity) -> Intervals:
    """Return when any of these threads is at one of these activities."""
    pieces = [(thread, np.isin(thread.activity, activities)) for thread in threads]
    return merged(
        np.concatenate([_NONE, *(thread.start_ns[kept] for thread, kept in pieces)]),
        np.concatenate([_NONE, *(thread.end_ns[kept] for thread, kept in pieces)]),
    )


_NONE = np.zeros(0, np.int64)


class _Reader:
    """Reads the threads of one trace; what all of them need is looked up once."""

    def __init__(self, columns: TraceColumns, training: int, launch: NDArray[np.int64]) -> None:
        self._columns = columns
        self._training = training
        loader = columns.named(lambda name: names.kind_of(name, ANNOTATION) == names.DATA_KIND)
        call = columns.of_categories(RUNTIME, DRIVER)
        operator = columns.category == columns.category_code(OPERATOR)
        frame = columns.category == columns.category_code(PYTHON)
        in_training = columns.thread == training
        annotated = loader & (columns.category == columns.category_code(ANNOTATION))
        self._nests = operator | call | (in_training & (frame | annotated))
        self._nests &= columns.duration_ns > 0
        self._call = call
        self._loading = loader & in_training & (columns.duration_ns > 0)
        self._waits = frame & columns.named(_is_waiting)
        self._synchronises = call & columns.named(lambda name: "ynchroni" in name)
        self._synchronises[_waited_for(columns, launch)] = True
        self._can_wait = operator & columns.on_device.any() & columns.named(lambda name: name in _WAITING_OPERATORS)
        self._computes = np.zeros(len(columns), np.bool_)
        if not columns.on_device.any():
            self._computes = operator & columns.named(_is_computing)

    def read(self, thread: int) -> HostThread:
        columns = self._columns
        events = np.flatnonzero(self._nests & (columns.thread == thread))
        rank = np.array([_RANK.get(category, 0) for category in columns.categories], np.int8)[columns.category[events]]
        events = events[in_order(columns.start_ns[events], rank, -columns.duration_ns[events])]
        flat = flatten(columns.start_ns[events], columns.end_ns[events])
        start_ns, end_ns, event = flat.start_ns, flat.end_ns, events[flat.place]
        owner = events[self._owners(events, flat.caller)[flat.place]]
        loader = self._loader_at(start_ns) if thread == self._training else np.full(len(event), ABSENT)
        activity = np.zeros(len(event), np.int8)
        activity[self._computes[event] & (loader == ABSENT)] = Activity.COMPUTE
        is_long = end_ns - start_ns >= SHORTEST_WAIT_NS
        activity[self._waits[event] & is_long] = Activity.WAITS_FOR_THREAD
        activity[self._synchronises[event] | (self._can_wait[event] & is_long)] = Activity.WAITS_FOR_DEVICE
        return HostThread(
            thread=thread,
            start_ns=start_ns,
            end_ns=end_ns,
            event=event,
            owner=np.where(loader != ABSENT, loader, owner),
            activity=activity,
        )

    def _loader_at(self, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the event of the loader inside which each of these times lies, ABSENT for none."""
        events = np.flatnonzero(self._loading)
        events = events[np.argsort(self._columns.start_ns[events], kind="stable")]
        flat = flatten(self._columns.start_ns[events], self._columns.end_ns[events])
        if not len(flat.place):
            return np.full(len(time_ns), ABSENT, np.int64)
        at = np.searchsorted(flat.start_ns, time_ns, side="right") - 1
        return np.where((at >= 0) & (time_ns < flat.end_ns[at]), events[flat.place[at]], ABSENT)

    def _owners(self, events: NDArray[np.intp], caller: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return by place the nearest caller that is no runtime call, unless the call itself is worth a name."""
        passed_on = self._call[events] & ~self._synchronises[events] & (caller != ABSENT)
        owner = np.arange(len(events))
        while np.any(climbing := passed_on[owner]):  # as often as calls nest: a driver's in a runtime's in an operator
            owner[climbing] = caller[owner[climbing]]
        return owner


def _is_waiting(name: str) -> bool:
    return any(each in name for each in _WAITING_FRAMES)


def _is_computing(name: str) -> bool:
    """Whether an operator is a library's and computes, rather than a scope, the engine, or a collective's call."""
    if name.startswith(_COMPILED_PREFIXES):
        return True
    scope = name.startswith(_ENGINE_PREFIX) or names.kind_of(name, OPERATOR) == names.COMMUNICATION_KIND
    return "::" in name and not scope


def _waited_for(columns: TraceColumns, launch: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the calls that returned when their own copy had ended: pageable memory makes an asynchronous copy wait."""
    copies = np.flatnonzero((columns.category == columns.category_code(COPY)) & (launch != ABSENT))
    calls = launch[copies]
    ends_ns = columns.end_ns[copies]
    return calls[(ends_ns > columns.start_ns[calls]) & (ends_ns <= columns.end_ns[calls])]
