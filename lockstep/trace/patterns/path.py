# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""All functions of a trace and how long each is on the critical path, by class priority (PerfTracker, section 4.2).

A function is on the path while nothing of higher priority runs (`FunctionClass`); a host function besides only while
it is in none of its callees. Collectives of host backends move data on the cores that compute: they are on the path
only where the training thread waits for them (`trace.waiting`).

Shape suffixes: E executions (events) in the window, F functions: device ones, then call stacks, then OUTSIDE.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lockstep.contracts.limits import PATTERN_DEPTH_MAX
from lockstep.trace import names
from lockstep.trace.columns import ANNOTATION, Mask, TraceColumns, WorkKind
from lockstep.trace.intervals import Intervals, Times, merged, without
from lockstep.trace.patterns.call_stacks import ROOT, NestedEvents, nest, own_time
from lockstep.trace.patterns.exposure import CoveredTime, exposed, pieces
from lockstep.trace.patterns.functions import Function, device_functions, short
from lockstep.trace.patterns.pattern import OUTSIDE, FunctionClass
from lockstep.trace.patterns.samples import Numbers
from lockstep.trace.spans import in_order
from lockstep.trace.waiting import waits

_CALLS_BY_ANNOTATION = (names.DATA_KIND, names.GC_KIND)
"""Annotations that stand for a call: the loader's and the collector's. Others cross frames."""


class Executions(NamedTuple):
    """Executions of all functions, cut to the window and relative to its start; arrays of shape (n_events,).

    `event` is the place in the trace's columns.
    """

    event: Numbers
    function: Numbers
    start_ns: Times
    end_ns: Times


@dataclass(frozen=True, slots=True)
class FunctionsOnPath:
    """All functions of a window with their executions.

    `exposed_ns` is the time of each function on the path, array of shape (n_functions,). Which segments the path has,
    in order of time: `lockstep.trace.critical_path`.
    """

    functions: list[Function]
    exposed_ns: Times
    executions: Executions
    _stacks: NestedEvents
    _texts: list[str]
    _first_stack: int

    def callers(self, function: int) -> tuple[str, ...]:
        """Return the callers of a function, outermost first; none for what is no host function."""
        node = function - self._first_stack + 1
        if not ROOT < node < len(self._stacks.stacks):
            return ()
        return tuple(self._texts[code] for code in self._stacks.stacks.path(node)[-PATTERN_DEPTH_MAX - 1 : -1])


def functions_on_path(columns: TraceColumns, window_ns: tuple[int, int], thread: int) -> FunctionsOnPath:
    """Return every function of the window with its time on the path; `thread` is the code of the training thread.

    Raises
    ------
    MalformedError
        The window is longer than any capture.
    """
    window = _Window(columns, window_ns, thread)
    device_E = np.flatnonzero(window.seen & (columns.work > WorkKind.HOST))
    function_E, functions = device_functions(columns, device_E)
    device_ns = window.device_exposed(device_E, function_E, len(functions))
    host_E, nested, texts = window.nested()
    own_ns = own_time(nested, window.free_of_device.free(window.start_ns[host_E], nested.end_ns))[ROOT + 1 :]
    named = nested.node != ROOT
    host_functions = [(FunctionClass.HOST, texts[code]) for code in nested.stacks.name[ROOT + 1 :]]
    return FunctionsOnPath(
        [*functions, *host_functions, (FunctionClass.HOST, OUTSIDE)],
        np.concatenate((device_ns, own_ns, [window.outside_ns(own_ns)])),
        Executions(
            np.concatenate((device_E, host_E[named])),
            np.concatenate((function_E, nested.node[named] - 1 + len(functions))),
            np.concatenate((window.start_ns[device_E], window.start_ns[host_E[named]])),
            np.concatenate((window.end_ns[device_E], nested.end_ns[named])),
        ),
        nested,
        texts,
        len(functions),
    )


