"""Repeated sequences of 2 to 10 kernels with the device idle between them (Hermes 4.2.2).

Every kernel begins one window of each length. Windows of equal names get equal numbers by prefix doubling: the number
of a window of n + 1 kernels is that of (window of n kernels, its last kernel). Numbers are exact, nothing is hashed.
Each length takes one sort: 100,000 kernels take about 0.1 s.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.host_causes import thresholds as limits
from lockstep.diagnosis.host_causes.view import HostView, measured_before
from lockstep.trace.columns import WorkKind

_SERIAL = re.compile(r"(?:-op|_)\d+$")
"""Suffixes that Ascend's graph mode adds to an operator's name to make it unique."""
_SEQUENCES_MAX = 5
_CANDIDATES_MAX = 200

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FusibleSequence:
    """Kernels that follow each other on one stream `count` times; times are sums over all repetitions.

    `first` are the events of the first repetition. `wall_ns` is from the first kernel's start to the last one's end,
    `kernel_ns` is the work in it, `idle_ns` the time in it in which the whole device had nothing to do.
    """

    kernels: tuple[str, ...]
    count: int
    wall_ns: int
    kernel_ns: int
    idle_ns: int
    first: tuple[int, ...] = ()

    @property
    def unit(self) -> tuple[str, ...]:
        """Return the repeating unit: the sequence itself, or the two or more kernels that it repeats."""
        count = len(self.kernels)
        periods = (each for each in range(2, count // 2 + 1) if self.kernels[each:] == self.kernels[: count - each])
        return self.kernels[: next(periods, count)]


@dataclass(frozen=True, slots=True)
class _Line:
    """Device work in order of stream and start, arrays of shape (n_works,).

    `joined` states that a kernel follows the one before it closely enough for both to be one sequence.
    """

    event: Rows
    code: Rows
    start_ns: Rows
    end_ns: Rows
    idle_before_ns: tuple[Rows, Rows]
    """The device's idle time before each start and before each end."""
    joined: NDArray[np.bool_]


def fusible_sequences(view: HostView, *, longest: int = int(limits.SEQUENCE_LENGTH.value)) -> list[FusibleSequence]:
    """Return the sequences of 2 to `longest` kernels worth fusing, most idle time first; no kernel counts in two.

    Copies, collectives, another stream and gaps longer than a launch explains (1 ms) end a sequence.
    """
    line, names = _line(view)
    least_ns = limits.SEQUENCE_RATIO.value * view.length_ns
    candidates = sorted(_candidates(line, longest, least_ns), key=lambda each: -each[2])[:_CANDIDATES_MAX]
    taken = np.zeros(len(line.code), np.bool_)
    found: list[FusibleSequence] = []
    for length, starts, _ in candidates:
        free = _apart(starts[~_any_taken(taken, starts, length)], length)
        sequence = _sequence(line, names, free, length)
        if _is_worth(sequence, least_ns):
            found.append(sequence)
            taken[(free[:, None] + np.arange(length)).ravel()] = True
        if len(found) == _SEQUENCES_MAX:
            break
    return sorted(found, key=lambda each: -each.idle_ns)


def _line(view: HostView) -> tuple[_Line, list[str]]:
    columns = view.columns
    works = np.flatnonzero(view.device)
    works = works[np.lexsort((columns.start_ns[works], columns.stream[works]))]
    distinct = {name: code for code, name in enumerate(dict.fromkeys(_SERIAL.sub("", name) for name in columns.names))}
    alike = np.array([distinct[_SERIAL.sub("", name)] for name in columns.names], np.int64)
    start_ns, end_ns = columns.start_ns[works], columns.end_ns[works]
    kernels = columns.work[works] == WorkKind.COMPUTE
    joined = np.zeros(len(works), np.bool_)
    joined[1:] = kernels[1:] & kernels[:-1] & (columns.stream[works][1:] == columns.stream[works][:-1])
    joined[1:] &= start_ns[1:] - end_ns[:-1] <= limits.LAUNCH_GAP_NS.value
    idle = view.idle()
    line = _Line(
        event=works,
        code=alike[columns.name[works]],
        start_ns=start_ns,
        end_ns=end_ns,
        idle_before_ns=(measured_before(idle, start_ns), measured_before(idle, end_ns)),
        joined=joined,
    )
    return line, list(distinct)


