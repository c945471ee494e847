"""A simulated step as a Chrome trace: a process for each class of equal ranks, a thread for each queue.

Perfetto and `lockstep analyze` read it. Everything appears as work of a device: computation and collectives as kernels.
"""

import json
from collections.abc import Iterator
from typing import Any

from lockstep.simulator.lowering.graph import COMPUTE
from lockstep.simulator.step_timeline import QUEUES, Lane, Row, Span

_US = 1e6
_THOUSANDTHS = 3  # of a microsecond: the precision that the format's readers keep


def chrome_trace(rows: list[Row], name: str) -> str:
    """Return the trace of `rows` as JSON; `name` is the job's."""
    events = [event for number, row in enumerate(rows) for event in _events(row, number)]
    document = {"displayTimeUnit": "ms", "schemaVersion": 1, "traceName": name, "traceEvents": events}
    return json.dumps(document, separators=(",", ":"))


def title_of(row: Row) -> str:
    """Return the name of a class: its stage, its ranks, and its speed if it is reduced."""
    ranks = f"rank {row.first_rank}" if row.ranks == 1 else f"{row.ranks:,} ranks from {row.first_rank}"
    return f"stage {row.stage}, {ranks}" + (f", at {row.speed:.0%}" if row.speed < 1 else "")


def _events(row: Row, number: int) -> Iterator[dict[str, Any]]:
    yield _named("process_name", number, 0, {"name": title_of(row)})
    yield _named("process_sort_index", number, 0, {"sort_index": number})
    for thread, lane in enumerate(row.lanes):
        yield _named("thread_name", number, thread, {"name": _thread_name(row.lanes, thread)})
        yield _named("thread_sort_index", number, thread, {"sort_index": thread})
        for span in lane.spans:
            yield _complete(span, lane, number, thread)


def _thread_name(lanes: list[Lane], thread: int) -> str:
    queue = lanes[thread].queue
    place = sum(lane.queue == queue for lane in lanes[: thread + 1])
    return queue if place == 1 else f"{queue} {place}"


def _named(what: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": arguments}


def _complete(span: Span, lane: Lane, process: int, thread: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"device": process, "stream": thread, "queue": lane.queue}
    if span.micro_batch >= 0:
        arguments |= {"micro_batch": span.micro_batch, "chunk": span.chunk}
    if lane.queue != QUEUES[COMPUTE]:  # also for operations that move no bytes: a message in transit
        arguments |= {"Collective name": span.name, "bytes_on_link": round(span.volume_bytes)}
    begin_us = round(span.start_s * _US, _THOUSANDTHS)
    lasted_us = round(round(span.end_s * _US, _THOUSANDTHS) - begin_us, _THOUSANDTHS)
    return {
        "ph": "X",
        "cat": "kernel",
        "name": span.name,
        "pid": process,
        "tid": thread,
        "ts": begin_us,
        "dur": lasted_us,
        "args": arguments,
    }
