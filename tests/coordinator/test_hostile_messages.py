"""Numbers that no node means end at decode; those at the ends of their ranges pass through runs without a fault."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import msgspec
import pytest

from benchmarks.fuzz.seeds import ANNOUNCEMENT, MESSAGES, NODE, RUN, SILENT, UNIX_NS
from coordinator.bus import Bus
from coordinator.intake.streams import Streams
from coordinator.leadership import Leadership
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from lockstep.contracts import topics
from lockstep.contracts.bounds import Range, unannotated
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import CaptureResult, NodeAlive, NodeAnnouncement, TraceSummary
from lockstep.serving.fault_isolation import FAILED
from lockstep.serving.local_broker import LocalBroker
from tests.contracts.test_message_bounds import changed, leaves

NOW_S = UNIX_NS / 1e9
ANNOUNCE = topics.run_topic(RUN, topics.ANNOUNCE, NODE)


class Coordinator:
    """A bus that is fed by hand, and the runs behind it."""

    def __init__(self) -> None:
        self.runs = Runs(CoordinatorConfig(), Policy(), {}, lambda: 0.0)
        self.streams = Streams("c1", 1)
        self.now_s = NOW_S
        self.bus = Bus(
            LocalBroker(),
            streams=self.streams,
            leadership=Leadership("c1", 1),
            on_message=lambda message, _: self.runs.take(message, self.now_s),
            now_s=lambda: self.now_s,
        )

    def faults(self) -> int:
        dropped = {**self.runs.isolation.dropped, **self.bus.isolation.dropped}
        return sum(count for (_, outcome), count in dropped.items() if outcome == FAILED)

    def let_time_pass(self) -> None:
        """Tick through grace times, hangs and the end of the run."""
        for seconds in (1, 10, 60, 600, 6000):
            self.now_s += seconds
            self.runs.tick(self.now_s)


@pytest.fixture
async def coordinator() -> Coordinator:
    return Coordinator()


def forged(message: Any, path: tuple[Any, ...], value: Any) -> bytes:
    """Return the bytes of a message with another value at one place, as no encoder of ours makes them."""
    plain = msgspec.msgpack.decode(encode(message))
    at = plain
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    return msgspec.msgpack.encode(plain)


PROGRESS = ("ranks", 0, "progress")


@pytest.mark.parametrize("value", [1 << 63, (1 << 64) - 1, -1, -(1 << 63)])
@pytest.mark.parametrize(
    ("message", "path"),
    [
        (SILENT, ("ranks", 0, "heartbeat_unix_ns")),
        (SILENT, ("ranks", 0, "attempt")),
        (SILENT, ("ranks", 0, "rank")),
        (SILENT, ("ranks", 0, "local_rank")),
        (SILENT, ("ranks", 0, "world_size")),
        (SILENT, (*PROGRESS, "last_step")),
        (SILENT, (*PROGRESS, "flags")),
        (SILENT, (*PROGRESS, "issues", 0, "group")),
        (SILENT, (*PROGRESS, "issues", 0, "issued")),
        (SILENT, (*PROGRESS, "issues", 0, "last_unix_ns")),
        (SILENT, ("groups", 0, "ranks", 0, 1)),
        (SILENT, ("ranks", 0, "facts", "parameters")),
    ],
)
async def test_what_ended_the_coordinator_is_refused_at_decode(coordinator: Coordinator, message, path, value):
    """An announcement with such a number is counted as malformed; the run that it names is not touched by it."""
    coordinator.bus._take(ANNOUNCE, encode(ANNOUNCEMENT))
    coordinator.bus._take(ANNOUNCE, forged(message, path, value))
    coordinator.let_time_pass()
    assert coordinator.bus.counts.rejected["malformed"] == 1
    assert coordinator.faults() == 0


ENDS = [
    pytest.param(topic, message, path, end, id=f"{type(message).__name__}.{'.'.join(map(str, path))}={end:g}")
    for topic, message in MESSAGES
    if isinstance(message, NodeAnnouncement | NodeAlive | CaptureResult | TraceSummary)
    for path, hint in leaves(message, type(message))
    if isinstance(bound := unannotated(hint)[1], Range)
    for end in (unannotated(hint)[0](bound.low), unannotated(hint)[0](bound.high))
]


@pytest.mark.parametrize(("topic", "message", "path", "end"), ENDS)
async def test_the_ends_of_a_range_pass_without_a_fault(coordinator: Coordinator, topic, message, path, end):
    """Whatever decoding lets through, runs can compute with, now and in all the time that follows."""
    bad = changed(message, path, end)
    try:
        decode(topic, encode(bad))
    except MalformedError:  # it contradicts other fields
        return
    coordinator.runs.take(ANNOUNCEMENT, NOW_S)
    coordinator.runs.take(decode(topic, encode(bad)), NOW_S)
    coordinator.let_time_pass()
    coordinator.runs.take(ANNOUNCEMENT, coordinator.now_s)
    coordinator.let_time_pass()
    assert coordinator.faults() == 0


async def test_all_ranks_at_the_ends_of_their_ranges_pass_without_a_fault(coordinator: Coordinator):
    """Together as well: what is summed, compared or laid out as an array of int64."""
    for last in (False, True):
        infos = [_at_end(info, last=last) for info in SILENT.ranks]
        message = replace(SILENT, ranks=[replace(i, rank=n, world_size=2) for n, i in enumerate(infos)])
        coordinator.runs.take(decode(ANNOUNCE, encode(message)), coordinator.now_s)
        coordinator.let_time_pass()
    assert coordinator.faults() == 0


def _at_end(value: Any, *, last: bool) -> Any:
    """Return a value with every bounded number inside it at the low or high end, what names others excepted."""
    if not is_dataclass(value):
        return [_at_end(each, last=last) for each in value] if isinstance(value, list) else value
    changes = {}
    for field in fields(value):
        plain, bound = unannotated(field.type)
        if isinstance(bound, Range) and field.name not in ("rank", "world_size", "group", "peer"):
            changes[field.name] = plain(bound.high if last else bound.low)
        else:
            changes[field.name] = _at_end(getattr(value, field.name), last=last)
    return replace(value, **changes)
