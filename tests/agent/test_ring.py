"""The ring writer against the contract's own reader, on real files and with real kills."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from lockstep.agent.ring import RingWriter
from lockstep.contracts.errors import LocalError
from lockstep.contracts.records import MISSING, RECORD_FIELDS, RECORD_STRUCT
from lockstep.contracts.ring import (
    ISSUE_SLOTS,
    SLOT_BYTES,
    SLOTS_OFFSET,
    STATE_FAILED,
    STATE_RUNNING,
    RingHeader,
)
from tests.agent.rings import read_ring


def make_header(rank=3, slot_count=8, attempt=1):
    return RingHeader(
        rank=rank,
        local_rank=1,
        world_size=4,
        pid=os.getpid(),
        attempt=attempt,
        clock_offset_ns=5,
        hostname="node-a",
        slot_count=slot_count,
    )


def make_record(step):
    return RECORD_STRUCT.pack(step, *range(1, len(RECORD_FIELDS) - 1), MISSING)


@pytest.fixture
def ring(tmp_path):
    return RingWriter(tmp_path / "run", make_header())


def test_new_ring_is_running_and_alive(ring):
    """A ring that has its name already says who writes it, that it runs and when it last lived."""
    found = read_ring(ring.path)
    assert found.header == make_header()
    assert (found.head, found.state, found.failures) == (0, STATE_RUNNING, 0)
    assert found.heartbeat_ns > 0
    assert (found.groups, found.answer) == (None, None)


def test_files_are_for_the_group_only(tmp_path):
    """The umask does not decide who may read: file 0640, directories 0770."""
    old = os.umask(0o077)
    try:
        ring = RingWriter(tmp_path / "root" / "run", make_header())
    finally:
        os.umask(old)
    assert ring.path.stat().st_mode & 0o777 == 0o640
    assert ring.path.parent.stat().st_mode & 0o777 == 0o770
    assert ring.path.parent.parent.stat().st_mode & 0o777 == 0o770


def test_records_come_back_as_written(ring):
    """Every field of every record survives."""
    for step in range(5):
        ring.write(make_record(step))
    found = read_ring(ring.path)
    assert [RECORD_STRUCT.pack(*record.values()) for record in found.records] == [
        make_record(step) for step in range(5)
    ]


def test_lapped_ring_keeps_the_last_slots(ring):
    """A ring of 8 slots holds the last 8 of 21 records, each under its own index."""
    for step in range(21):
        ring.write(make_record(step))
    found = read_ring(ring.path)
    assert found.head == 21
    assert found.torn == 0
    assert [record["step"] for record in found.records] == list(range(13, 21))


def test_torn_record_costs_only_itself(ring):
    """Half a slot is recognised and its neighbours are whole."""
    for step in range(4):
        ring.write(make_record(step))
    data = bytearray(ring.path.read_bytes())
    middle = SLOTS_OFFSET + 2 * SLOT_BYTES + SLOT_BYTES // 2
    data[middle : middle + 16] = bytes(16)
    ring.path.write_bytes(data)
    found = read_ring(ring.path)
    assert found.torn == 1
    assert [record["step"] for record in found.records] == [0, 1, 3]


def test_words_and_blobs(ring):
    """State, failures, heartbeat, groups and answer reach the reader."""
    ring.beat(77)
    ring.set_state(STATE_FAILED, 2)
    ring.write_groups([{"kind": "dp", "name": "a", "ranks": [[0, 4, 1]]}])
    ring.write_answer({"state": "running"})
    ring.write_answer({"state": "done"})
    found = read_ring(ring.path)
    assert (found.heartbeat_ns, found.state, found.failures) == (77, STATE_FAILED, 2)
    assert found.groups == [{"kind": "dp", "name": "a", "ranks": [[0, 4, 1]]}]
    assert found.answer == {"state": "done"}


def test_issues_are_counted_by_slot(ring):
    """Each issue is one more in its slot, at its time, and a sign of life; a slot that is cleared begins anew."""
    for now_ns in (5, 6):
        ring.note_issue(0, now_ns)
    ring.note_issue(ISSUE_SLOTS - 1, 9)
    found = read_ring(ring.path)
    assert found.heartbeat_ns == 9
    assert (found.issues[0], found.issues[1], found.issues[-1]) == ((2, 6), (0, 0), (1, 9))
    ring.clear_issues(0)
    found = read_ring(ring.path)
    assert (found.issues[0], found.issues[-1]) == ((0, 0), (1, 9))


def test_flags_of_the_running_step_are_seen_at_once(ring):
    """What a step is beside a training step can be read before its record is."""
    ring.set_flags(6)
    assert read_ring(ring.path).flags == 6


def test_groups_too_large_leave_the_former_ones(ring):
    """What does not fit is an error of ours and nothing is lost."""
    ring.write_groups([1])
    with pytest.raises(LocalError, match="at most"):
        ring.write_groups(["x" * (1 << 17)])
    ring.write_groups([2])
    assert read_ring(ring.path).groups == [2]


def test_restarted_rank_replaces_the_file(tmp_path):
    """A new attempt is a new file: a reader of the old one keeps what it has mapped."""
    old = RingWriter(tmp_path, make_header(attempt=1))
    inode = old.path.stat().st_ino
    new = RingWriter(tmp_path, make_header(attempt=2))
    old.write(make_record(9))
    found = read_ring(new.path)
    assert new.path.stat().st_ino != inode
    assert (found.header.attempt, found.head) == (2, 0)


KILLED_WRITER = """
    import sys
    from pathlib import Path
    from lockstep.agent.ring import RingWriter
    from tests.agent.test_ring import make_header, make_record
    ring = RingWriter(Path(sys.argv[1]), make_header(rank=0, slot_count=64))
    step = 0
    while True:
        ring.write(make_record(step))
        step += 1
        if step == 200:
            print("going", flush=True)
"""


@pytest.mark.parametrize("attempt", range(5))
def test_killed_writer_costs_at_most_its_own_record(tmp_path, attempt):
    """SIGKILL in a tight write loop: all slots but at most one are whole and in order."""
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED_WRITER), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert writer.stdout.readline() == b"going\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    found = read_ring(tmp_path / "0.ring")
    assert found.head >= 200
    assert found.torn <= 1
    assert len(found.records) + found.torn == 64
    steps = [record["step"] for record in found.records]
    assert steps == sorted(steps)
    assert all(list(record.values())[1:-1] == list(range(1, len(RECORD_FIELDS) - 1)) for record in found.records)


NO_SPACE = """
    import resource, sys
    from pathlib import Path
    from lockstep.agent.ring import RingWriter
    from tests.agent.test_ring import make_header
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    try:
        RingWriter(Path(sys.argv[1]), make_header(slot_count=1024))
    except OSError as error:
        print(type(error).__name__, [p.name for p in Path(sys.argv[1]).iterdir()])
"""


def test_no_space_is_an_error_and_leaves_nothing(tmp_path):
    """Where the file cannot have its size, the writer raises OSError and no half ring is left."""
    code = textwrap.dedent(NO_SPACE)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "OSError []"
    assert done.returncode == 0
