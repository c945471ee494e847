"""Which ranks live, by the lock on their rings where there is one, and which have given up their place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.counts import ExporterCounters
from exporter.reading.heartbeats import run_heartbeat
from exporter.reading.rings import Rings
from exporter.reading.silence import announcement
from lockstep.contracts import ring as layout
from lockstep.contracts.codec import encode
from lockstep.contracts.limits import RANKS_PER_NODE_MAX
from lockstep.contracts.messages import NodeAlive
from tests.exporter.conftest import OFFSET_NS

S = 10**9
WRITER = """
import signal, sys
from pathlib import Path
from lockstep.contracts.ring import RingHeader
from tests.support.mark_ring import MarkRing
directory, rank, local_rank, attempt = Path(sys.argv[1]), *map(int, sys.argv[2:])
header = RingHeader(rank=rank, local_rank=local_rank, world_size=8, pid=1, attempt=attempt,
                    clock_offset_ns=1_700_000_000_000_000_000, hostname="h", block_count=8)
ring = MarkRing(directory, header, now_ns=5, hold=True)
ring.groups([{"kind": "dp", "name": f"dp of {rank}", "ranks": [[0, 8, 1]]}])
print(flush=True)
signal.pause()
"""


@pytest.fixture
def start(root: Path):
    """Start processes that hold the ring of a rank, which beat once at 5 ns; all of them end with the test."""
    started = []

    def start(rank: int, local_rank: int = 0, attempt: int = 1) -> subprocess.Popen:
        command = [sys.executable, "-c", WRITER, str(root / "run-a"), *map(str, (rank, local_rank, attempt))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def rings(root: Path):
    rings = Rings(root, ExporterCounters(), {})
    yield rings
    rings.close()


def look(rings: Rings):
    """Return the run after another look at its directory."""
    rings.scan(0)
    rings.read()
    return rings.runs["run-a"]


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def test_a_rank_whose_process_exists_lives_without_a_sign(rings: Rings, start):
    """As one that hangs does; when the process is gone, the time at which it was seen last stays."""
    process = start(0)
    run = look(rings)
    assert run_heartbeat(run, 7 * S).alive_unix_ns == [OFFSET_NS + 7 * S]
    assert run_heartbeat(run, 8 * S).alive_unix_ns == [OFFSET_NS + 8 * S]
    kill(process)
    for now_ns in (9 * S, 20 * S):
        assert run_heartbeat(look(rings), now_ns).alive_unix_ns == [OFFSET_NS + 8 * S]


def test_a_file_system_without_locks_leaves_the_agents_word(rings: Rings, make_ring):
    """Then the last sign of life is all that is known."""
    make_ring().beat(3)
    assert run_heartbeat(look(rings), 100 * S).alive_unix_ns == [OFFSET_NS + 3]


def test_a_ring_that_is_cut_costs_nothing_but_its_news(rings: Rings, make_ring):
    """What was known of the rank before is what is reported."""
    ring = make_ring()
    ring.beat(3)
    run = look(rings)
    os.ftruncate(ring.file, layout.WORDS_OFFSET)
    assert run_heartbeat(run, 100 * S).alive_unix_ns == [OFFSET_NS + 3]


def test_a_new_attempt_begins_with_its_own_time(rings: Rings, make_ring):
    """Its clock may be another one, after a reboot for instance."""
    make_ring(attempt=1).beat(500)
    run_heartbeat(look(rings), 0)
    make_ring(attempt=2, clock_offset_ns=7).beat(3)
    assert run_heartbeat(look(rings), 0).alive_unix_ns == [10]


def test_heartbeats_stand_in_the_order_of_the_announcement(rings: Rings, make_ring):
    """Rank by rank, and of the same revision."""
    for rank in (5, 1, 3):
        make_ring(rank=rank).beat(rank)
    run = look(rings)
    announced, heartbeat = announcement(run, "n"), run_heartbeat(run, 0)
    assert (
        [info.rank for info in announced.ranks] == [each - OFFSET_NS for each in heartbeat.alive_unix_ns] == [1, 3, 5]
    )
    assert announced.revision == heartbeat.revision
    encode(NodeAlive(node="n", alive=True, unix_ns=0, stream_id=1, runs=[heartbeat]))


def test_a_rank_whose_place_was_taken_is_announced_no_more(rings: Rings, start):
    """An elastic restart deals the ranks to other nodes: the ring of before is left behind, with groups of before."""
    first = start(0, attempt=1)
    second = start(1, local_rank=1, attempt=1)
    assert [info.rank for info in announcement(look(rings), "n").ranks] == [0, 1]
    kill(first)
    start(5, attempt=2)
    before = rings.runs["run-a"].revision
    announced = announcement(look(rings), "n")
    assert [info.rank for info in announced.ranks] == [1, 5]
    assert {group.name for group in announced.groups} == {"dp of 1", "dp of 5"}
    assert announced.revision > before
    kill(second)  # ended, but nothing has taken its place: it is waited for
    assert [info.rank for info in announcement(look(rings), "n").ranks] == [1, 5]
    start(0, attempt=3)  # back, in the place of rank 5, which lives
    assert [info.rank for info in announcement(look(rings), "n").ranks] == [0, 1, 5]


def test_living_ranks_that_name_the_same_place_are_all_announced(rings: Rings, start):
    """A launcher that sets no LOCAL_RANK gives all ranks the first place."""
    for rank in range(3):
        start(rank, local_rank=0, attempt=rank + 1)
    assert [info.rank for info in announcement(look(rings), "n").ranks] == [0, 1, 2]


def test_an_announcement_holds_no_more_ranks_than_is_taken(rings: Rings, make_ring, root: Path):
    """A job that came and went with other ranks each time: what runs is announced, and what ended last."""
    count = RANKS_PER_NODE_MAX
    for rank in range(count):
        make_ring(rank=rank, world_size=200, local_rank=rank, attempt=rank + 1).state(layout.STATE_FINISHED)
    look(rings)
    for rank in range(count):
        (root / "run-a" / f"{rank}.ring").unlink()
    for rank in range(count, count + 4):
        make_ring(rank=rank, world_size=200, local_rank=rank, attempt=rank + 1)
    run = look(rings)
    assert [rank_state.rank for rank_state in run.announced()] == list(range(4, count + 4))
    assert len(run_heartbeat(run, 0).alive_unix_ns) == count
