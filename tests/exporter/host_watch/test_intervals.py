"""Two looks at a fake node, and what happened between them."""

from collections.abc import Callable

import pytest

from exporter.host_watch.host_reading import HostReading, Target, read_node
from exporter.host_watch.intervals import Interval, compare, covering
from tests.exporter.host_watch.conftest import TICK_NS, FakeNode


class Two:
    """Reads a node twice; `meanwhile` changes it in between."""

    def __init__(self, node: FakeNode, *targets: Target) -> None:
        self.node = node
        self.targets = targets
        self.own_pid: int | None = None

    def look(self, before: HostReading | None = None) -> HostReading:
        return read_node(self.targets, before, root=str(self.node.proc), cgroups=str(self.node.cgroups))

    def met(self, meanwhile: Callable[[], None]) -> dict[tuple[str, int], Interval]:
        before = self.look()
        meanwhile()
        return compare(before, self.look(before), self.own_pid)


def target(rank: int, pid: int | None, run: str = "run", **values: object) -> Target:
    return Target(run=run, rank=rank, ring="/nowhere", pid=pid, **values)


def trainer(node: FakeNode, pid: int, ticks: int, cores: str = "0", **values: int) -> None:
    node.process(pid, user=ticks, **values)
    node.cores(pid, cores)


def test_a_rank_next_to_a_busy_neighbour(node: FakeNode):
    """Its wait, its throttling, its own work, and the neighbour's on its core by name and measure."""
    trainer(node, 10, 100)
    trainer(node, 11, 50, "1")
    node.process(20, "stress", user=7)
    node.cores(20, "0")
    node.waited(10, 1_000)
    node.write("10/cgroup", "0::/a/b\n")
    node.group("a", "throttled_usec 10\n")
    node.group("a/b", "throttled_usec 10\n")
    node.busy(500, 500)

    def meanwhile() -> None:
        trainer(node, 10, 160)
        trainer(node, 11, 150, "1")
        node.process(20, "stress", user=47)
        node.waited(10, 5_000)
        node.group("a", "throttled_usec 40\n")
        node.group("a/b", "throttled_usec 30\n")
        node.busy(600, 600)

    met = Two(node, target(0, 10), target(1, 11)).met(meanwhile)
    zero, one = met["run", 0], met["run", 1]
    assert (zero.run_queue_wait_ns, zero.throttled_ns, zero.cores) == (4_000, 30_000, 1)
    assert (zero.cpu_ns, zero.others_ns) == (60 * TICK_NS, 40 * TICK_NS)
    assert zero.busiest == (("stress", 40 * TICK_NS),)
    assert zero.begin_ns < zero.end_ns
    assert (one.run_queue_wait_ns, one.throttled_ns) == (None, None)
    assert (one.cpu_ns, one.others_ns, one.busiest) == (100 * TICK_NS, 0, ())


def test_workers_are_the_ranks_own(node: FakeNode):
    """Data workers, workers of theirs, new ones and those that have ended are no others; nor are the peers' ones."""
    for pid, parent in ((10, 1), (11, 10), (12, 11), (30, 1), (31, 30)):
        node.process(pid, parent=parent)
        node.cores(pid, "0-1")
    node.busy(500, 500)

    def meanwhile() -> None:
        node.process(10, user=10, user_reaped=30)
        node.process(11, parent=10, user=20)
        (node.proc / "12/stat").unlink()  # ended; waited for by 11 in the 30 ticks
        node.process(13, parent=11, start=9, user=40)
        node.cores(13, "0-1")
        node.process(31, parent=30, user=50)
        node.busy(575, 575)

    met = Two(node, target(0, 10), target(1, 30)).met(meanwhile)
    assert met["run", 0].cpu_ns == 100 * TICK_NS
    assert met["run", 1].cpu_ns == 50 * TICK_NS
    assert [(each.others_ns, each.busiest) for each in met.values()] == [(0, ()), (0, ())]


def test_another_run_on_the_same_cores_is_another(node: FakeNode):
    """What one run does stands in the other's way."""
    trainer(node, 10, 0)
    trainer(node, 20, 0)
    node.busy(500)

    def meanwhile() -> None:
        trainer(node, 10, 60)
        trainer(node, 20, 40)
        node.busy(600)

    met = Two(node, target(0, 10), target(0, 20, "other")).met(meanwhile)
    assert met["run", 0].others_ns == 40 * TICK_NS
    assert met["other", 0].others_ns == 60 * TICK_NS
    assert met["run", 0].busiest == (("python", 40 * TICK_NS),)


def test_work_of_processes_that_may_run_elsewhere_is_shared(node: FakeNode):
    """Half of what ran anywhere on two cores is thought to have been here, and no more than was measured here."""
    trainer(node, 10, 0)
    node.process(20, "half")
    node.cores(20, "0-1")
    node.process(21, "unknown")
    node.busy(500, 500)

    def meanwhile() -> None:
        node.process(20, "half", user=60)
        node.process(21, "unknown", user=60)
        node.busy(530, 590)

    (met,) = Two(node, target(0, 10)).met(meanwhile).values()
    assert met.others_ns == 30 * TICK_NS
    assert dict(met.busiest) == {"half": 15 * TICK_NS, "unknown": 15 * TICK_NS}


