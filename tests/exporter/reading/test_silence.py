"""A node whose ranks make no steps reports where each of them stands, by the agent's own ring and by forged ones."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.counts import ExporterCounters
from exporter.reading.announce import parse_groups, parse_slots
from exporter.reading.rings import Rings
from exporter.reading.silence import announcement, watch
from lockstep.contracts import ring as layout
from lockstep.contracts.codec import encode
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.marks import MarkKind
from lockstep.contracts.messages import SIGNAL, VANISHED, IssueCount, RankProgress
from lockstep.contracts.records import Flag
from tests.exporter.conftest import NOW_NS, OFFSET_NS, record
from tests.support.mark_ring import MarkRing

S = 10**9
WORLD = {"kind": "dp", "name": "dp0", "ranks": [[0, 4, 1]], "slot": 0}
STAGES = {"kind": "pp", "name": "pp0", "ranks": [[0, 4, 2]], "slot": 1, "sends": [[2, 3]], "receives": [[2, 4]]}


class Node:
    """Rings of a node under a clock of the test's own."""

    def __init__(self, root: Path) -> None:
        self.now_ns = NOW_NS
        self.rings = Rings(root, ExporterCounters(), {})

    def look(self, seconds: float = 0.0):
        """Let time pass, read what is new and return the announcement."""
        self.now_ns += round(seconds * S)
        self.rings.scan(self.now_ns)
        self.rings.read()
        (run,) = self.rings.runs.values()
        watch(run, self.now_ns)
        message = announcement(run, "node-1")
        encode(message)
        return message

    @property
    def revision(self):
        (run,) = self.rings.runs.values()
        return run.revision


@pytest.fixture
def node(root: Path):
    node = Node(root)
    yield node
    node.rings.close()


def header(rank: int = 0) -> layout.RingHeader:
    return layout.RingHeader(
        rank=rank,
        local_rank=rank,
        world_size=4,
        pid=1,
        attempt=1,
        clock_offset_ns=OFFSET_NS,
        hostname="h",
        block_count=64,
    )


@pytest.fixture
def ring(root: Path):
    ring = MarkRing(root / "run-a", header(), now_ns=NOW_NS)
    yield ring
    ring.close()


def test_a_silent_node_reports_where_its_ranks_stand(node: Node, ring: MarkRing):
    """After five seconds without a record: last step, flags, and each count with its group, its peer and its time."""
    ring.groups([WORLD, STAGES])
    for step in range(8):
        ring.write(record(step))
    assert node.look().ranks[0].progress is None
    for slot, count, now_ns in ((3, 1, 6), (0, 2, 7), (layout.OTHER_SLOT, 1, 8)):
        ring.issue(slot, count, now_ns)
    ring.word(layout.WORD_FLAGS, int(Flag.CHECKPOINT))
    before = node.revision
    assert node.look(5.0).ranks[0].progress is None
    announced = node.look(0.1)
    assert announced.ranks[0].progress == RankProgress(
        last_step=7,
        flags=int(Flag.CHECKPOINT),
        issues=[
            IssueCount(group=0, operation="collective", peer=-1, issued=2, last_unix_ns=OFFSET_NS + 7),
            IssueCount(group=1, operation="send", peer=2, issued=1, last_unix_ns=OFFSET_NS + 6),
        ],
        is_alive=None,
    )
    assert [group.name for group in announced.groups] == ["dp0", "pp0"]
    assert node.revision == before + 1


def test_the_next_record_ends_it(node: Node, ring: MarkRing):
    """One announcement more, without progress: the silence is over."""
    ring.write(record(0))
    node.look()
    assert node.look(6.0).ranks[0].progress is not None
    ring.write(record(1))
    before = node.revision
    assert node.look(0.2).ranks[0].progress is None
    assert node.revision == before + 1
    node.look(0.2)
    assert node.revision == before + 1


def test_slow_steps_are_given_five_of_them(node: Node, ring: MarkRing):
    """A run whose steps take 4 s is silent after 20 s, not after 5."""
    for step in range(3):
        ring.write(record(step, step_ns=4 * S))
    node.look()
    assert node.look(19.9).ranks[0].progress is None
    assert node.look(0.2).ranks[0].progress is not None