def _candidates(line: _Line, longest: int, least_ns: float) -> Iterator[tuple[int, Rows, int]]:
    """Yield (length, starts, idle ns) of every sequence that is frequent, long and idle enough."""
    names = int(line.code.max(initial=0)) + 1
    number = line.code.copy()  # of the window that begins at each kernel
    starts = np.arange(len(line.code))
    for length in range(2, longest + 1):
        starts = starts[starts + length <= len(line.code)]
        starts = starts[line.joined[starts + length - 1]]  # shorter windows checked that all before it are joined
        if not len(starts):
            return
        key = number[starts] * names + line.code[starts + length - 1]
        _, at, counts = np.unique(key, return_inverse=True, return_counts=True)
        number[starts] = at
        often = counts[at] >= limits.SEQUENCE_COUNT.value
        starts, at = starts[often], at[often]  # a longer window is at most as frequent
        yield from _worthy(line, length, starts, at, least_ns)


def _worthy(line: _Line, length: int, starts: Rows, at: Rows, least_ns: float) -> Iterator[tuple[int, Rows, int]]:
    """Yield the windows of one length by sequence; they may still overlap: too many, never too few."""
    order = np.argsort(at, kind="stable")
    first = np.flatnonzero(np.diff(at[order], prepend=-1))
    if not len(first):
        return
    ordered = starts[order]
    last = ordered + length - 1
    wall_ns = np.add.reduceat(line.end_ns[last] - line.start_ns[ordered], first)
    idle_ns = np.add.reduceat(line.idle_before_ns[1][last] - line.idle_before_ns[0][ordered], first)
    bounds = np.append(first, len(ordered))
    worthy = (wall_ns >= least_ns) & (idle_ns > (1 - limits.SEQUENCE_BUSY_RATIO.value) * wall_ns / 2)
    for group in np.flatnonzero(worthy).tolist():
        yield length, np.sort(ordered[bounds[group] : bounds[group + 1]]), int(idle_ns[group])


def _any_taken(taken: NDArray[np.bool_], starts: Rows, length: int) -> NDArray[np.bool_]:
    within: NDArray[np.bool_] = taken[starts[:, None] + np.arange(length)].any(axis=1)
    return within


def _apart(starts: Rows, length: int) -> Rows:
    """Return a maximal set of starts, from the left, whose windows do not overlap: "aaaa" contains "aa" twice."""
    kept, free_from = [], -1
    for start in starts.tolist():
        if start >= free_from:
            kept.append(start)
            free_from = start + length
    return np.array(kept, np.int64)


def _sequence(line: _Line, names: list[str], starts: Rows, length: int) -> FusibleSequence:
    if not len(starts):
        return FusibleSequence((), 0, 0, 0, 0)
    last = starts + length - 1
    kernels = starts[:, None] + np.arange(length)
    return FusibleSequence(
        kernels=tuple(names[code] for code in line.code[kernels[0]].tolist()),
        count=len(starts),
        wall_ns=int((line.end_ns[last] - line.start_ns[starts]).sum()),
        kernel_ns=int((line.end_ns[kernels] - line.start_ns[kernels]).sum()),
        idle_ns=int((line.idle_before_ns[1][last] - line.idle_before_ns[0][starts]).sum()),
        first=tuple(line.event[kernels[0]].tolist()),
    )


def _is_worth(sequence: FusibleSequence, least_ns: float) -> bool:
    often = sequence.count >= limits.SEQUENCE_COUNT.value and sequence.wall_ns >= least_ns
    return often and sequence.kernel_ns < limits.SEQUENCE_BUSY_RATIO.value * sequence.wall_ns
