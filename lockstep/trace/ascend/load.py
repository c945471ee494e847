"""trace_view.json to `TraceColumns`.

Shape suffix: E rows of the trace.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts import limits
from lockstep.trace.ascend import tracks
from lockstep.trace.ascend.classes import Threads, classes_of, threads_of
from lockstep.trace.ascend.collective import BYTES_OF, COUNT_MAX, arguments_of, by_suffix
from lockstep.trace.ascend.decode import AscendDecoder
from lockstep.trace.ascend.gathered import GatheredEvents
from lockstep.trace.ascend.links import Clock, LinkRows, link, rows_at
from lockstep.trace.ascend.rank_metadata import AscendSettings
from lockstep.trace.ascend.tracks import Track
from lockstep.trace.columns import (
    ABSENT,
    OPERATOR,
    SYNC,
    CollectiveArguments,
    Mask,
    SyncArguments,
    TraceColumns,
    TraceMetadata,
    WorkKind,
)
from lockstep.trace.kineto.metadata import network_variables
from lockstep.trace.source import TraceSource

_NO_SETTINGS = AscendSettings()


def load_trace_view(
    path: Path, settings: AscendSettings = _NO_SETTINGS, *, max_bytes: int = limits.TRACE_MAX_BYTES
) -> TraceColumns:
    """Return the complete events of a trace_view.json (or msprof_*.json), plain or gzip.

    Rows of the host keep their category, except that calls into CANN and the task queue's both ends are RUNTIME, and
    torch's own annotations are ANNOTATION. A collective is its row in the communication process; its parts, the
    profiler's overlap analysis and the scheduler's own tasks are no one's work. Events whose fields make no sense are
    left out and counted.

    Raises
    ------
    MalformedError
        The file cannot be read, is larger than `max_bytes` (unpacked as well), is no trace, is cut off, or holds no
        complete event.
    """
    source = TraceSource(path, max_bytes=max_bytes)
    gathered = GatheredEvents()
    for block in AscendDecoder(source):
        gathered.add(block)
    if not len(gathered.column("start_ns")):
        got = f"{gathered.event_count} events, none complete, {gathered.dropped_count} of them unusable"
        raise source.malformed("trace", got, 'events with "ph": "X"')
    return _columns(gathered, settings, source.read_bytes)


def _columns(gathered: GatheredEvents, settings: AscendSettings, trace_bytes: int) -> TraceColumns:
    threads = threads_of(gathered)
    thread = gathered.column("thread")
    track_E = threads.track_T[thread]  # noqa: N806
    category, work, categories = classes_of(gathered, threads)
    correlation, external = _linked(gathered, threads, category, categories)
    name = _renamed(gathered, track_E == Track.GC)
    names = list(gathered.names)
    return TraceColumns(
        start_ns=gathered.column("start_ns"),
        duration_ns=gathered.column("duration_ns"),
        name=name,
        category=category,
        thread=thread,
        work=work,
        stream=threads.stream_T[thread],
        shapes=gathered.column("shapes"),
        stack=gathered.column("stack"),
        occupancy=np.full(len(thread), ABSENT, np.int32),
        correlation=correlation,
        external=external,
        sequence=_sequences(gathered),
        bytes=_bytes(gathered, work),
        names=names,
        categories=categories,
        threads=list(gathered.threads),
        thread_names={
            code: gathered.thread_names[each]
            for each, code in gathered.threads.items()
            if each in gathered.thread_names
        },
        streams=threads.streams,
        shape_texts=gathered.shapes.values_in_order(),
        stacks=gathered.stacks.values_in_order(),
        collectives=_collectives(gathered, settings, work),
        syncs={row: SyncArguments(kind=names[name[row]]) for row in _rows(category, categories, SYNC)},
        metadata=replace(_metadata(settings, work), clocks=gathered.clocks()),
        trace_bytes=trace_bytes,
        event_count=gathered.event_count,
        dropped_count=gathered.dropped_count,
    )


def metadata_of(settings: AscendSettings, *, has_collectives: bool) -> TraceMetadata:
    """Return the settings, in the shared form."""
    return TraceMetadata(
        vendor="ascend",
        backend="hccl" if has_collectives else "",
        rank=settings.rank,
        world_size=settings.world_size,
        groups=settings.groups,
        group_descriptions=settings.group_names,
        environment=network_variables(settings.environment),
        versions={"CANN": settings.cann_version} if settings.cann_version else {},
        clock_is_shared=True,
    )


def _metadata(settings: AscendSettings, work: NDArray[np.int8]) -> TraceMetadata:
    return metadata_of(settings, has_collectives=bool(np.any(work == WorkKind.COMMUNICATION)))


def _rows(category: NDArray[np.int32], categories: list[str], wanted: str) -> list[int]:
    return np.flatnonzero(category == categories.index(wanted)).tolist() if wanted in categories else []


def _linked(
    gathered: GatheredEvents, threads: Threads, category: NDArray[np.int32], categories: list[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return correlation and external id of every row."""
    thread = gathered.column("thread").astype(np.int64)
    track_E = threads.track_T[thread]  # noqa: N806
    former = {each: gathered.categories.get(each, ABSENT) for each in (tracks.ENQUEUE, tracks.DEQUEUE)}
    start_ns = gathered.column("start_ns")
    rows = LinkRows(
        start_ns=start_ns,
        end_ns=start_ns + gathered.column("duration_ns"),
        thread=thread,
        system_thread=threads.system_T[thread],
        operator=category == (categories.index(OPERATOR) if OPERATOR in categories else ABSENT),
        enqueue=gathered.column("category") == former[tracks.ENQUEUE],
        dequeue=gathered.column("category") == former[tracks.DEQUEUE],
        call=track_E == Track.CANN,
        device=(track_E == Track.HARDWARE) | ((track_E == Track.COMMUNICATION) & ~threads.part_T[thread]),
        queued=gathered.column("queued"),
        connection=gathered.column("connection"),
    )
    return link(rows, gathered.flows("async_npu"), gathered.flows("HostToDevice"), threads.system_T)


