"""Classifies each row of trace_view.json: its work, and where it ran.

Shape suffixes: E rows of the trace, T threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend import tracks
from lockstep.trace.ascend.gathered import GatheredEvents
from lockstep.trace.ascend.tracks import Track
from lockstep.trace.columns import ABSENT, ANNOTATION, KERNEL, OPERATOR, RUNTIME, Mask, WorkKind
from lockstep.trace.interned import Codes

GROUP_STREAM = -2
"""Rows of communication groups have no stream of the device: group 0 gets this number, group 1 the one below."""
_TID_MAX = 1 << 31


@dataclass(frozen=True, slots=True)
class Threads:
    """Classification of each thread's rows, arrays of shape (n_threads,).

    `track_T` is a `Track`, `part_T` states which threads hold parts of collectives, `stream_T` is a code into `streams`
    (device, stream) or ABSENT, `system_T` a code of the operating system's thread, which processes share.
    """

    track_T: NDArray[np.int8]  # noqa: N815
    part_T: Mask  # noqa: N815
    stream_T: NDArray[np.int32]  # noqa: N815
    system_T: NDArray[np.int64]  # noqa: N815
    streams: list[tuple[int, int]]


def threads_of(gathered: GatheredEvents) -> Threads:
    """Classify the rows of each thread code."""
    track, part, stream, system = [], [], [], []
    streams, system_threads = Codes(), Codes()
    for pid, tid in gathered.threads:
        metadata = gathered.processes.get(pid, {})
        labels = metadata.get("process_labels", "")
        kind = tracks.track_of(metadata.get("process_name", ""), labels)
        is_part = kind == Track.COMMUNICATION and tracks.is_part(gathered.thread_names.get((pid, tid), ""))
        number = tid if isinstance(tid, int) and 0 <= tid < _TID_MAX else ABSENT
        device = tracks.device_of(labels, ABSENT)
        code = ABSENT
        if kind == Track.HARDWARE:
            code = streams[device, number]
        elif kind == Track.COMMUNICATION and not is_part:
            code = streams[device, GROUP_STREAM - max(number, 0)]
        track.append(kind)
        part.append(is_part)
        stream.append(code)
        system.append(system_threads[tid])
    return Threads(
        np.array(track, np.int8),
        np.array(part, np.bool_),
        np.array(stream, np.int32),
        np.array(system, np.int64),
        list(streams),
    )


def classes_of(gathered: GatheredEvents, threads: Threads) -> tuple[NDArray[np.int32], NDArray[np.int8], list[str]]:
    """Return category code and `WorkKind` of every row, and the categories."""
    thread, name, former = (gathered.column(field) for field in ("thread", "name", "category"))
    track_E, part_E = threads.track_T[thread], threads.part_T[thread]  # noqa: N806
    rows = _Rows(len(thread))
    rows.note(track_E == Track.PYTHON, OPERATOR, WorkKind.HOST)  # MindSpore gives its rows no category
    marks = np.array([tracks.is_mark(each) for each in gathered.names], np.bool_)[name]
    rows.translate(np.isin(track_E, (Track.PYTHON, Track.UNKNOWN)), former, list(gathered.categories))
    as_operator = np.array([each in ("", OPERATOR) for each in gathered.categories], np.bool_)[former]
    rows.note((track_E == Track.PYTHON) & as_operator & marks, ANNOTATION, WorkKind.NOTHING)
    rows.note(track_E == Track.CANN, RUNTIME, WorkKind.HOST)
    rows.note(track_E == Track.GC, OPERATOR, WorkKind.HOST)
    rows.note(track_E == Track.MARKS, ANNOTATION, WorkKind.NOTHING)
    rows.note(track_E == Track.OVERLAP, tracks.OVERLAP, WorkKind.NOTHING)
    rows.note((track_E == Track.COMMUNICATION) & part_E, tracks.PART, WorkKind.NOTHING)
    rows.note((track_E == Track.COMMUNICATION) & ~part_E, KERNEL, WorkKind.COMMUNICATION)
    hardware = track_E == Track.HARDWARE
    names, types = list(gathered.names), list(gathered.texts["task_type"])
    for task, code, at in _pairs(gathered.column("task_type"), name, np.flatnonzero(hardware)):
        rows.note(at, *tracks.task_of(names[code], types[task]))
    if not np.any(rows.work == WorkKind.COMMUNICATION):
        rows.work[hardware & (rows.category == rows.codes[tracks.PART])] = WorkKind.COMMUNICATION
    return rows.category, rows.work, list(rows.codes)


class _Rows:
    def __init__(self, count: int) -> None:
        self.codes = Codes()
        self.category = np.full(count, self.codes[tracks.OTHER], np.int32)
        self.work = np.full(count, WorkKind.NOTHING, np.int8)

    def note(self, rows: Mask | NDArray[np.int64], category: str, work: WorkKind) -> None:
        self.category[rows], self.work[rows] = self.codes[category], work

    def translate(self, host: Mask, former: NDArray[np.int32], formers: list[str]) -> None:
        """Use the category that the file gives to rows of the host, if any."""
        today = [tracks.host_category(each) for each in formers]
        metadata = host & np.array([each != "" for each in formers], np.bool_)[former]
        self.category[metadata] = np.array([self.codes[category] for category, _ in today], np.int32)[former[metadata]]
        self.work[metadata] = np.array([int(work) for _, work in today], np.int8)[former[metadata]]


def _pairs(
    one: NDArray[np.int32], other: NDArray[np.int32], rows: NDArray[np.int64]
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Yield each pair of values that rows have, with those rows."""
    if not len(rows):
        return
    rows = rows[np.lexsort((other[rows], one[rows]))]
    changes = (np.diff(one[rows]) != 0) | (np.diff(other[rows]) != 0)
    for group in np.split(rows, np.flatnonzero(changes) + 1):
        yield int(one[group[0]]), int(other[group[0]]), group
