"""Reads the agent's notes next to the events of a trace: its facts, the last key of the file that it wrote.

The agent's clock is CLOCK_MONOTONIC. Its notes contain the offset of the wall clock, which is the clock of the starts
in `TraceColumns` for every trace with a base, such as captures.
"""

import json
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from lockstep.contracts import limits
from lockstep.contracts.errors import MalformedError
from lockstep.trace.source import TraceSource

AGENT_METADATA_MAX_BYTES = 128 << 10
"""Four times the agent's maximum: 256 collections, 101 boundaries."""
COLLECTIONS_MAX = DEPTHS_MAX = 256
_KEY = b'"lockstep":'
_VERSIONS = (1, 2)  # `agent.capture.recording.FACTS_VERSION`; 1 has no generations
_TIME_LIMIT_NS = 1 << 61  # both clocks stay far below; above it, sums of times could overflow
_GENERATIONS = (0, 1, 2)


class NotedCollection(NamedTuple):
    """A garbage collection of the training thread, `start_ns` on the trace's clock; generation None if not noted."""

    start_ns: int
    duration_ns: int
    generation: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedLoader:
    """What the agent noted of the DataLoader's workers each time that training asked for a batch.

    `ready` and `outstanding` are the batches that were there, and those that workers had yet to make. `busy_ns` is what
    `seen` of the workers were on a CPU or waited for one within `span_ns`, summed; None where the kernel does not
    count. `blocked_ratio` is the share of looks that met a worker in uninterruptible sleep.
    """

    ready: tuple[int, ...]
    outstanding: tuple[int, ...]
    workers: int
    seen: int = 0
    span_ns: int | None = None
    busy_ns: int | None = None
    blocked_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMetadata:
    """What the agent noted. `collections` are the longest, in order; `dropped_count` are those that make no sense.

    `loader` is None where no loader with workers was asked for a batch.
    """

    collections: tuple[NotedCollection, ...]
    dropped_count: int
    loader: NotedLoader | None = None


def read_notes(path: Path, *, max_bytes: int = limits.TRACE_MAX_BYTES) -> AgentMetadata | None:
    """Return the agent's notes in a trace, plain or gzip; None where nothing was noted.

    Of a plain file only the end is read.

    Raises
    ------
    MalformedError
        The file cannot be read, is packed and holds more than `max_bytes`, or its notes are of another form or version.
    """
    source = TraceSource(path, max_bytes=max_bytes)
    tail = _tail(path, source)
    at = tail.rfind(_KEY)
    if at < 0:
        return None
    try:
        facts = json.loads(b"{" + tail[at:])["lockstep"]
    except (ValueError, RecursionError) as error:
        raise source.malformed("notes", error, "one JSON object at the end of the trace") from error
    return _notes(facts, source.malformed)


def _tail(path: Path, source: TraceSource) -> bytes:
    """Return the end of what a file holds, unpacked."""
    if _is_plain(path):
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - AGENT_METADATA_MAX_BYTES, 0))
            return file.read(AGENT_METADATA_MAX_BYTES)
    tail = b""
    for chunk in source:  # raises for a file that is none, too
        tail = (tail + chunk)[-AGENT_METADATA_MAX_BYTES:]
    return tail


def _is_plain(path: Path) -> bool:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return file.read(1) in (b"{", b"[")
    except OSError:
        return False


def _notes(facts: Any, malformed: Callable[[str, object, object], MalformedError]) -> AgentMetadata | None:
    """Return the notes that the facts hold, None for the facts of something else."""
    if not isinstance(facts, dict) or "collections" not in facts:
        return None
    if facts.get("version") not in _VERSIONS:
        raise malformed("version of the notes", repr(facts.get("version"))[:100], f"one of {_VERSIONS}")
    offset_ns, collections = facts.get("unix_minus_monotonic_ns"), facts["collections"]
    if not _is_time(offset_ns):
        raise malformed("unix_minus_monotonic_ns", repr(offset_ns)[:100], "an offset in ns")
    if not isinstance(collections, list):
        raise malformed("collections", type(collections).__name__, "a list")
    found = [_collection(each, offset_ns) for each in collections]
    good = [each for each in found if each is not None]
    return AgentMetadata(
        collections=tuple(good[:COLLECTIONS_MAX]),
        dropped_count=len(found) - len(good),
        loader=_loader(facts.get("loader")),
    )


def _loader(value: Any) -> NotedLoader | None:
    """Return the loader's note, None for none and for one that makes no sense."""
    if not isinstance(value, dict) or not isinstance(depths := value.get("depths"), list):
        return None
    rows = [row for row in depths[:DEPTHS_MAX] if _is_counts(row, 3)]
    if not rows or not _is_counts([value.get("workers")], 1):
        return None
    found = NotedLoader(
        ready=tuple(row[1] for row in rows), outstanding=tuple(row[2] for row in rows), workers=value["workers"]
    )
    counted: list[Any] = [value.get(name) for name in ("seen", "span_ns", "busy_ns")]
    blocked_ratio = value.get("blocked_ratio")
    if not _is_counts(counted, 3) or not isinstance(blocked_ratio, int | float) or not 0 <= blocked_ratio <= 1:
        return found
    seen, span_ns, busy_ns = map(int, counted)
    return replace(found, seen=seen, span_ns=span_ns, busy_ns=busy_ns, blocked_ratio=float(blocked_ratio))


def _is_counts(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(_is_time(each) and each >= 0 for each in value)


def _collection(value: Any, offset_ns: int) -> NotedCollection | None:
    if not isinstance(value, list) or len(value) not in (2, 3):
        return None
    start_ns, end_ns, generation = (*value, None)[:3]
    if not _is_time(start_ns) or not _is_time(end_ns) or not start_ns <= end_ns:
        return None
    if generation is not None and (type(generation) is not int or generation not in _GENERATIONS):
        return None
    return NotedCollection(start_ns + offset_ns, end_ns - start_ns, generation)


def _is_time(value: Any) -> TypeGuard[int]:
    return type(value) is int and -_TIME_LIMIT_NS < value < _TIME_LIMIT_NS
