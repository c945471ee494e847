"""The ring writer against the contract's own reader, on real files and with real kills."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time

import pytest

from lockstep.agent.descriptors import HIGH_DESCRIPTOR
from lockstep.agent.mark_buffer import MarkBuffer
from lockstep.agent.ring import FLAGS_OFFSET, INSPECT_INTERVAL_NS, RingWriter
from lockstep.contracts.errors import LocalError, MalformedError
from lockstep.contracts.marks import BLOCK_BYTES, pack_call_site
from lockstep.contracts.records import Flag
from lockstep.contracts.ring import (
    BLOCKS_OFFSET,
    ISSUES_OFFSET,
    STATE_FAILED,
    STATE_RUNNING,
    RingHeader,
)
from tests.agent.rings import read_ring


def make_header(rank=3, block_count=8, attempt=1):
    return RingHeader(
        rank=rank,
        local_rank=1,
        world_size=4,
        pid=os.getpid(),
        attempt=attempt,
        clock_offset_ns=5,
        hostname="node-a",
        block_count=block_count,
    )


def make_marks(ring, clock=None):
    """Return a mark buffer of the ring, whose attempt has begun."""
    marks = MarkBuffer(
        ring.file, BLOCKS_OFFSET, ring.block_count, issues_offset=ISSUES_OFFSET, flags_offset=FLAGS_OFFSET, clock=clock
    )
    marks.begin()
    return marks


def end_step(marks):
    """End a step, in a block of its own."""
    marks.step_end()
    marks.flush()


@pytest.fixture
def ring(tmp_path):
    return RingWriter(tmp_path / "run", make_header())


def test_new_ring_is_running_and_alive(ring):
    """A ring that has its name already states who writes it, that it runs and when it last lived."""
    found = read_ring(ring.path)
    assert found.header == make_header()
    assert (found.blocks, found.state, found.failures) == ([], STATE_RUNNING, 0)
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


def test_blocks_lie_where_a_reader_looks(ring):
    """What a mark buffer stores through the ring's file comes back, the last ones of a lapped ring."""
    marks = make_marks(ring)
    for _ in range(21):
        end_step(marks)
    found = read_ring(ring.path)
    assert [block.sequence for block in found.blocks] == list(range(14, 22))
    assert found.torn == 0


def test_torn_block_costs_only_itself(ring):
    """Half a block is recognised and its neighbours are whole."""
    marks = make_marks(ring)
    for _ in range(3):
        end_step(marks)
    data = bytearray(ring.path.read_bytes())
    middle = BLOCKS_OFFSET + 2 * BLOCK_BYTES + 50
    data[middle : middle + 8] = bytes(8)
    ring.path.write_bytes(data)
    found = read_ring(ring.path)
    assert found.torn == 1
    assert [block.sequence for block in found.blocks] == [0, 1, 3]


def test_words_and_blobs(ring):
    """State, failures, heartbeat, groups and answer reach the reader."""
    assert not ring.show_life(77)
    ring.set_state(STATE_FAILED, 2)
    ring.write_groups([{"kind": "dp", "name": "a", "ranks": [[0, 4, 1]]}])
    ring.write_answer({"state": "running"})
    ring.write_answer({"state": "done"})
    found = read_ring(ring.path)
    assert (found.heartbeat_ns, found.state, found.failures) == (77, STATE_FAILED, 2)
    assert found.groups == [{"kind": "dp", "name": "a", "ranks": [[0, 4, 1]]}]
    assert found.answer == {"state": "done"}


def test_issues_and_flags_lie_where_a_reader_looks(ring):
    """Counts of issues by slot, and what is known of the running step."""
    marks = make_marks(ring)
    for slot in (0, 0, 126):
        marks.issue(pack_call_site("barrier", synchronous=True, domain=5, slot=slot, group_size=4), 0)
    marks.flag(int(Flag.CHECKPOINT))
    found = read_ring(ring.path)
    assert [count for count, _ in (found.issues[0], found.issues[1], found.issues[126])] == [2, 0, 1]
    assert found.flags == Flag.CHECKPOINT
    marks.step_end()
    assert read_ring(ring.path).flags == 0


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
    end_step(make_marks(old))
    found = read_ring(new.path)
    assert new.path.stat().st_ino != inode
    assert (found.header.attempt, found.blocks) == (2, [])


KILLED_WRITER = """
    import sys
    from pathlib import Path
    from lockstep.agent.ring import RingWriter
    from tests.agent.test_ring import end_step, make_header, make_marks
    ring = RingWriter(Path(sys.argv[1]), make_header(rank=0, block_count=64))
    marks = make_marks(ring)
    step = 0
    while True:
        end_step(marks)
        step += 1
        if step == 200:
            print("going", flush=True)
"""


@pytest.mark.parametrize("attempt", range(5))
def test_killed_writer_costs_at_most_its_own_block(tmp_path, attempt):
    """SIGKILL in a tight write loop: all slots but at most one are whole and in order."""
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED_WRITER), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert writer.stdout.readline() == b"going\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    found = read_ring(tmp_path / "0.ring")
    assert found.torn <= 1
    assert len(found.blocks) + found.torn == 64
    sequences = [block.sequence for block in found.blocks]
    assert sequences[-1] >= 199
    assert sequences == sorted(sequences)


NO_SPACE = """
    import resource, sys
    from pathlib import Path
    from lockstep.agent.ring import RingWriter
    from tests.agent.test_ring import make_header
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    try:
        RingWriter(Path(sys.argv[1]), make_header(block_count=1024))
    except OSError as error:
        print(type(error).__name__, [p.name for p in Path(sys.argv[1]).iterdir()])
"""


