"""What a node counted travels with a summary; hostile figures are refused by name."""

from dataclasses import replace
from typing import Any

import pytest

from lockstep.contracts import limits, topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import HostSpan, TraceSummary

TOPIC = topics.run_topic("run", topics.SUMMARY, "node-1")
SUMMARY = TraceSummary(
    run="run", node="node-1", rank=0, request_id=1, window_ns=0, steps=1, trace_bytes=0, event_count=0, tree=[]
)
HOST = HostSpan(
    span_ns=5, run_queue_wait_ns=0, throttled_ns=None, cores=2, others_cores=0.5, busiest=[("x", 0.25), ("y", 0.0)]
)


@pytest.mark.parametrize("host", [None, HOST, HostSpan(span_ns=1)])
def test_round_trip(host: HostSpan | None):
    """Unknown stays unknown, and a measured zero a zero."""
    summary = replace(SUMMARY, host=host)
    assert decode(TOPIC, encode(summary)) == summary


@pytest.mark.parametrize(
    "change",
    [
        {"span_ns": -1},
        {"run_queue_wait_ns": -1},
        {"throttled_ns": 1 << 63},
        {"cores": -1},
        {"others_cores": float("nan")},
        {"others_cores": float("inf")},
        {"busiest": [("x", -1.0)]},
        {"busiest": [("x", float("nan"))]},
        {"busiest": [("x" * (limits.NAME_MAX_BYTES + 1), 1.0)]},
        {"busiest": [("x", 1.0)] * (limits.HOST_COMMANDS_MAX + 1)},
    ],
)
def test_figures_that_cannot_be_are_refused(change: dict[str, Any]):
    """By field, before anything works with them."""
    with pytest.raises(MalformedError, match=r"span_ns|run_queue|throttled|cores|busiest|command"):
        decode(TOPIC, encode(replace(SUMMARY, host=replace(HOST, **change))))
