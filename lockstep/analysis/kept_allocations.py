"""Which functions allocated tensors that still existed at the end of a memory capture.

Memory events of torch's profiler ("[memory]", instant events with the address) are read from the file itself, because
columns contain complete events only. An allocation counts if it was made before the last captured step began and was
not freed, i.e. outlived a step. Allocations of one step that the next one frees, such as gradients, do not count.
Memory allocated by Python or NumPy does not belong to torch's allocator and is not in a trace.
"""

import mmap
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lockstep.contracts.memory_report import RetainedAllocation
from lockstep.diagnosis.frames import is_user_name
from lockstep.trace.columns import PYTHON, TraceColumns
from lockstep.trace.steps import find_steps

FUNCTIONS_MAX = 8
NAME_CHARS = 256
SEARCHED_MAX = 512
"""Largest allocations for which the function is searched: each search visits every frame."""
ALIVE_MAX = 1 << 20
"""Addresses that are tracked; a capture of some steps has tens of thousands."""
LEAST_BYTES = 4096
SIZE_MAX_BYTES = 1 << 46
"""Of one tensor; no device has 64 TiB, and sums of as many as are searched fit an int64."""
UNKNOWN = "outside of any function of the training"
_MARK = b'"[memory]"'
_EVENT_BYTES = 1024
_FIELDS = re.compile(rb'"(tid|ts|Bytes|Addr)":\s*"?(-?\d{1,20}(?:\.\d{1,9})?)')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class _Allocation:
    time_ns: int
    thread: int
    size_bytes: int


def kept_allocations(path: Path, columns: TraceColumns) -> list[RetainedAllocation]:
    """Return the functions of the training that hold most of this memory, the largest first.

    Empty if the file has no memory events, has fewer than two steps, or cannot be read.
    """
    steps = find_steps(columns)
    if len(steps) < 2:  # noqa: PLR2004  (the first one's can outlive it)
        return []
    last_step_ns = int(steps.start_ns[-1])
    alive = [each for each in _alive(path) if each.time_ns < last_step_ns and each.size_bytes >= LEAST_BYTES]
    alive.sort(key=lambda each: -each.size_bytes)
    frames = _Frames(columns)
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for each in alive[:SEARCHED_MAX]:
        name = frames.innermost(each.thread, each.time_ns)
        sizes[name] += each.size_bytes
        counts[name] += 1
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:FUNCTIONS_MAX]
    return [RetainedAllocation(function=name[:NAME_CHARS], bytes=size, count=counts[name]) for name, size in largest]


def _alive(path: Path) -> list[_Allocation]:
    """Return the allocations that were not freed, of a plain trace file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return list(_unfreed(text).values())
    except (OSError, ValueError):  # an empty file cannot be mapped
        return []


def _unfreed(text: mmap.mmap) -> dict[int, _Allocation]:
    at = text.find(_MARK)
    base = _BASE.search(text) if at >= 0 else None
    base_ns = int(base[1]) if base else 0
    alive: dict[int, _Allocation] = {}
    while at >= 0:
        fields = dict(_FIELDS.findall(text[at : at + _EVENT_BYTES].partition(b"}")[0]))
        if fields.keys() >= {b"tid", b"ts", b"Bytes", b"Addr"}:
            size_bytes, address = _whole(fields[b"Bytes"]), _whole(fields[b"Addr"])
            alive.pop(address, None)  # one that is allocated again was freed in an event that is not there
            if 0 < size_bytes <= SIZE_MAX_BYTES and len(alive) < ALIVE_MAX:
                time_ns = base_ns + _nanoseconds(fields[b"ts"])
                alive[address] = _Allocation(time_ns, _whole(fields[b"tid"]), size_bytes)
        at = text.find(_MARK, at + len(_MARK))
    return alive


def _whole(text: bytes) -> int:
    return int(text.partition(b".")[0])


def _nanoseconds(text: bytes) -> int:
    """Return a time in us as ns, exactly: epochs in us do not fit a double with their fractions."""
    whole, _, fraction = text.partition(b".")
    return int(whole) * _NS_PER_US + int(fraction[:3].ljust(3, b"0") or b"0")


class _Frames:
    """The training's own Python functions of a trace, by thread."""

    def __init__(self, columns: TraceColumns) -> None:
        events = np.flatnonzero(columns.of_categories(PYTHON) & columns.named(is_user_name))
        self._start_ns, self._end_ns = columns.start_ns[events], columns.end_ns[events]
        self._name = columns.name[events]
        self._names = columns.names
        threads = [str(thread) for _, thread in columns.threads]
        self._thread = np.array([threads[code] for code in columns.thread[events]], dtype=object)

    def innermost(self, thread: int, time_ns: int) -> str:
        """Return the function that ran last of those that ran at a time, on a thread."""
        running = (self._start_ns <= time_ns) & (time_ns <= self._end_ns) & (self._thread == str(thread))
        found = np.flatnonzero(running)
        if not len(found):
            return UNKNOWN
        latest = found[np.argmax(self._start_ns[found])]
        return str(self._names[self._name[latest]])