def _sequences(gathered: GatheredEvents) -> NDArray[np.int64]:
    """Return the numbers that join forward and backward operators; 0 is what torch_npu writes for none, too."""
    sequence = gathered.column("sequence")
    flows = gathered.flows("fwdbwd")
    start_ns, thread = gathered.column("start_ns"), gathered.column("thread").astype(np.int64)
    clock = Clock(max(len(gathered.threads), 1), int(start_ns.min()), int(start_ns.max()))
    if clock.usable and len(flows.id):
        at = rows_at(clock.keys(thread, start_ns), clock.keys(flows.thread, flows.at_ns))
        known = (at != ABSENT) & (sequence[at] == ABSENT)
        sequence[at[known]] = flows.id[known]
    return sequence


def _bytes(gathered: GatheredEvents, work: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return what copies and collectives move, by count and type of the elements for the latter."""
    types = np.array([BYTES_OF.get(each, 0) for each in gathered.texts["data_type"]], np.int64)
    count, size = gathered.column("count"), types[gathered.column("data_type")]
    known = (work == WorkKind.COMMUNICATION) & (count >= 0) & (count < COUNT_MAX) & (size > 0)
    moved: NDArray[np.int64] = np.where(known, np.where(known, count, 0) * size, gathered.column("size_bytes"))
    return moved


def _renamed(gathered: GatheredEvents, collections: Mask) -> NDArray[np.int32]:
    """Return the names' codes, garbage collections under Kineto's name; that name is added."""
    name: NDArray[np.int32] = gathered.column("name")
    return np.where(collections, gathered.names[tracks.GC_NAME], name).astype(np.int32) if collections.any() else name


def _collectives(
    gathered: GatheredEvents, settings: AscendSettings, work: NDArray[np.int8]
) -> dict[int, CollectiveArguments]:
    names, types, groups = list(gathered.names), list(gathered.texts["data_type"]), list(gathered.texts["group"])
    known = by_suffix(settings.groups)
    columns = [gathered.column(field) for field in ("name", "count", "data_type", "group")]
    found = {}
    for row in np.flatnonzero(work == WorkKind.COMMUNICATION).tolist():
        name, count, data_type, group = (int(column[row]) for column in columns)
        found[row] = arguments_of(
            names[name],
            count=count,
            data_type=types[data_type],
            group=groups[group],
            groups=settings.groups,
            suffixes=known,
            group_names=settings.group_names,
        )
    return found