class _Window:
    """The events of a trace inside a window, and what covers what.

    `free_of_device` is covered where anything but host functions is on the path.
    """

    def __init__(self, columns: TraceColumns, window_ns: tuple[int, int], thread: int) -> None:
        self._columns = columns
        self._length_ns = window_ns[1] - window_ns[0]
        self.start_ns = np.clip(columns.start_ns, *window_ns) - window_ns[0]
        self.end_ns = np.clip(columns.end_ns, *window_ns) - window_ns[0]
        self.seen: Mask = self.start_ns < self.end_ns
        self._host = self.seen & (columns.thread == thread) & ((columns.work == WorkKind.HOST) | _calls(columns))
        communication = self.seen & (columns.work == WorkKind.COMMUNICATION)
        self._on_host = communication & ~columns.on_device
        self._compute = self._merged(self.seen & (columns.work == WorkKind.COMPUTE))
        self._local = _union(self._compute, self._merged(self.seen & (columns.work == WorkKind.MEMORY)))
        found = waits(columns, self._host, self._on_host)
        inside = (np.clip(each, *window_ns) - window_ns[0] for each in found)
        self._waits = without(merged(*inside), self._local)
        device = _union(self._local, self._merged(communication & columns.on_device))
        self.free_of_device = CoveredTime(_union(device, self._waits))

    def device_exposed(self, device_E: Numbers, function_E: Numbers, functions: int) -> Times:
        """Return the time on the path of everything but host functions."""
        work_E, on_host_E = self._columns.work[device_E], self._on_host[device_E]
        whole = Intervals(np.zeros(1, np.int64), np.full(1, self._length_ns))
        nothing = Intervals(whole.start_ns[:0], whole.end_ns[:0])
        layers = (
            (work_E == WorkKind.COMPUTE, nothing),
            (work_E == WorkKind.MEMORY, self._compute),
            ((work_E == WorkKind.COMMUNICATION) & ~on_host_E, self._local),
            (on_host_E, without(whole, self._waits)),
        )
        exposed_ns = np.zeros(functions, np.int64)
        for chosen, covering in layers:
            at = device_E[chosen]
            found = pieces(function_E[chosen], self.start_ns[at], self.end_ns[at], self._length_ns)
            exposed_ns += exposed(found, CoveredTime(covering), functions)
        return exposed_ns

    def nested(self) -> tuple[Numbers, NestedEvents, list[str]]:
        """Return the training thread's calls in order, their stacks, and the texts of the stacks' names."""
        host_E = np.flatnonzero(self._host)
        host_E = host_E[in_order(self.start_ns[host_E], -self.end_ns[host_E])]
        used, name_E = np.unique(self._columns.name[host_E], return_inverse=True)
        codes: dict[str, int] = {}  # names that are alike once tidy are one call
        text_of_used = [codes.setdefault(short(self._columns.names[name]), len(codes)) for name in used.tolist()]
        code_E = np.array(text_of_used, np.int64)[name_E] if len(used) else name_E
        return host_E, nest(self.start_ns[host_E], self.end_ns[host_E], code_E), list(codes)

    def outside_ns(self, own_ns: Times) -> int:
        """Return the time in which nothing is on the path, given what every call has."""
        ends_ns = np.array([0, self._length_ns])
        return int(self.free_of_device.free(ends_ns[:1], ends_ns[1:])[0] - own_ns.sum())

    def _merged(self, chosen: Mask) -> Intervals:
        return merged(self.start_ns[chosen], self.end_ns[chosen])


def _calls(columns: TraceColumns) -> Mask:
    stands: Mask = columns.named(lambda name: names.kind_of(name, ANNOTATION) in _CALLS_BY_ANNOTATION)
    stands &= columns.category == columns.category_code(ANNOTATION)
    return stands


def _union(one: Intervals, other: Intervals) -> Intervals:
    return merged(*(np.concatenate(each) for each in zip(one, other, strict=True)))