def test_steps_without_numbers_are_no_silence(node: Node, ring: MarkRing):
    """A rank that steps and cannot be numbered is not silent; when it stops, its last known step is not reported."""
    ring.lose(record(0))
    ring.maker.blocks([(7, MarkKind.OPTIMIZER_END, 0, 0, 0)] * 3)
    for _ in range(20):
        ring.write(record(ring.steps.step))
        assert not node.look(1.0).ranks[0].progress
        assert not node.rings.runs["run-a"].progress_watch.is_announced
    node.look(6.0)
    assert node.rings.runs["run-a"].progress_watch.is_announced
    assert node.look(1.0).ranks[0].progress is None


def test_a_run_that_ended_is_not_silent(root: Path, node: Node):
    """Ranks that finished, or took their agents out, are not waited for; one that runs makes the node report all."""
    rings = [MarkRing(root / "run-a", header(rank), now_ns=NOW_NS) for rank in (0, 1)]
    rings[0].state(layout.STATE_FINISHED)
    rings[1].state(layout.STATE_FAILED)
    node.look()
    assert [info.progress for info in node.look(60.0).ranks] == [None, None]
    rings[1].state(layout.STATE_RUNNING)
    announced = node.look(1.0)
    assert [info.rank for info in announced.ranks] == [0, 1]
    assert all(info.progress is not None for info in announced.ranks)
    assert [info.state for info in announced.ranks] == ["finished", "running"]
    for ring in rings:
        ring.close()


WRITER = """
import os, signal, sys
from pathlib import Path
from tests.exporter.reading.test_silence import header
from tests.support.mark_ring import MarkRing
ring = MarkRing(Path(sys.argv[1]), header(), now_ns=1, hold=True)
child = os.fork()
if child:
    print(child, flush=True)
signal.pause()
"""


def test_a_process_that_was_killed_is_known_to_be_gone(root: Path, node: Node):
    """A rank of another process is alive as long as that is, and not as long as a child that it forked.

    No one waits for a rank that is gone, so where it stands is not reported; how it ended is.
    """
    command = [sys.executable, "-c", WRITER, str(root / "run-a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        child = int(writer.stdout.readline())
        node.look()
        assert node.look(6.0).ranks[0].progress.is_alive is True
        writer.kill()
        writer.wait()
        (info,) = node.look(1.0).ranks
        os.kill(child, signal.SIGKILL)
    assert (info.state, info.progress) == ("gone", None)
    assert info.ending.kind in (SIGNAL, VANISHED)  # which of both is the kernel's matter, see test_endings.py


def test_a_file_system_without_locks_shows_nothing_of_processes(node: Node, make_ring):
    """A writer that could hold no lock may be alive or not."""
    make_ring()
    node.look()
    assert node.look(6.0).ranks[0].progress.is_alive is None


def test_a_ring_that_is_cut_gives_nothing(node: Node, make_ring):
    """A file cut short under the reader costs its rank's progress and nothing else."""
    ring = make_ring()
    node.look()
    os.ftruncate(ring.file, layout.ISSUES_OFFSET)
    assert node.look(10.0).ranks[0].progress is None


@pytest.mark.parametrize(
    "change",
    [
        {"slot": -1},
        {"slot": layout.ISSUE_SLOTS},
        {"slot": "0"},
        {"slot": True},
        {"sends": 5},
        {"sends": [[1]]},
        {"sends": [[4, 3]]},
        {"sends": [[1, 2.0]]},
        {"sends": [[1, 0]]},  # the group's own slot
        {"receives": [[1, 7], [2, 7]]},
    ],
)
def test_issue_slots_that_cannot_be_are_refused(change):
    """Slots that no ring has, slots given twice and peers outside of the world are named."""
    value = [{**WORLD, **change}]
    groups = parse_groups(value, where="x", world_size=4)
    with pytest.raises(MalformedError, match=r"slot.* in x"):
        parse_slots(value, groups, where="x", world_size=4)


def test_groups_without_slots_are_still_groups():
    """A group that has no slot, or shares the one for all others, is announced and counts nothing."""
    value = [{"kind": "dp", "name": "dp0", "ranks": [[0, 4, 1]]}, {**WORLD, "slot": layout.OTHER_SLOT}]
    groups = parse_groups(value, where="x", world_size=4)
    assert len(groups) == 2
    assert parse_slots(value, groups, where="x", world_size=4) == ()
