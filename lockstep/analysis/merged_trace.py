"""The traces of all ranks as one Chrome trace, which Perfetto opens, with each finding as a track of its own.

A process for each rank with its threads and device streams, and one called "Lockstep findings". A finding's track has a
slice wherever its function or kernel runs on its ranks, or over the rank's steps where it names none. Flows lead from
launches to what they launched. Ranks whose traces have a wall clock are laid side by side by it; without one in every
trace, each rank's first step begins at the same time.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.trace import names
from lockstep.trace.columns import ABSENT, TraceColumns
from lockstep.trace.launches import launches_of
from lockstep.trace.patterns.functions import short
from lockstep.trace.steps import find_steps

FINDINGS_PROCESS = "Lockstep findings"
FINDINGS_MAX = 100
SLICES_MAX = 10_000
"""Of one finding; the longest are drawn."""
_SLICED_RANKS_MAX = 64
_STREAMS_FROM = 1 << 20
"""Thread number of the first device stream of a rank, above any code of a host thread."""
_FLOW_RANK = 1 << 40

Event = dict[str, Any]


class PlacedTrace(NamedTuple):
    """One rank's trace, and what is subtracted from its clock, in ns."""

    columns: TraceColumns
    origin_ns: int


def write_merged(path: Path, ranks: Mapping[int, TraceColumns], findings: Sequence[Mapping[str, Any]]) -> int:
    """Write the traces by rank and the findings of a summary to `path`, gzipped if it ends in .gz; return the events.

    Raises
    ------
    OSError
        It cannot be written.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    count = 0
    with opened(path, "wt", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        for count, event in enumerate(merged_events(ranks, findings), 1):
            file.write((",\n" if count > 1 else "\n") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
    return count


def merged_events(ranks: Mapping[int, TraceColumns], findings: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
    """Yield the events of the merged trace; `ts` and `dur` in microseconds, exact to the nanosecond."""
    placed = place_ranks(ranks)
    for order, (rank, each) in enumerate(sorted(placed.items())):
        host = f" on {each.columns.metadata.host}" if each.columns.metadata.host else ""
        yield from _process(rank, f"rank {rank}{host}", order + 1)
        yield from _rank_events(rank, each)
    if findings:
        process = max(placed, default=0) + 1
        yield from _process(process, FINDINGS_PROCESS, 0)
        for number, finding in enumerate(findings[:FINDINGS_MAX], 1):
            yield from _finding_events(process, number, finding, placed)


def place_ranks(ranks: Mapping[int, TraceColumns]) -> dict[int, PlacedTrace]:
    """Return the traces with origins that lay them side by side: by their clocks, or by their first steps."""
    if all(columns.metadata.clock_is_shared for columns in ranks.values()):
        first_ns = min((int(columns.start_ns.min()) for columns in ranks.values() if len(columns)), default=0)
        return {rank: PlacedTrace(columns, first_ns) for rank, columns in ranks.items()}
    begins_ns = {rank: int(find_steps(columns).start_ns[0]) for rank, columns in ranks.items()}  # one step at least
    starts_ns = {rank: int(columns.start_ns.min()) for rank, columns in ranks.items() if len(columns)}
    lead_ns = max((begins_ns[rank] - start_ns for rank, start_ns in starts_ns.items()), default=0)
    return {rank: PlacedTrace(columns, begins_ns[rank] - lead_ns) for rank, columns in ranks.items()}


def _process(process: int, name: str, order: int) -> Iterator[Event]:
    yield _meta(process, 0, "process_name", {"name": name})
    yield _meta(process, 0, "process_sort_index", {"sort_index": order})


def _meta(process: int, thread: int, name: str, arguments: dict[str, Any]) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": name, "args": arguments}


def _us(time_ns: int) -> float:
    return time_ns / 1000


def _rank_events(rank: int, placed: PlacedTrace) -> Iterator[Event]:
    columns = placed.columns
    track = _tracks(columns)
    yield from _track_names(rank, columns, np.unique(track).tolist())
    rows = zip(
        (columns.start_ns - placed.origin_ns).tolist(),
        columns.duration_ns.tolist(),
        track.tolist(),
        columns.name.tolist(),
        columns.category.tolist(),
        strict=True,
    )
    for start_ns, duration_ns, tid, name, category in rows:
        place = {"pid": rank, "tid": tid, "ts": _us(start_ns), "dur": _us(duration_ns)}
        yield {"ph": "X", "name": columns.names[name], "cat": columns.categories[category], **place}
    yield from _flows(rank, placed, track)


def _tracks(columns: TraceColumns) -> NDArray[np.int64]:
    """Return the track of each event: its thread, or its stream for work on a device."""
    return np.where(columns.on_device, columns.stream.astype(np.int64) + _STREAMS_FROM, columns.thread.astype(np.int64))


def _track_names(rank: int, columns: TraceColumns, tracks: Iterable[int]) -> Iterator[Event]:
    for track in tracks:
        if track >= _STREAMS_FROM:
            device, stream = columns.streams[track - _STREAMS_FROM]
            name = f"device {device} stream {stream}"
        else:
            thread = columns.threads[track][1]
            name = " ".join([columns.thread_names.get(track, "thread"), str(thread)])
        yield _meta(rank, track, "thread_name", {"name": name})
        yield _meta(rank, track, "thread_sort_index", {"sort_index": track})


def _flows(rank: int, placed: PlacedTrace, track: NDArray[np.int64]) -> Iterator[Event]:
    launch = launches_of(placed.columns)
    for event in np.flatnonzero(launch != ABSENT).tolist():
        call = int(launch[event])
        shared = {"cat": "launch", "name": "launch", "id": rank * _FLOW_RANK + event, "pid": rank}
        starts_ns = placed.columns.start_ns
        yield {"ph": "s", **shared, "tid": int(track[call]), "ts": _us(int(starts_ns[call]) - placed.origin_ns)}
        at_us = _us(int(starts_ns[event]) - placed.origin_ns)
        yield {"ph": "f", "bp": "e", **shared, "tid": int(track[event]), "ts": at_us}


def _finding_events(
    process: int, number: int, finding: Mapping[str, Any], placed: Mapping[int, PlacedTrace]
) -> Iterator[Event]:
    title = f"{finding['bottleneck']}: {finding['cause'].replace('_', ' ')}"
    yield _meta(process, number, "thread_name", {"name": f"{number}. {title}"})
    yield _meta(process, number, "thread_sort_index", {"sort_index": number})
    spans = sorted(_spans(finding, placed), key=lambda span: span[0] - span[1])[:SLICES_MAX]
    arguments = {
        "ranks": finding["ranks"],
        "subject": finding["subject"],
        "lost_ns": finding["lost_ns"],
        "evidence": finding["evidence"],
        "advice": [each["suggestion"] for each in finding["advice"]],
    }
    for start_ns, end_ns, rank in _apart(sorted(spans)):
        name = f"{finding['subject'] or title} (rank {rank})"
        place = {"pid": process, "tid": number, "ts": _us(start_ns), "dur": _us(end_ns - start_ns)}
        yield {"ph": "X", "name": name, "cat": "finding", **place, "args": arguments}


def _spans(finding: Mapping[str, Any], placed: Mapping[int, PlacedTrace]) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and rank of each place of a finding."""
    for rank in finding["ranks"][:_SLICED_RANKS_MAX]:
        if rank not in placed:
            continue
        columns, origin_ns = placed[rank]
        events = places_of(columns, finding["subject"])
        if len(events):
            starts, ends = columns.start_ns[events], columns.end_ns[events]
        else:
            steps = find_steps(columns)
            starts, ends = steps.start_ns, steps.end_ns
        for start_ns, end_ns in zip(starts.tolist(), ends.tolist(), strict=True):
            yield start_ns - origin_ns, end_ns - origin_ns, rank


def places_of(columns: TraceColumns, subject: str) -> NDArray[np.intp]:
    """Return the events that a finding's subject names, in the order of the file; none for an empty subject."""
    if not subject:
        return np.zeros(0, np.intp)
    return np.flatnonzero(columns.named(lambda name: subject in (name, names.tidy(name), short(name))))


def _apart(spans: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield spans in order of start, each cut to where the next one begins: slices of one track must not cross."""
    for at, (start_ns, end_ns, rank) in enumerate(spans):
        limit_ns = spans[at + 1][0] if at + 1 < len(spans) else end_ns
        if min(end_ns, limit_ns) > start_ns:
            yield start_ns, min(end_ns, limit_ns), rank
