"""Pictures of a report that need the traces: a timeline of a few ranks, and a culprit's calls next to a peer's.

Only the ranks that findings name, and some peers, are loaded again. Lanes with too many events show the longest ones.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.analysis.merged_trace import PlacedTrace, place_ranks, places_of
from lockstep.analysis.sources import Source, load_source
from lockstep.contracts.errors import LockstepError
from lockstep.trace import names
from lockstep.trace.calls import build_calls
from lockstep.trace.columns import TraceColumns, WorkKind
from lockstep.trace.spans import flatten, in_order
from lockstep.trace.steps import Steps, find_steps
from lockstep.trace.tree import ROOT, CallTree

RANKS_MAX = 6
CULPRITS_MAX = 3
THREADS_MAX, STREAMS_MAX = 3, 4
DEPTH_MAX = 10
SLICES_MAX = 30_000
"""Of all lanes: 0.7 MB of the page."""
FRAME_MIN_RATIO = 0.003
"""Share of the window: narrower frames are not visible."""
FRAMES_MAX = 400
EXCESS_RATIO = 0.01
"""Share of the window by which a culprit's frame must exceed the peer's to be marked."""
KINDS = ("nothing", "host", "compute", "memory", "communication")
"""By `WorkKind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlameFrame:
    """One frame of a flame graph; `left` and `width` are shares of the longer window of both graphs."""

    name: str
    kind: str
    depth: int
    left: float
    width: float
    total_ns: int
    peer_ns: int | None
    """Time of the other rank on the same path, None if it has none."""
    is_culprit: bool
    """Whether it is longer than the peer's, and most of the difference is in none of its callees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlameGraph:
    """The calls of a rank's training thread."""

    rank: int
    window_ns: int
    frames: tuple[FlameFrame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """`timeline` is the JSON that the page's script draws; `places` are findings that it can show.

    A place is (rank, subject). `flames` are the culprit's and a peer's, the culprit's alone, or none.
    """

    timeline: dict[str, Any]
    places: frozenset[tuple[int, str]]
    flames: tuple[FlameGraph, ...]


def pictures_of(sources: Mapping[int, Source], findings: Sequence[Mapping[str, Any]]) -> Pictures | None:
    """Return what a report draws of traces by rank and the findings of their summary; None if none can be read."""
    culprits = _culprits(findings, len(sources))
    chosen = [*culprits, *(rank for rank in sorted(sources) if rank not in culprits)][:RANKS_MAX]
    loaded = dict[int, TraceColumns]()
    for rank in chosen:
        try:
            loaded[rank] = load_source(sources[rank]).columns
        except LockstepError:  # removed or changed since it was analysed: the findings stand without a picture
            continue
    if not loaded:
        return None
    placed = place_ranks(loaded)
    places = dict(_places(findings, placed))
    return Pictures(
        timeline=_timeline(placed, places),
        places=frozenset(places),
        flames=_flames(loaded, [rank for rank in culprits if rank in loaded]),
    )


def _culprits(findings: Sequence[Mapping[str, Any]], count: int) -> list[int]:
    """Return the first ranks that findings name, of findings that are not of all ranks."""
    named = [rank for each in findings if len(each["ranks"]) < count for rank in each["ranks"]]
    return list(dict.fromkeys(named))[:CULPRITS_MAX]


def _places(
    findings: Sequence[Mapping[str, Any]], placed: Mapping[int, PlacedTrace]
) -> Iterator[tuple[tuple[int, str], list[int]]]:
    """Yield where each finding's subject runs longest on each of its ranks: start and duration."""
    for finding in findings:
        for rank in finding["ranks"]:
            if rank not in placed:
                continue
            columns, origin_ns = placed[rank]
            events = places_of(columns, finding["subject"])
            if len(events):
                longest = int(events[columns.duration_ns[events].argmax()])
                start_ns = int(columns.start_ns[longest]) - origin_ns
                yield (rank, finding["subject"]), [start_ns, int(columns.duration_ns[longest])]


def _timeline(placed: Mapping[int, PlacedTrace], places: Mapping[tuple[int, str], list[int]]) -> dict[str, Any]:
    texts: dict[str, int] = {}
    steps = {rank: find_steps(each.columns) for rank, each in placed.items()}
    begin_ns = min(int(steps[rank].start_ns[0]) - each.origin_ns for rank, each in placed.items())
    end_ns = max(_last_ns(each, steps[rank]) for rank, each in placed.items())
    slices_max = max(SLICES_MAX // (len(placed) * (THREADS_MAX + STREAMS_MAX)), 1)
    drawing = _Drawing(texts, (begin_ns, end_ns), slices_max)
    return {
        "begin_ns": begin_ns,
        "end_ns": end_ns,
        "kinds": list(KINDS),
        "ranks": [
            {
                "rank": rank,
                "steps": [
                    [int(number), int(start_ns) - each.origin_ns]
                    for number, start_ns in zip(steps[rank].number, steps[rank].start_ns, strict=True)
                ],
                "lanes": list(drawing.lanes(each, steps[rank])),
            }
            for rank, each in placed.items()  # culprits first, as they were chosen
        ],
        "places": {f"{rank}|{subject}": span for (rank, subject), span in places.items()},
        "names": list(texts),
    }


def _last_ns(placed: PlacedTrace, steps: Steps) -> int:
    columns = placed.columns
    device = columns.on_device
    return max(int(steps.end_ns[-1]), int(columns.end_ns[device].max(initial=steps.end_ns[-1]))) - placed.origin_ns


class _Drawing:
    """Makes lanes: flat lists of (start, duration, name, kind, depth), ns since the origin."""

    def __init__(self, texts: dict[str, int], window_ns: tuple[int, int], slices_max: int) -> None:
        self._texts, self._window_ns, self._slices_max = texts, window_ns, slices_max

    def lanes(self, placed: PlacedTrace, steps: Steps) -> Iterator[dict[str, Any]]:
        """Yield the training thread, other threads and streams, each group by how long it is busy.

        Calls around all steps (the interpreter's own frames, the training loop) are the same on every rank: left out.
        """
        columns = placed.columns
        begin_ns, end_ns = (edge + placed.origin_ns for edge in self._window_ns)
        inside = (columns.end_ns > begin_ns) & (columns.start_ns < end_ns) & (columns.duration_ns > 0)
        working = np.zeros(len(columns.threads), np.bool_)
        working[columns.thread[columns.work != WorkKind.NOTHING]] = True
        around = (columns.start_ns <= steps.start_ns[0]) & (columns.end_ns >= steps.end_ns[-1])
        host = np.flatnonzero(inside & ~columns.on_device & working[columns.thread] & ~around)
        device = np.flatnonzero(inside & columns.on_device)
        for thread in _busiest(columns.thread, columns.duration_ns, host, THREADS_MAX, first=steps.thread):
            name = " ".join([columns.thread_names.get(thread, "thread"), str(columns.threads[thread][1])])
            yield self._lane(name, placed, host[columns.thread[host] == thread])
        for stream in _busiest(columns.stream, columns.duration_ns, device, STREAMS_MAX):
            on, number = columns.streams[stream]
            yield self._lane(f"device {on} stream {number}", placed, device[columns.stream[device] == stream])

    def _lane(self, name: str, placed: PlacedTrace, events: NDArray[np.intp]) -> dict[str, Any]:
        columns = placed.columns
        events = events[in_order(columns.start_ns[events], -columns.duration_ns[events])]
        flat = flatten(columns.start_ns[events], columns.end_ns[events])
        kept = np.flatnonzero(flat.depth <= DEPTH_MAX)
        if len(kept) > self._slices_max:
            kept = np.sort(kept[np.argsort(-columns.duration_ns[events[kept]], kind="stable")[: self._slices_max]])
        rows = zip(
            (columns.start_ns[events[kept]] - placed.origin_ns).tolist(),
            (flat.cut_ns[kept] - columns.start_ns[events[kept]]).tolist(),
            columns.name[events[kept]].tolist(),
            columns.work[events[kept]].tolist(),
            flat.depth[kept].tolist(),
            strict=True,
        )
        slices: list[int] = []
        for start_ns, duration_ns, code, work, depth in rows:
            text = self._texts.setdefault(names.tidy(columns.names[code]), len(self._texts))
            slices += (start_ns, duration_ns, text, work, depth - 1)
        depth = int(flat.depth[kept].max(initial=1))
        return {"name": name, "depth": depth, "left_out": len(events) - len(kept), "slices": slices}


def _busiest(
    codes: NDArray[np.int32], duration_ns: NDArray[np.int64], events: NDArray[np.intp], most: int, *, first: int = -1
) -> list[int]:
    busy: dict[int, int] = defaultdict(int)
    for code, spent_ns in zip(codes[events].tolist(), duration_ns[events].tolist(), strict=True):
        busy[code] += spent_ns
    return sorted(busy, key=lambda code: (code != first, -busy[code]))[:most]


def _flames(loaded: Mapping[int, TraceColumns], culprits: Sequence[int]) -> tuple[FlameGraph, ...]:
    culprits = culprits or (list(loaded) if len(loaded) == 1 else [])
    if not culprits:
        return ()
    peers = [rank for rank in sorted(loaded) if rank not in culprits]
    ranks = [culprits[0], *peers[:1]]
    trees = [build_calls(loaded[rank]) for rank in ranks]
    window_ns = max(tree.window_ns[1] - tree.window_ns[0] for tree in trees)
    if not window_ns or not all(map(len, trees)):
        return ()
    totals = [_by_path(tree) for tree in trees]
    others = [totals[1], totals[0]] if len(trees) > 1 else [None]
    return tuple(
        FlameGraph(
            rank=rank,
            window_ns=tree.window_ns[1] - tree.window_ns[0],
            frames=tuple(_frames(tree, window_ns, other, marks=at == 0)),
        )
        for at, (rank, tree, other) in enumerate(zip(ranks, trees, others, strict=True))
    )


Path = tuple[str, ...]


def _paths(tree: CallTree) -> list[Path]:
    paths: list[Path] = []
    for parent, name in zip(tree.parent, tree.name, strict=True):
        paths.append((*(() if parent == ROOT else paths[parent]), name))
    return paths


def _by_path(tree: CallTree) -> dict[Path, int]:
    return dict(zip(_paths(tree), tree.total_ns, strict=True))


def _frames(tree: CallTree, window_ns: int, other: Mapping[Path, int] | None, *, marks: bool) -> Iterator[FlameFrame]:
    """Yield the frames that can be seen, callers before callees, children by time from the left."""
    paths = _paths(tree)
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(tree.parent):
        children[parent].append(node)
    excess_ns = [total - (other or {}).get(path, 0) for path, total in zip(paths, tree.total_ns, strict=True)]
    waiting = [(node, 0, left) for node, left in _laid(tree, children[ROOT], 0.0, window_ns)]
    drawn = 0
    while waiting and drawn < FRAMES_MAX:
        node, depth, left = waiting.pop(0)
        width = tree.total_ns[node] / window_ns
        if width < FRAME_MIN_RATIO:
            continue
        drawn += 1
        below_ns = max((excess_ns[child] for child in children[node]), default=0)
        is_more = other is not None and marks and excess_ns[node] > EXCESS_RATIO * window_ns
        yield FlameFrame(
            name=tree.name[node],
            kind=tree.kind[node],
            depth=depth,
            left=left,
            width=width,
            total_ns=tree.total_ns[node],
            peer_ns=None if other is None else other.get(paths[node]),
            is_culprit=is_more and below_ns < excess_ns[node] / 2 and tree.kind[node] != names.COMMUNICATION_KIND,
        )
        if depth + 1 < 2 * DEPTH_MAX:
            waiting += [(child, depth + 1, at) for child, at in _laid(tree, children[node], left, window_ns)]


def _laid(tree: CallTree, nodes: Sequence[int], left: float, window_ns: int) -> Iterator[tuple[int, float]]:
    for node in sorted(nodes, key=lambda each: -tree.total_ns[each]):
        yield node, left
        left += tree.total_ns[node] / window_ns


assert len(KINDS) == len(WorkKind)