def test_no_space_is_an_error_and_leaves_nothing(tmp_path):
    """Where the file cannot have its size, the writer raises OSError and no half ring is left."""
    code = textwrap.dedent(NO_SPACE)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "OSError []"
    assert done.returncode == 0


class Watchful:
    """A ring that looks at its file at every sign of life, with some of everything in it."""

    def __init__(self, ring):
        self.ring = ring
        self.path = ring.path
        ring.write_groups([{"kind": "dp", "name": "a", "ranks": [[0, 4, 1]]}])
        self.marks = make_marks(ring)
        self.marks.issue(pack_call_site("barrier", synchronous=True, domain=5, slot=3, group_size=4), 0)
        for _ in range(3):
            end_step(self.marks)
        self._now = INSPECT_INTERVAL_NS

    def live(self):
        """Show a sign of life as the agent does, and go on."""
        self._now += 10 * INSPECT_INTERVAL_NS
        if self.ring.show_life(self._now + time.monotonic_ns()):
            self.marks.store_words()
        end_step(self.marks)


@pytest.fixture
def watchful(ring):
    return Watchful(ring)


def check_is_whole(watchful, failures, held):
    """All is there but the blocks that the file held from `held` on; those after them go on in their sequence."""
    found = read_ring(watchful.path)
    assert ([block.sequence for block in found.blocks], found.torn) == ([*range(held), 4], 0)
    assert (found.state, found.failures) == (STATE_RUNNING, failures)
    assert (found.groups, found.issues[3][0]) == ([{"kind": "dp", "name": "a", "ranks": [[0, 4, 1]]}], 1)
    assert stat.S_IMODE(watchful.path.stat().st_mode) == 0o640
    assert watchful.path.stat().st_blocks * 512 >= found.header.file_bytes
    assert [path.name for path in watchful.path.parent.iterdir()] == [watchful.path.name]


@pytest.mark.parametrize(
    ("size", "held"), [(0, 0), (100, 0), (600, 0), (BLOCKS_OFFSET, 0), (BLOCKS_OFFSET + BLOCK_BYTES, 1)]
)
def test_a_ring_that_is_cut_is_written_again(watchful, size, held, capsys):
    """Wherever it was cut: all but the blocks is there again, with its space, and the count and one line report it."""
    os.truncate(watchful.path, size)
    watchful.live()
    check_is_whole(watchful, failures=1, held=held)
    assert capsys.readouterr().err == f"lockstep: {watchful.path} was cut or removed: written again\n"


def test_a_ring_that_is_overwritten_is_written_again(watchful):
    """A file of the right size with another beginning is no ring."""
    watchful.path.write_bytes(bytes(watchful.path.stat().st_size))
    watchful.live()
    check_is_whole(watchful, failures=1, held=0)


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_ring_that_is_removed_is_written_again(watchful, what):
    """Under its name, in a directory of the same mode; a reader of the former file keeps what it has."""
    with watchful.path.open("rb") as reader:
        watchful.path.unlink()
        if what == "directory":
            watchful.path.parent.rmdir()
        watchful.live()
        check_is_whole(watchful, failures=1, held=0)
        assert stat.S_IMODE(watchful.path.parent.stat().st_mode) & 0o1777 == 0o1750
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
        watchful.live()


@pytest.mark.parametrize("kind", ["ring", "file", "link", "pipe", "directory"])
def test_a_ring_that_is_replaced_ends_its_writer(watchful, kind):
    """Whatever has the name now is somebody else's: it is left as it is, and the agent's boundary gets an error."""
    path = watchful.path
    outside = path.with_name("outside")
    outside.write_text("precious")
    path.unlink()
    if kind == "ring":
        other = RingWriter(path.parent, make_header(attempt=2))
        end_step(make_marks(other))
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
            watchful.live()
    watchful.ring.set_state(STATE_FAILED, 1)
    after = path.lstat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert outside.read_text() == "precious"


def test_a_descriptor_that_training_closed_is_never_written_to(watchful, tmp_path):
    """Its number may be that of a file of the training by now: nothing is written to it, and it is not closed."""
    assert watchful.ring.file >= HIGH_DESCRIPTOR
    number = watchful.ring.file
    path = tmp_path / "checkpoint"
    path.write_bytes(b"precious")
    with path.open("r+b") as checkpoint:
        os.dup2(checkpoint.fileno(), number)
        with pytest.raises(LocalError, match="this process closed it"):
            watchful.live()
        watchful.ring.show_life(1)
        watchful.ring.write_answer({"state": "done"})
        assert watchful.ring.file < 0  # for the agent, whose marks go there as well
        watchful.ring.set_state(STATE_FAILED, 1)
        release = watchful.ring._release
        del watchful
        assert not release.alive
        os.fstat(number)
        os.close(number)
    assert path.read_bytes() == b"precious"


def test_a_closed_descriptor_ends_the_writer(watchful):
    """Where nothing has its number, the same."""
    os.close(watchful.ring.file)
    with pytest.raises(LocalError, match="this process closed it"):
        watchful.live()


def test_a_ring_in_a_directory_of_somebody_else_is_refused_before_anything_is_made(tmp_path):
    """A link in place of the run's directory is not followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MalformedError, match="expected a directory, no link"):
        RingWriter(tmp_path / "run", make_header())
    assert list((tmp_path / "elsewhere").iterdir()) == []
