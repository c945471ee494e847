"""Callers and callees on one thread, by nesting in time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.messages import CallNode
from lockstep.diagnosis.frames import is_user_frame
from lockstep.diagnosis.host_causes.view import HostView
from lockstep.trace.columns import ABSENT, OPERATOR, PYTHON, Mask
from lockstep.trace.names import PYTHON_KIND, tidy
from lockstep.trace.tree import DEPTH_MAX, ROOT

_CALLED_FROM = " < "
_STACK_FRAMES = 3
"""Frames shown: the innermost one of the user's code and its callers."""

Events = NDArray[np.intp]
"""Indices of events, array of shape (n_chosen,)."""


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Origin of a call: the outermost operator around it, and the code; empty if unknown."""

    operator: str = ""
    code: str = ""

    @property
    def frame(self) -> str:
        """Return the innermost frame of the code."""
        return self.code.partition(_CALLED_FROM)[0]

    def __str__(self) -> str:
        """Return both as a phrase."""
        return " in ".join(filter(None, (self.operator, self.code)))


def own_ns_by_name(view: HostView, among: Mask) -> dict[str, int]:
    """Return the self time of events of one thread by tidy name: their time less that of the events they call, ns.

    Longest first. Events are clipped to the window; an event that crosses its caller's end counts up to there.
    """
    columns = view.columns
    events = np.flatnonzero(among)
    starts_ns = np.maximum(columns.start_ns[events], view.window_ns[0])
    ends_ns = np.minimum(columns.end_ns[events], view.window_ns[1])
    order = np.lexsort((-ends_ns, starts_ns))
    own_ns = np.zeros(len(columns.names), np.int64).tolist()
    stack: list[tuple[int, int]] = []  # (end, name)
    rows = zip(starts_ns[order].tolist(), ends_ns[order].tolist(), columns.name[events[order]].tolist(), strict=True)
    for start_ns, end_ns, name in rows:
        while stack and stack[-1][0] <= start_ns:
            stack.pop()
        cut_ns = min(end_ns, stack[-1][0]) if stack else end_ns
        if stack:
            own_ns[stack[-1][1]] -= cut_ns - start_ns
        own_ns[name] += cut_ns - start_ns
        stack.append((cut_ns, name))
    by_name: dict[str, int] = {}
    for code in np.unique(columns.name[events]).tolist():
        text = tidy(columns.names[code])
        by_name[text] = by_name.get(text, 0) + own_ns[code]
    return dict(sorted(by_name.items(), key=lambda item: -item[1]))


def places(view: HostView, calls: Events) -> list[CallPlace]:
    """Return the origin of each call.

    The code is the stack recorded with the call or with an operator around it, else the frames around it on its thread.
    Threads are those of the operating system, since Ascend's profiler puts Python's and CANN's rows of one thread into
    separate processes. Frames of user code take precedence.
    """
    columns = view.columns
    found = [CallPlace()] * len(calls)
    shown = _Frames()
    of_host = view.host & np.isin(columns.category, _codes(view, (PYTHON, OPERATOR)))
    for thread in np.unique(columns.thread[calls]).tolist():
        wanted = np.flatnonzero(columns.thread[calls] == thread)
        alike = [code for code, (_, tid) in enumerate(columns.threads) if tid == columns.threads[thread][1]]
        callers = np.flatnonzero(of_host & np.isin(columns.thread, alike))
        for at, around in _around(view, callers, calls[wanted]):
            found[wanted[at]] = _place(view, int(calls[wanted[at]]), around, shown)
    return found


def is_user_code(frame: str) -> bool:
    """Whether a frame's name is of the user's own code."""
    return is_user_frame(CallNode(parent=ROOT, name=frame, kind=PYTHON_KIND, total_ns=0, self_ns=0, count=0))


def _codes(view: HostView, categories: Iterable[str]) -> list[int]:
    return [view.columns.category_code(category) for category in categories]


def _around(view: HostView, callers: Events, calls: Events) -> Iterator[tuple[int, list[int]]]:
    """Yield, in order of time, each call's index in `calls` and the callers that are open when it begins.

    Innermost first; the list is reused for the next call, so it must not be kept.
    """
    columns = view.columns
    begins_ns = np.sort(columns.start_ns[calls])
    bounds_ns = columns.start_ns[callers], columns.start_ns[callers] + columns.duration_ns[callers]
    first, stop = (np.searchsorted(begins_ns, each_ns) for each_ns in bounds_ns)
    callers = callers[first < stop]  # no call begins inside the others, which are nearly all
    callers = callers[np.lexsort((-columns.duration_ns[callers], columns.start_ns[callers]))]
    starts_ns, ends_ns = columns.start_ns[callers].tolist(), columns.end_ns[callers].tolist()
    stack: list[int] = []
    following = 0
    for at in np.argsort(columns.start_ns[calls], kind="stable").tolist():
        at_ns = int(columns.start_ns[calls[at]])
        while following < len(starts_ns) and starts_ns[following] <= at_ns:
            while stack and ends_ns[stack[-1]] <= starts_ns[following]:
                stack.pop()
            if len(stack) < DEPTH_MAX:
                stack.append(following)
            following += 1
        while stack and ends_ns[stack[-1]] <= at_ns:
            stack.pop()
        yield at, [event for each in reversed(stack) if (event := int(callers[each])) != calls[at]]


class _Frames(dict[str, tuple[str, bool]]):
    """Maps a frame's name to how it is shown and whether it is user code; each name is examined once."""

    def __missing__(self, name: str) -> tuple[str, bool]:
        tidied = tidy(name)
        self[name] = found = tidied, is_user_code(tidied)
        return found

    def shown(self, names: Iterable[str]) -> str:
        """Return the innermost frames of user code, or of any code if there is none."""
        frames = [self[name] for name in names]
        users = [text for text, is_users in frames if is_users]
        return _CALLED_FROM.join((users or [text for text, _ in frames])[:_STACK_FRAMES])


def _place(view: HostView, call: int, around: list[int], frames: _Frames) -> CallPlace:
    columns = view.columns
    operator_code = columns.category_code(OPERATOR)
    operators = [each for each in around if columns.category[each] == operator_code]
    operator = columns.names[columns.name[operators[-1]]] if operators else ""
    for each in (call, *operators):
        if (code := int(columns.stack[each])) != ABSENT:
            lines = (line.strip() for line in columns.stacks[code].replace(";", "\n").splitlines())
            return CallPlace(operator, frames.shown(line for line in lines if line))
    return CallPlace(
        operator,
        frames.shown(columns.names[columns.name[each]] for each in around if columns.category[each] != operator_code),
    )