def test_the_three_busiest_commands_are_named(node: FakeNode):
    """Processes of one command together; those of next to nothing are left out."""
    trainer(node, 10, 0)
    names = ["b", "a", "a", "c", "d"]
    for pid, name in enumerate(names, 20):
        node.process(pid, name)
        node.cores(pid, "0")
    node.busy(500)

    def meanwhile() -> None:
        for pid, (name, ticks) in enumerate(zip(names, (30, 20, 20, 9, 8), strict=True), 20):
            node.process(pid, name, user=ticks)
        node.busy(587)

    (met,) = Two(node, target(0, 10)).met(meanwhile).values()
    assert met.busiest == (("a", 40 * TICK_NS), ("b", 30 * TICK_NS), ("c", 9 * TICK_NS))


def test_a_rank_whose_process_is_not_known_makes_its_run_unknown(node: FakeNode):
    """Its work would look like another's: the others' figure of its peers is absent then, the rest is not."""
    trainer(node, 10, 0)
    node.waited(10, 5)
    node.busy(500)
    met = Two(node, target(0, 10), target(1, None)).met(lambda: node.busy(600))
    assert met.keys() == {("run", 0)}
    assert (met["run", 0].others_ns, met["run", 0].busiest, met["run", 0].run_queue_wait_ns) == (None, (), 0)


def test_a_process_of_the_same_number_is_another(node: FakeNode):
    """A restarted rank has no interval over its restart, and a new neighbour counts with all it did."""
    trainer(node, 10, 500)
    trainer(node, 11, 0)
    node.process(20, "old", user=1000)
    node.busy(2000)

    def meanwhile() -> None:
        node.process(10, start=6, user=1)
        node.process(20, "new", start=6, user=30)
        node.cores(20, "0")
        node.busy(2031)

    met = Two(node, target(0, 10), target(1, 11)).met(meanwhile)
    assert met.keys() == {("run", 1)}
    assert met["run", 1].busiest == (("new", 30 * TICK_NS),)


def test_what_cannot_be_read_is_absent(node: FakeNode):
    """A node that shows a process and nothing else has an interval of its own CPU time only."""
    node.process(10)
    (met,) = Two(node, target(0, 10)).met(lambda: node.process(10, user=3)).values()
    known = (met.run_queue_wait_ns, met.throttled_ns, met.cores, met.others_ns, met.busiest)
    assert known == (None, None, None, None, ())
    assert met.cpu_ns == 3 * TICK_NS


def test_a_claimed_process_is_believed_if_it_has_the_ring_open(node: FakeNode, tmp_path):
    """A ring that names somebody else's process shows nothing."""
    ring = tmp_path / "0.ring"
    ring.write_text("")
    node.process(10)
    claim = Target(run="run", rank=0, ring=str(ring), pid=None, claimed_pid=10)
    two = Two(node, claim)
    assert two.look().ranks["run", 0].process is None
    (node.proc / "10/fd").mkdir()
    (node.proc / "10/fd/4").symlink_to(ring)
    process = two.look().ranks["run", 0].process
    assert process is not None
    assert process.pid == 10


@pytest.mark.parametrize(("span", "expected"), [((5, 6), [0]), ((9, 10), [0]), ((10, 11), [1]), ((5, 25), [0, 1, 2])])
def test_intervals_that_touch_a_span(span: tuple[int, int], expected: list[int]):
    """Ends that only meet do not touch."""
    intervals = [Interval(begin_ns=begin, end_ns=begin + 10) for begin in (0, 10, 20)]
    assert covering(intervals, *span) == [intervals[index] for index in expected]


def test_our_own_services_are_no_others(node: FakeNode):
    """The exporter and what it starts have a figure of their own; a training that was started from there is none."""
    trainer(node, 10, 100, parent=30)
    node.process(30, "lockstep", user=10)
    node.cores(30, "0")
    node.process(31, "python3", user=0, parent=30)
    node.cores(31, "0")
    node.process(20, "stress", user=0)
    node.cores(20, "0")
    node.waited(10, 0)
    node.busy(500)

    def meanwhile() -> None:
        trainer(node, 10, 130, parent=30)
        node.process(30, "lockstep", user=15)
        node.process(31, "python3", user=20, parent=30)
        node.process(20, "stress", user=10)
        node.waited(10, 5_000)
        node.busy(565)

    two = Two(node, target(0, 10))
    two.own_pid = 30
    met = two.met(meanwhile)["run", 0]
    assert met.services_ns == 25 * TICK_NS
    assert met.others_ns == 10 * TICK_NS
    assert [command for command, _ in met.busiest] == ["stress"]
