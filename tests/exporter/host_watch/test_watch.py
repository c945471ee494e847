"""When the node is looked at, and what is kept of the looks."""

import asyncio
from typing import Any

import pytest

from exporter.host_watch.host_reading import HostReading, Target
from exporter.host_watch.watch import CAPTURE_NS, COST_RATIO, NEAR_NS, QUIET_NS, HostSample, HostTotals, HostWatch
from tests.exporter.host_watch.conftest import MS, S
from tests.exporter.host_watch.looks import KEY, TARGET, interval, look
from tests.support.servers import WAIT_S


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> HostWatch:
    return HostWatch(lambda: [TARGET], clock_ns=clock)


def test_totals_are_sums_of_what_was_known(watch: HostWatch):
    """An unknown interval adds nothing and takes nothing away; what was never known is not 0."""
    watch.take(look(0))
    assert watch.totals() == {KEY: HostTotals()}
    watch.take(look(5, interval(0, 5, run_queue_wait_ns=3, cpu_ns=7, cores=2)))
    watch.take(look(10, interval(5, 10, cpu_ns=1, throttled_ns=0, others_ns=4, cores=1)))
    expected = HostTotals(run_queue_wait_ns=3, throttled_ns=0, cpu_ns=8, others_ns=4, cores=1)
    assert watch.totals() == {KEY: expected}
    assert (watch.node.pressure_ns, watch.node.load) == (5, 1.5)


def test_a_span_is_bracketed_by_looks(watch: HostWatch):
    """All looks that touch it count, and its length is theirs."""
    watch.take(look(0))
    for begin in range(4):
        busiest = (("a", S // 2), ("b", S // 4)) if begin == 1 else (("b", S // 2),)
        met = interval(
            begin, begin + 1, run_queue_wait_ns=begin, throttled_ns=10, cores=2, others_ns=S, busiest=busiest
        )
        watch.take(look(begin + 1, met))
    span = watch.span("run", 0, round(1.2 * S), round(2.1 * S))
    assert span is not None
    assert (span.span_ns, span.run_queue_wait_ns, span.throttled_ns, span.cores) == (2 * S, 3, 20, 2)
    assert span.others_cores == pytest.approx(1.0)
    assert span.busiest == [("b", pytest.approx(0.375)), ("a", pytest.approx(0.25))]


def test_a_span_with_an_unknown_part_is_unknown(watch: HostWatch):
    """A sum of half the time would look small."""
    watch.take(look(0))
    watch.take(look(1, interval(0, 1, run_queue_wait_ns=5, cores=2)))
    watch.take(look(2, interval(1, 2, cores=2)))
    span = watch.span("run", 0, 0, 2 * S)
    assert span is not None
    assert (span.run_queue_wait_ns, span.throttled_ns, span.others_cores, span.cores) == (None, None, None, 2)


@pytest.mark.parametrize(
    "asked", [("run", 1, 0, S), ("other", 0, 0, S), ("run", 0, -S, S), ("run", 0, 5 * S, 6 * S), ("run", 0, 0, 2 * S)]
)
def test_a_span_that_no_looks_cover_is_none(watch: HostWatch, asked: tuple[str, int, int, int]):
    """Another rank, another run, before the first look and after the last one, partly too; numbers of a hostile answer as well."""
    watch.take(look(0))
    watch.take(look(1, interval(0, 1, run_queue_wait_ns=5)))
    assert watch.span("run", 0, 0, S) is not None
    assert watch.span(*asked) is None
    assert watch.span("run", 0, 1 << 62, 0) is None


def test_quiet_times_and_captures_have_their_pace(watch: HostWatch, clock: Clock):
    """Every five seconds; every second from an event of a capture until ten seconds after."""
    assert watch._pause_ns() == QUIET_NS
    watch.note_capture()
    assert watch._pause_ns() == CAPTURE_NS
    clock.now_ns = NEAR_NS - 1
    assert watch._pause_ns() == CAPTURE_NS
    clock.now_ns = NEAR_NS
    assert watch._pause_ns() == QUIET_NS


def test_dear_looks_are_rare(watch: HostWatch, clock: Clock):
    """A node of very many processes is looked at as often as the budget allows; captures are paid for afterwards."""
    watch.take(look(0, cost_ns=20 * MS))
    assert watch._pause_ns() == QUIET_NS
    watch.take(look(0, cost_ns=40 * MS))
    assert watch._pause_ns() == pytest.approx(60 * MS / COST_RATIO)
    watch.note_capture()
    assert watch._pause_ns() == CAPTURE_NS
    for second in range(10):
        watch.take(look(second, cost_ns=40 * MS))
    clock.now_ns = NEAR_NS
    assert watch._pause_ns() == pytest.approx(460 * MS / COST_RATIO - NEAR_NS)
    assert watch.node.cost_ns == 460 * MS


def test_ranks_that_are_gone_are_forgotten_late(watch: HostWatch):
    """A summary may come minutes after the rank's end; a rank that comes back in between goes on counting."""
    watch.take(look(0))
    watch.take(look(5, interval(0, 5, cpu_ns=5)))
    watch.take(look(500, shown=False))
    assert watch.totals() == {KEY: HostTotals(cpu_ns=5)}
    watch.take(look(606, shown=False))
    assert watch.totals() == {}
    assert watch.span("run", 0, 0, S) is None


async def test_a_capture_is_looked_at_without_delay():
    """The looks are taken in a thread, one at once when an event comes, none while nothing is to be watched."""
    looks: list[int] = []
    targets: list[Target] = []
    looked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def take(asked: Any, before: HostReading | None) -> HostSample:
        looks.append(len(asked))
        loop.call_soon_threadsafe(looked.set)
        return look(len(looks))

    watch = HostWatch(lambda: targets, take_sample=take)
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    assert looks == []
    for _ in range(2):
        targets[:] = [TARGET]
        looked.clear()
        watch.note_capture()
        await asyncio.wait_for(looked.wait(), WAIT_S)
    assert looks == [1, 1]
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_summary_waits_for_the_look_after_its_capture(watch: HostWatch, monkeypatch: pytest.MonkeyPatch):
    """No longer than it takes: at once where it is there or nothing is watched, and not for ever."""
    await watch.reach(S)
    watch.take(look(1))
    await watch.reach(S)
    waiting = asyncio.create_task(watch.reach(2 * S))
    await asyncio.sleep(0)
    watch.take(look(1.5))
    await asyncio.sleep(0)
    assert not waiting.done()
    watch.take(look(2))
    await asyncio.wait_for(waiting, WAIT_S)
    monkeypatch.setattr("exporter.host_watch.watch.REACH_S", 0.01)
    await asyncio.wait_for(watch.reach(1 << 70), WAIT_S)
