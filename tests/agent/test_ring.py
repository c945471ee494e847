"""The ring writer against the contract's own reader, on real files and with real kills."""

import os
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

from lockstep.agent import ring as module
from lockstep.agent.descriptors import HIGH_DESCRIPTOR
from lockstep.agent.ring import BEAT_INTERVAL_NS, RingWriter
from lockstep.contracts.errors import LocalError, MalformedError
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
    assert (found.step_count, found.state, found.failures) == (0, STATE_RUNNING, 0)
    assert found.heartbeat_ns > 0
    assert (found.groups, found.answer) == (None, None)


def test_only_the_owner_writes_and_the_group_reads(tmp_path):
    """The umask does not decide who may read: file 0640, the run's directory 1750."""
    old = os.umask(0o077)
    try:
        ring = RingWriter(tmp_path / "root" / "run", make_header())
    finally:
        os.umask(old)
    assert stat.S_IMODE(ring.path.stat().st_mode) == 0o640
    assert stat.S_IMODE(ring.path.parent.stat().st_mode) & 0o1777 == 0o1750


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
    assert found.step_count == 21
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
    """Each issue is one more in its slot, at its time; a slot that is cleared counts from 0."""
    for now_ns in (5, 6):
        ring.note_issue(0, now_ns)
    ring.note_issue(ISSUE_SLOTS - 1, 9)
    found = read_ring(ring.path)
    assert (found.issues[0], found.issues[1], found.issues[-1]) == ((2, 6), (0, 0), (1, 9))
    ring.clear_issues(0)
    found = read_ring(ring.path)
    assert (found.issues[0], found.issues[-1]) == ((0, 0), (1, 9))


def test_signs_of_life_are_stored_once_an_interval(ring):
    """Of marks and issues alike the first in each interval is stored: the ring is at most that far behind."""
    seen = []
    for now_ns in (1, BEAT_INTERVAL_NS, BEAT_INTERVAL_NS + 1, 2 * BEAT_INTERVAL_NS, 2 * BEAT_INTERVAL_NS + 1):
        (ring.beat if now_ns % 2 else lambda now_ns: ring.note_issue(0, now_ns))(now_ns)
        seen.append(read_ring(ring.path).heartbeat_ns)
    assert seen == [1, 1, BEAT_INTERVAL_NS + 1, BEAT_INTERVAL_NS + 1, 2 * BEAT_INTERVAL_NS + 1]


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
    assert (found.header.attempt, found.step_count) == (2, 0)


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
    assert found.step_count >= 200
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


@pytest.fixture
def watchful(ring, monkeypatch):
    """Return a ring that looks at its file at every record, with some of everything in it."""
    monkeypatch.setattr(module, "INSPECT_INTERVAL_NS", 0)
    ring._inspect_due_ns = 0
    ring.write_groups([{"kind": "dp", "name": "a", "ranks": [[0, 4, 1]]}])
    ring.note_issue(3, 7)
    for step in range(3):
        ring.write(make_record(step))
    return ring


def check_is_whole(ring, failures):
    found = read_ring(ring.path)
    assert ([record["step"] for record in found.records], found.torn) == ([0, 1, 2, 3], 0)
    assert (found.state, found.failures) == (STATE_RUNNING, failures)
    assert (found.groups, found.issues[3]) == ([{"kind": "dp", "name": "a", "ranks": [[0, 4, 1]]}], (1, 7))
    assert stat.S_IMODE(ring.path.stat().st_mode) == 0o640
    assert ring.path.stat().st_blocks * 512 >= found.header.file_bytes
    assert [path.name for path in ring.path.parent.iterdir()] == [ring.path.name]


@pytest.mark.parametrize("size", [0, 100, 600, SLOTS_OFFSET, SLOTS_OFFSET + SLOT_BYTES])
def test_a_ring_that_is_cut_is_written_again(watchful, size, capsys):
    """Wherever it was cut: the file holds all of it again, with its space, and the count and one line report it."""
    os.truncate(watchful.path, size)
    watchful.write(make_record(3))
    check_is_whole(watchful, failures=1)
    assert capsys.readouterr().err == f"lockstep: {watchful.path} was cut or removed: written again\n"


def test_a_ring_that_is_overwritten_is_written_again(watchful):
    """A file of the right size with another beginning is no ring."""
    watchful.path.write_bytes(bytes(watchful.path.stat().st_size))
    watchful.write(make_record(3))
    check_is_whole(watchful, failures=1)


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_ring_that_is_removed_is_written_again(watchful, what):
    """Under its name, in a directory of the same mode; a reader of the former file keeps what it has."""
    reader = watchful.path.open("rb")
    watchful.path.unlink()
    if what == "directory":
        watchful.path.parent.rmdir()
    watchful.write(make_record(3))
    check_is_whole(watchful, failures=1)
    assert stat.S_IMODE(watchful.path.parent.stat().st_mode) & 0o1777 == 0o1750
    with reader:
        assert len(reader.read()) == watchful.path.stat().st_size


def test_a_ring_that_is_written_again_is_held(watchful):
    """Its lock shows that the rank lives: on the new file as on the first."""
    look = (
        "import sys; from pathlib import Path; from exporter.reading.ring_file import RingFile;"
        "print(RingFile(Path(sys.argv[1]), 3).issues().is_alive)"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", look, watchful.path], capture_output=True, text=True, check=True)
        assert done.stdout == "True\n"
        watchful.path.unlink()
        watchful.write(make_record(3))


@pytest.mark.parametrize("kind", ["ring", "file", "link", "pipe", "directory"])
def test_a_ring_that_is_replaced_ends_its_writer(watchful, kind):
    """Whatever has the name now is somebody else's: it is left as it is, and the agent's boundary gets an error."""
    path = watchful.path
    outside = path.with_name("outside")
    outside.write_text("precious")
    path.unlink()
    if kind == "ring":
        other = RingWriter(path.parent, make_header(attempt=2))
        other.write(make_record(0))
    elif kind == "file":
        path.write_text("precious")
    elif kind == "link":
        path.symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = path.lstat()
    for _ in range(2):
        with pytest.raises(LocalError, match="expected the ring of this process"):
            watchful.write(make_record(3))
    watchful.set_state(STATE_FAILED, 1)
    after = path.lstat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert outside.read_text() == "precious"


def test_a_descriptor_that_training_closed_is_never_written_to(watchful, tmp_path):
    """Its number may be that of a file of the training by now: nothing is written to it, and it is not closed."""
    assert watchful._file >= HIGH_DESCRIPTOR
    number = watchful._file
    path = tmp_path / "checkpoint"
    path.write_bytes(b"precious")
    with path.open("r+b") as checkpoint:
        os.dup2(checkpoint.fileno(), number)
        with pytest.raises(LocalError, match="this process closed it"):
            watchful.write(make_record(3))
        watchful.beat(1 << 40)
        watchful.note_issue(3, 1 << 41)
        watchful.set_state(STATE_FAILED, 1)
        release = watchful._release
        del watchful
        assert not release.alive
        os.fstat(number)
        os.close(number)
    assert path.read_bytes() == b"precious"


def test_a_closed_descriptor_ends_the_writer(watchful):
    """Where nothing has its number, the same."""
    os.close(watchful._file)
    with pytest.raises(LocalError, match="this process closed it"):
        watchful.write(make_record(3))


def test_a_ring_in_a_directory_of_somebody_else_is_refused_before_anything_is_made(tmp_path):
    """A link in place of the run's directory is not followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MalformedError, match="expected a directory, no link"):
        RingWriter(tmp_path / "run", make_header())
    assert list((tmp_path / "elsewhere").iterdir()) == []
