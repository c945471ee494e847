"""Appends the agent's additions to the end of a trace file written by torch, without reading it again.

torch ends its file with the list of events and a few keys. Our events are inserted before the list's bracket, our facts
as one more key before the last brace, so the file stays one JSON document that every viewer reads.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from lockstep.contracts.errors import LocalError

FACTS_KEY = "lockstep"
TAIL_BYTES = 64 << 10  # what follows the events is a file name, and with a device a few settings
HEAD_BYTES = 64 << 10

_LIST_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST_END = re.compile(rb"\}\s*(\])")
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')


def extend(path: Path, events: list[dict[str, Any]], facts: dict[str, Any], limit_bytes: int) -> int:
    """Add to a trace and return its size in bytes.

    Raises
    ------
    OSError, LocalError
        The file is missing, larger than `limit_bytes`, truncated (torch does not report a full file system), or has an
        end unlike that of traces.
    """
    size = path.stat().st_size
    if size > limit_bytes:
        raise LocalError(f"trace size: got {size} bytes, expected at most {limit_bytes}")
    with path.open("r+b") as file:
        start = file.seek(max(size - TAIL_BYTES, 0))
        tail = file.read().rstrip()
        at = _events_end(tail)
        more = b"".join(b",\n  " + json.dumps(event).encode() for event in events)
        file.seek(start + at)
        file.write(more + tail[at:-1] + b",\n  " + json.dumps({FACTS_KEY: facts})[1:].encode())
        file.truncate()
        return file.tell()


def base_ns(path: Path) -> int:
    """Return the Unix time in ns that the trace's times count from, 0 if it has none.

    Raises
    ------
    OSError
        It cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
        found = _BASE.search(head) or _BASE.search(file.read())
    return int(found[1]) if found else 0


def microseconds(time_ns: int) -> float:
    """Convert a time since the trace's base to the trace's unit; exact to the ns below 2**43 us."""
    return time_ns / 1000


def _events_end(tail: bytes) -> int:
    """Return where in `tail` the list of events is closed: the first bracket after which the rest ends an object.

    A profiler always writes events, at least the name of its process.
    """
    begin = _LIST_BEGIN.search(tail)  # in a short trace; lists of devices stand before it
    for found in _LIST_END.finditer(tail, begin.end() if begin else 0):
        try:
            json.loads(b'{"traceEvents": [' + tail[found.start(1) :])
        except ValueError:
            continue
        return found.start(1)
    raise LocalError(f"trace end: got {tail[-16:]!r}, expected a closed object")
